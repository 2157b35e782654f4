#!/usr/bin/env python
"""Measure this machine's GPU and workloads, and write the figures into performance.csv.

    python -P scripts/measure/record_performance.py [--only NAME,NAME] [--dry-run] [--commit COMMIT] [KEY=VALUE...]

NAME is `peaks` or one of `MEASUREMENTS` below, all of which are run unless --only is given: `timetrial throughput` at
the reference batch, each in a separate process. Overrides KEY=VALUE replace those of every measurement, for example
`gpus=2`. A measurement that fails is reported, and the others go on. --dry-run prints rows instead of writing them; on
a CPU, try

    python -P scripts/measure/record_performance.py --only ncf --dry-run scale=embedded precision=fp32 \\
        recipe.global_batch_size=4096 throughput.steps=2 throughput.blocks=2

A row replaces the one with the same configuration and quantity. `timetrial` is the package that this Python imports.
Regenerate the tables afterwards: scripts/dev/make_docs.py.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from timetrial.runner.core.errors import RunError
from timetrial.runner.hardware.datasheets import find_accelerator
from timetrial.runner.record.performance import PERFORMANCE_FILE, TRAINING, Measurement, read_measurements
from timetrial.runner.record.record_file import read_record
from timetrial.runner.record.run_record import RunRecord

PEAKS = "peaks"
IMAGE_WORKLOADS = ("resnet50", "ssd", "maskrcnn", "cifar10", "cnn")
REFERENCE = "scale=reference precision=bf16"
MEASUREMENTS = {
    "resnet50": "workload=resnet50 recipe.global_batch_size=512",
    "ssd": "workload=ssd recipe.global_batch_size=256 recipe.training.backbone=null",
    "maskrcnn": "workload=maskrcnn recipe.training.backbone=random",
    "gnmt": "workload=gnmt throughput.blocks=8",
    "transformer": "workload=transformer",
    "ncf": "workload=ncf throughput.steps=100 throughput.blocks=5",
    "gpt": "workload=gpt",
    "cifar10": "workload=cifar10",
}


def measure_throughput(name: str, overrides: Sequence[str], folder: Path) -> list[Measurement]:
    """Run `timetrial throughput` and return its rows; raise `CalledProcessError` if it fails."""
    words = [*f"{MEASUREMENTS[name]} {REFERENCE}".split(), *overrides]
    arguments = list({word.partition("=")[0]: word for word in words}.values())
    command = [sys.executable, "-P", "-m", "timetrial", "throughput", *arguments, f"run_dir={folder / name}"]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return rows_of_run(read_record(folder / name), "timetrial throughput " + " ".join(arguments))


def rows_of_run(record: RunRecord, command: str) -> list[Measurement]:
    """Return the rows of a throughput run."""
    config, measured, software = record.config, record.throughput, record.environment
    if measured is None:
        raise ValueError(f"{command}: the run has no throughput")
    workload, recipe = config["workload"]["name"], config["recipe"]
    network = recipe["training"].get("network") if workload == "cnn" else None
    row = Measurement(
        workload=workload, recipe=recipe["scale"], variant=f"model={network}" if network else "", settings="",
        data=config["data"]["loader"], quantity=TRAINING, value=1.0, unit="", gpu=config["accelerator"]["name"].upper(),
        gpus=config["gpus"], precision=config["precision"]["name"], batch=recipe["global_batch_size"],
        compile=config["engine"]["compile"] or "", pytorch=".".join(software["packages"]["torch"].split(".")[:2]),
        timetrial=software["timetrial"]["version"], date=datetime.now(UTC).date().isoformat(),
        commit=(software["timetrial"].get("revision") or "")[:7], current=True, command=command, note="",
    )  # fmt: skip
    samples = "images/s" if workload in IMAGE_WORKLOADS else "samples/s"
    in_tokens = measured.tokens_per_second is not None
    unit = "tokens/s" if in_tokens else samples
    values: dict[str, tuple[float | None, str]] = {
        TRAINING: (measured.tokens_per_second if in_tokens else measured.samples_per_second, unit),
        "step": (measured.train_ms, "ms"),
        "evaluation": (measured.eval_tokens_per_second if in_tokens else measured.eval_samples_per_second, unit),
        "peak memory": (record.peak_memory_bytes and record.peak_memory_bytes / 2**30, "GiB"),
        "start": (sum(record.attempts[-1].startup.values()) if record.attempts else None, "s"),
    }
    rows = [
        replace(row, quantity=name, value=round_to_4(value), unit=unit)
        for name, (value, unit) in values.items()
        if value
    ]
    return [replace(rows[0], settings=settings_of(rows[0]), note=f"blocks within {measured.spread:.1%}"), *rows[1:]]


def settings_of(row: Measurement) -> str:
    """Return the keys that determine the work of a sample, as older rows of the same recipe have them."""
    same = (old for old in read_measurements() if (old.workload, old.recipe) == (row.workload, row.recipe))
    return next((old.settings for old in same if old.settings and old.variant == row.variant), "")


def measure_peaks() -> list[Measurement]:
    """Run `timetrial peaks gemm copy` and return the GPU's product rate and memory bandwidth."""
    arguments = ["peaks", "gemm", "copy", "--json"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", "-m", "timetrial", *arguments, "--out", folder]
        document = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return rows_of_peaks(document, "timetrial " + " ".join(arguments[:-1]))


def rows_of_peaks(document: Mapping[str, Any], command: str) -> list[Measurement]:
    """Return the rows of a peaks.json: the largest bf16 product, which runs at the power limit, and the best copy."""
    products = [row for row in document["rows"] if row["kind"] == "gemm" and row["compute"] == "bf16" and row["tflops"]]
    system = document["system"]
    row = Measurement(
        workload="", recipe="", variant="", settings="", data="", quantity="memory bandwidth",
        value=round_to_4(document["peaks"]["gb_s"] / 1e3), unit="TB/s", gpu=short_name(document["card"]), gpus=1,
        precision="", batch=None, compile="", pytorch=".".join(system["packages"]["torch"].split(".")[:2]),
        timetrial=system["timetrial"]["version"], date=datetime.now(UTC).date().isoformat(),
        commit=(system["timetrial"].get("revision") or "")[:7], current=True, command=command, note="the best copy",
    )  # fmt: skip
    if not products:
        return [row]
    largest = max(products, key=lambda product: product["operations"])
    product_rate = replace(row, quantity="product rate", value=round_to_4(largest["tflops"]), unit="TFLOP/s")
    return [replace(product_rate, precision="bf16", note=f"bf16, {largest['shape']}"), row]


def short_name(device: str) -> str:
    """Return "H100" of "h100" or "NVIDIA H100 80GB HBM3": the name of the accelerator config, if it has one."""
    return (find_accelerator(device) or device).upper()


def round_to_4(value: float) -> float:
    """Return a value with four significant digits, or as an integer from a thousand on."""
    return round(value) if 1e3 <= value < 1e7 else float(f"{value:.4g}")


def merge(old: Iterable[Measurement], new: Iterable[Measurement]) -> list[Measurement]:
    """Return the rows `old` with those of `new` in the place of rows with the same key, else after their workload."""
    merged = list(old)
    for row in new:
        keys = [other.key for other in merged]
        if row.key in keys:
            merged[keys.index(row.key)] = row
        else:
            same = [index for index, other in enumerate(merged) if other.workload == row.workload]
            merged.insert(same[-1] + 1 if same else len(merged), row)
    return merged


def write_rows(measurements: Iterable[Measurement], stream: TextIO, *, header: bool = True) -> None:
    """Write rows as performance.csv has them."""
    writer = csv.writer(stream, lineterminator="\n")
    if header:
        writer.writerow(field.name for field in fields(Measurement))
    for measurement in measurements:
        row = asdict(measurement) | {"value": f"{measurement.value:.15g}", "current": "no"}
        row |= {"current": "yes"} if measurement.current else {}
        writer.writerow("" if value is None else value for value in row.values())


def main() -> int:
    """Measure what is asked for; return 1 if a measurement failed."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join([PEAKS, *MEASUREMENTS]), help="names, separated by commas")
    parser.add_argument("--dry-run", action="store_true", help="print the rows and write nothing")
    parser.add_argument("--commit", help="commit of the code, where git does not know it")
    parser.add_argument("--out", type=Path, default=PERFORMANCE_FILE, help="file to write (default: %(default)s)")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    if unknown := set(names) - {PEAKS, *MEASUREMENTS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join([PEAKS, *MEASUREMENTS])}")
    rows, failed = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            try:
                measured = (
                    measure_peaks() if name == PEAKS else measure_throughput(name, arguments.overrides, Path(folder))
                )
            except (subprocess.CalledProcessError, ValueError, RunError) as error:
                print(f"{name}: {error}", file=sys.stderr)
                failed.append(name)
                continue
            found = [replace(row, commit=arguments.commit or row.commit) for row in measured]
            rows += found
            # After each measurement, so that an interruption loses none.
            if arguments.dry_run:
                write_rows(found, sys.stdout, header=found == rows)
                sys.stdout.flush()
            else:
                merged = merge(read_measurements(), rows)
                with open(arguments.out, "w", newline="", encoding="utf-8") as stream:
                    write_rows(merged, stream)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

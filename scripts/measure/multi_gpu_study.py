"""Write the tables of docs/studies/multi_gpu.md from the runs in docs/studies/multi_gpu.tar.xz.

    .venv/bin/python -P scripts/measure/multi_gpu_study.py [--check]

The archive is unpacked to a temporary folder. With --check nothing is written, and the exit code is 1 if the page
differs. In the archive, `training` holds runs to the target at one global batch size; `seventh`, `scaling`, `networks`,
`links` and `first_plans` hold throughput runs at one batch size per GPU, the first two on two machines, `strong` those
at one global batch size, and `reference` those of CIFAR-10 for docs/studies/h100_h200.md. Folders that begin with
`in_backward` hold runs of the version that exchanged gradients in the backward pass. `exchange`, `waiting`,
`small_steps` and `bf16` hold throughput runs that exchange gradients in several ways, those that begin with `jpegs`
runs that read JPEGs, and `losses.jsonl` and `exchange_losses.jsonl` the lines of scripts/measure/losses.py.
"""

import itertools
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from timetrial.runner.record.performance import TRAINING, read_measurements
from timetrial.runner.record.run_record import RunRecord
from timetrial.runner.results.analysis.intervals import geometric_ratio
from timetrial.scripts.measure import seed_outcomes, study_page
from timetrial.scripts.measure.seed_outcomes import read_ended
from timetrial.scripts.measure.study_page import span

PAGE, ARCHIVE = study_page.STUDIES / "multi_gpu.md", study_page.STUDIES / "multi_gpu.tar.xz"
_EQUIVALENCE_LEVEL = 0.9  # of the interval that two one-sided tests at 5% need (Schuirmann 1987)
_STEPS = {"step 1": slice(0, 1), "2 to 10": slice(1, 10), "11 to 100": slice(10, 100), "101 to 200": slice(100, 200)}
_MICRO_BATCHES = "one GPU, micro-batches"
_EXCHANGES = {  # what each folder's version does with the gradients
    "in_backward": "in the backward pass, messages of 25 MiB",
    "few_8": "the same, on 8 multiprocessors",
    "few_4": "the same, on 4 multiprocessors",
    "after_25": "after it, messages of 25 MiB",
    "after_256": "after it, messages of 256 MiB",
    "none": "never",
}
_SMALL_STEPS = {"in_backward": "in the backward pass", "after": "after it"}
_JPEG_RUNS = {
    "alone": "one GPU, the others idle",
    "beside": "one GPU, a run on each of the others too",
    "together": "four GPUs",
    "deep": "four GPUs, 8 batches prefetched instead of 2",
}
_JPEG_VERSIONS = {
    "one_synthetic": "one GPU, synthetic data",
    "one_before": "one GPU, before both changes",
    "one_not_reserved": "one GPU, workers write batches to memory that the rank maps once",
    "one": "one GPU, nvJPEG's memory is reserved too",
    "two_synthetic": "two GPUs, synthetic data",
    "two_before": "two GPUs, before both changes",
    "two": "two GPUs, after both",
}
_JPEGS_ON_ONE = {
    "one_synthetic": "one GPU, 512 images a step, synthetic data",
    "one": "one GPU, 512 images a step, JPEGs",
}
_JPEGS_READ_AHEAD = _JPEGS_ON_ONE | {
    "one_1632_synthetic": "one GPU, 1,632 images a step, synthetic data",
    "one_1632": "one GPU, 1,632 images a step, JPEGs",
    "two_synthetic": "two GPUs, 512 images a step each, synthetic data",
    "two": "two GPUs, 512 images a step each, JPEGs",
}
_JPEGS_ON_FOUR = _JPEGS_ON_ONE | {
    "four_synthetic": "four GPUs, 512 images a step each, synthetic data",
    "four": "four GPUs, 512 images a step each, JPEGs",
}
_Columns = dict[str, Callable[[Mapping[str, Any]], str]]  # of a table: what each shows of a run's configuration


def tables(root: Path) -> dict[str, str]:
    """Return the tables in Markdown by the name of their place on the page."""
    workload: _Columns = {"workload": lambda config: config["workload"]["title"]}
    network: _Columns = {
        "network": lambda config: config["recipe"]["training"]["network"],
        "precision": lambda config: config["precision"]["name"],
    }
    batch_per_gpu: _Columns = {"batch per GPU": lambda config: f"{_global_batch(config) // config['gpus']:,}"}
    global_batch: _Columns = {"global batch": lambda config: f"{_global_batch(config):,}"}
    scaling, bf16 = read_ended(root / "scaling"), read_ended(root / "bf16")
    in_bf16 = {(record.config["workload"]["name"], record.config["gpus"]) for record in bf16}
    seventh = read_ended(root / "seventh")
    return {
        "training": _training(read_ended(root / "training")),
        "losses": _losses(root / "losses.jsonl"),
        **{name: _throughput(root / name, workload | batch_per_gpu) for name in ("seventh", "scaling", "in_backward")},
        **{name: _throughput(root / name, network | batch_per_gpu) for name in ("networks", "links", "first_plans")},
        "exchange": _steps(
            "gradients exchanged", {name: read_ended(root / "exchange" / folder) for folder, name in _EXCHANGES.items()}
        ),
        "waiting": _steps(
            "runs",
            {
                "one GPU": [record for record in scaling if record.config["gpus"] == 1],
                "4 GPUs, which exchange 128 bytes": read_ended(root / "waiting"),
                "4 GPUs": [record for record in scaling if record.config["gpus"] == 4],
            },
        ),
        "messages": _steps(
            "number format of the messages",
            {
                "fp32": [each for each in seventh if (each.config["workload"]["name"], each.config["gpus"]) in in_bf16],
                "bf16": bf16,
            },
        ),
        "small_steps": _steps(
            "gradients exchanged",
            {name: read_ended(root / "small_steps" / folder) for folder, name in _SMALL_STEPS.items()},
        ),
        "strong": _throughput(root / "strong", workload | global_batch),
        "jpegs": _jpegs(root / "jpegs", _JPEG_RUNS),
        "jpegs_versions": _jpegs(root / "jpegs_versions", _JPEG_VERSIONS),
        "jpegs_read_ahead": _jpegs(root / "jpegs_read_ahead", _JPEGS_READ_AHEAD),
        "jpegs_on_four": _jpegs(root / "jpegs_on_four", _JPEGS_ON_FOUR),
    }


def _training(records: Sequence[RunRecord]) -> str:
    runs = seed_outcomes.tabulate(records)
    runs["epoch_seconds"] = list(map(seed_outcomes.epoch_seconds, records))
    runs["workload"] = [record.config["workload"]["title"] for record in records]
    runs["gpus"] = [record.config["gpus"] for record in records]
    rows = []
    for workload, same in runs.groupby("workload", sort=False):
        for gpus, group in same.groupby("gpus"):
            batches = group.record.map(lambda record: record.config["recipe"]["global_batch_size"])
            step = f"{(batches / group.rate).median() * 1e3:.3g} ms"
            cells = _means(group) if gpus == 1 else _ratios(group, same[same.gpus == 1])
            rows.append([str(workload), f"{gpus}", _count(group), step, *cells])
    header = ["workload", "GPUs", "runs", "step", "epochs", "equivalence margin", "time per epoch", "time-to-train"]
    return study_page.markdown_table([*header, "energy to target"], rows)


def _means(runs: pd.DataFrame) -> list[str]:
    """Return the geometric means of runs on one GPU."""
    columns: dict[str, Callable[[float], str]] = {
        "fractional": "{:.3g}".format,
        "epoch_seconds": "{:.3g} s".format,
        "seconds": "{:.3g} s".format,
        "joules": lambda joules: f"{joules / 1e3:.3g} kJ",
    }
    epochs, *others = (study_page.mean(runs[column], show) for column, show in columns.items())
    return [epochs, "", *others]


def _ratios(runs: pd.DataFrame, one_gpu: pd.DataFrame) -> list[str]:
    """Return the ratios of the means to those of one GPU, and the margin within which their epochs are equal."""
    columns = ("fractional", "epoch_seconds", "seconds", "joules")
    epochs, *others = (study_page.ratio(runs[column], one_gpu[column]) for column in columns)
    sides = (list(side.fractional.dropna()) for side in (runs, one_gpu))
    bounds = geometric_ratio(*sides, level=_EQUIVALENCE_LEVEL)
    margin = f"{max(bounds.high, 1 / bounds.low) - 1:.1%}" if bounds.is_bounded else ""
    return [epochs, margin, *others]


def _losses(path: Path) -> str:
    """Return how far the losses of each workload are from those of one GPU in bf16 with the same seed.

    Runs on one GPU in micro-batches of a rank's size have the statistics of several GPUs in batch normalization.
    """
    runs: dict[str, dict[str, list[float]]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        run = json.loads(line)
        overrides = dict(word.partition("=")[::2] for word in run["run"].split())
        label = "another seed" if overrides.get("seed", "1") != "1" else overrides["precision"]
        label = f"{run['gpus']} GPUs" if run["gpus"] > 1 else label
        label = _MICRO_BATCHES if "tuning.micro_batch_size" in overrides else label
        workload = run["workload"]
        if overrides.get("recipe.training.dropout") == "0":
            workload += ", no dropout"
        runs.setdefault(workload, {})[label] = run["losses"]
    rows = []
    for workload, losses in runs.items():
        references = {"one GPU": losses.pop("bf16"), _MICRO_BATCHES: losses.pop(_MICRO_BATCHES, None)}
        for label, own in losses.items():
            for reference, base in references.items():
                if base and (reference == "one GPU" or label.endswith("GPUs")):
                    rows.append([workload, label, reference, *_differences(own, base)])
    return study_page.markdown_table(["workload", "losses of", "against", *_STEPS], rows)


def _differences(losses: Sequence[float], base: Sequence[float]) -> list[str]:
    """Return the median relative difference of some steps."""
    differences = np.abs(np.array(losses) / np.array(base) - 1)
    return [f"{np.median(differences[steps]):.1e}" for steps in _STEPS.values()]


def _throughput(folder: Path, columns: _Columns) -> str:
    """Return a row for each setting: its rates by number of GPUs, and the effect of GPU peer-to-peer transfers."""
    settings: dict[tuple[str, ...], defaultdict[tuple[int, bool], list[RunRecord]]] = {}
    for record in read_ended(folder):
        config = record.config
        runs = settings.setdefault(tuple(column(config) for column in columns.values()), defaultdict(list))
        runs[config["gpus"], config["peer_to_peer"]].append(record)
    counts = sorted({gpus for runs in settings.values() for gpus, _ in runs if gpus > 1})
    compared = [gpus for gpus in counts if any((gpus, False) in runs for runs in settings.values())]
    rows = []
    for setting, runs in settings.items():
        row = [*setting, _rate(runs[1, True])]
        for gpus in counts:
            row += [_rate(runs[gpus, True]), study_page.ratio(rates(runs[gpus, True]), rates(runs[1, True]))]
        row += [study_page.ratio(rates(runs[gpus, False]), rates(runs[gpus, True])) for gpus in compared]
        rows.append(row)
    header = [*columns, "one GPU"]
    header += [name for gpus in counts for name in (f"{gpus} GPUs", f"{gpus} GPUs to one")]
    return study_page.markdown_table([*header, *(f"{gpus} GPUs, NVLink off to on" for gpus in compared)], rows)


def _jpegs(folder: Path, names: Mapping[str, str]) -> str:
    """Return the speed per GPU of runs that read JPEGs, and the share of training for which they waited for batches."""
    rows = []
    for name, label in names.items():
        results = [record.throughput for record in read_ended(folder / name) if record.throughput]
        per_gpu = [result.samples_per_second / result.gpus for result in results]
        waits = [result.data_wait_seconds / result.train_seconds for result in results]
        rows.append([label, f"{len(results)}", span(per_gpu, "{:,.0f}".format), span(waits, "{:.1%}".format)])
    return study_page.markdown_table(["run", "runs", "samples/s on each GPU", "waiting for batches"], rows)


def _steps(label: str, groups: Mapping[str, Sequence[RunRecord]]) -> str:
    """Return the mean milliseconds of a training step by workload, by group of runs; `label` heads the groups."""
    times: dict[str, defaultdict[str, list[float]]] = {}
    for name, records in groups.items():
        times[name] = defaultdict(list)
        for record in records:
            if record.throughput:
                times[name][record.config["workload"]["title"]].append(record.throughput.train_ms)
    workloads = sorted({workload for by_workload in times.values() for workload in by_workload})
    rows = [
        [name, *(f"{statistics.mean(own):.4g} ms" if (own := by_workload[workload]) else "" for workload in workloads)]
        for name, by_workload in times.items()
    ]
    return study_page.markdown_table([label, *workloads], rows)


def _global_batch(config: Mapping[str, Any]) -> int:
    return int(config["recipe"]["global_batch_size"])


def _rate(records: Sequence[RunRecord]) -> str:
    """Return the mean rate of runs, or the states of runs without one, such as "out of memory"."""
    if not (measured := rates(records)):
        return ", ".join(sorted({record.state.value for record in records}))
    in_tokens = any(record.throughput and record.throughput.tokens_per_second for record in records)
    return study_page.mean(measured, "{:,.0f}".format) + (" tokens/s" if in_tokens else " samples/s")


def rates(records: Sequence[RunRecord]) -> list[float]:
    """Return tokens per second of text, else samples per second, of the runs that have a result."""
    measured = (record.throughput for record in records if record.throughput)
    return [each.tokens_per_second or each.samples_per_second for each in measured]


def reference_speeds(root: Path) -> str:
    """Return the speed of each reference recipe on one GPU, and beside it that of an H100 in performance.csv."""
    runs: defaultdict[str, list[RunRecord]] = defaultdict(list)
    folders = ("in_backward", "in_backward_strong", "reference")
    for record in itertools.chain.from_iterable(read_ended(root / name) for name in folders):
        if record.config["gpus"] == 1:
            runs[record.config["workload"]["name"]].append(record)
    rows = []
    for workload, records in runs.items():
        batch, own = _global_batch(records[0].config), rates(records)
        (h100,) = (
            row
            for row in read_measurements()
            if (row.workload, row.recipe, row.variant, row.data) == (workload, "reference", "", "synthetic")
            and (row.gpu, row.gpus, row.precision, row.batch) == ("H100", 1, "bf16", batch)
            and row.quantity == TRAINING
        )
        row = [records[0].config["workload"]["title"], f"{batch:,}", f"{len(own)}", _rate(records)]
        row += [f"{max(own) / min(own) - 1:.1%}", f"{h100.value:,.0f} {h100.unit.replace('images', 'samples')}"]
        rows.append([*row, f"{h100.date} {'' if h100.current else '†'}".strip(), study_page.ratio(own, [h100.value])])
    header = ["workload", "batch", "runs", "H200", "runs differ by", "H100", "measured on", "H200 over H100"]
    return study_page.markdown_table(header, rows)


def _count(runs: pd.DataFrame) -> str:
    failed = int((~runs.reached.astype(bool)).sum())
    return f"{len(runs)} ({failed} failed)" if failed else f"{len(runs)}"


def main() -> int:
    """Write the page, or compare it with what would be written."""
    check = study_page.only_checks(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        page = study_page.fill(PAGE.read_text(), tables(study_page.unpack(ARCHIVE, Path(folder))))
    return study_page.write_or_compare({PAGE: page}, check=check)


if __name__ == "__main__":
    sys.exit(main())

"""Write the tables of docs/studies/multi_gpu.md from the runs in docs/studies/multi_gpu.tar.xz.

    .venv/bin/python -P scripts/measure/multi_gpu_study.py [--check]

The archive is unpacked to a temporary folder. With --check nothing is written, and the exit code is 1 if the page
differs. In the archive, `training` holds runs to the target at one global batch size, `scaling` and `networks` hold
throughput runs at one batch size per GPU, and `losses.jsonl` the lines of scripts/measure/losses.py.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from timetrial.runner.record.run_record import RunRecord
from timetrial.runner.results.analysis.intervals import geometric_mean, geometric_ratio
from timetrial.scripts.measure import seed_outcomes, study_page

PAGE, ARCHIVE = study_page.STUDIES / "multi_gpu.md", study_page.STUDIES / "multi_gpu.tar.xz"
_NAMES = {
    "ncf": "NCF",
    "gnmt": "GNMT",
    "gpt": "GPT",
    "ssd": "SSD",
    "resnet50": "ResNet-50",
    "transformer": "Transformer",
    "maskrcnn": "Mask R-CNN",
}
_EQUALITY_LEVEL = 0.9  # two one-sided tests at 5%
_WINDOWS = {"step 1": slice(0, 1), "2 to 10": slice(1, 10), "11 to 100": slice(10, 100), "101 to 200": slice(100, 200)}
_SPLIT = "one GPU, micro-batches"


def tables(root: Path) -> dict[str, str]:
    """Return the tables in Markdown by the name of their place on the page."""
    return {
        "training": _training(seed_outcomes.read_ended(root / "training")),
        "losses": _losses(root / "losses.jsonl"),
        "scaling": _throughput(root / "scaling", ("workload",), lambda config: (_NAMES[config["workload"]["name"]],)),
        "networks": _throughput(
            root / "networks",
            ("network", "precision"),
            lambda config: (config["recipe"]["training"]["network"], config["precision"]["name"]),
        ),
    }


def _training(records: Sequence[RunRecord]) -> str:
    runs = seed_outcomes.tabulate(records)
    runs["pace"] = list(map(seed_outcomes.epoch_seconds, records))
    runs["workload"] = [record.config["workload"]["name"] for record in records]
    runs["gpus"] = [record.config["gpus"] for record in records]
    rows = []
    for workload, name in _NAMES.items():
        sides = dict(iter(runs[runs.workload == workload].groupby("gpus")))
        for gpus, side in sides.items():
            rows.append([name, f"{gpus}", _count(side), *_training_cells(side, sides.get(1), is_baseline=gpus == 1)])
    header = ["workload", "GPUs", "runs", "step", "epochs", "margin of equality", "time per epoch", "time-to-train"]
    return study_page.markdown_table([*header, "energy to target"], rows)


def _training_cells(side: pd.DataFrame, one_gpu: pd.DataFrame | None, *, is_baseline: bool) -> list[str]:
    """Return the figures of runs on one GPU, or the ratios of others to them, with 95% intervals."""
    batches = side.record.map(lambda record: record.config["recipe"]["global_batch_size"])
    step = f"{(batches / side.rate).median() * 1e3:.3g} ms"
    columns = ("fractional", "pace", "seconds", "joules")
    if is_baseline or one_gpu is None:
        units = {"fractional": (1, ""), "pace": (1, " s"), "seconds": (1, " s"), "joules": (1e3, " kJ")}
        known = {name: side[name].dropna() for name in columns}
        epochs, *others = (
            f"{geometric_mean(known[name]).estimate / unit:.3g}{symbol}" if len(known[name]) else ""
            for name, (unit, symbol) in units.items()
        )
        return [step, epochs, "", *others]
    pairs = {name: (side[name].dropna(), one_gpu[name].dropna()) for name in columns}
    epochs, *others = (f"{geometric_ratio(*pair)}" if all(map(len, pair)) else "" for pair in pairs.values())
    narrow = geometric_ratio(*pairs["fractional"], level=_EQUALITY_LEVEL)
    return [step, epochs, f"{max(narrow.high, 1 / narrow.low) - 1:.1%}", *others]


def _losses(path: Path) -> str:
    """Return how far the losses of each workload are from those of one GPU, by what differs between the two runs.

    Runs on one GPU in micro-batches of a rank's size have the statistics of several in batch normalization.
    """
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    runs: dict[str, dict[str, list[float]]] = {}
    for line in lines:
        overrides = dict(word.partition("=")[::2] for word in line["run"].split())
        different = "another seed" if overrides.get("seed", "1") != "1" else overrides["precision"]
        different = f"{line['gpus']} GPUs" if line["gpus"] > 1 else different
        different = _SPLIT if "tuning.micro_batch_size" in overrides else different
        runs.setdefault(overrides["recipe"].partition("/")[0], {})[different] = line["losses"]
    rows = []
    for workload in filter(runs.__contains__, _NAMES):
        whole, split = runs[workload].pop("bf16"), runs[workload].pop(_SPLIT, None)
        for different, losses in runs[workload].items():
            rows.append([_NAMES[workload], different, "one GPU", *_distances(losses, whole)])
            if split and different.endswith("GPUs"):
                rows.append([_NAMES[workload], different, _SPLIT, *_distances(losses, split)])
    return study_page.markdown_table(["workload", "losses of", "against", *_WINDOWS], rows)


def _distances(losses: Sequence[float], base: Sequence[float]) -> list[str]:
    """Return the median relative distance in each window of steps."""
    distances = np.abs(np.array(losses) / np.array(base) - 1)
    return [f"{np.median(distances[window]):.1e}" for window in _WINDOWS.values()]


def _throughput(folder: Path, keys: Sequence[str], key_of: Callable[[Mapping], tuple[str, ...]]) -> str:
    """Return a row for each setting: the rate on one GPU and, on more, the multiple of it; then without peer access."""
    settings: dict[tuple[str, ...], dict[tuple[int, bool], list[RunRecord]]] = {}
    for record in seed_outcomes.read_ended(folder):
        config = record.config
        batch = config["recipe"]["global_batch_size"] // config["gpus"]
        setting = settings.setdefault((*key_of(config), f"{batch:,}"), {})
        setting.setdefault((config["gpus"], config["peer_to_peer"]), []).append(record)
    counts = sorted({gpus for setting in settings.values() for gpus, _ in setting if gpus > 1})
    without = [gpus for gpus in counts if any((gpus, False) in setting for setting in settings.values())]
    rows = []
    for setting, cells in settings.items():
        rates = {key: _rates(records) for key, records in cells.items()}
        one_gpu = rates.get((1, True), [])
        row = [*setting, *_unit(cells), _mean(cells.get((1, True)), one_gpu)]
        for gpus in counts:
            row += [_mean(cells.get((gpus, True)), rates.get((gpus, True))), _ratio(rates.get((gpus, True)), one_gpu)]
        row += [_ratio(rates.get((gpus, False)), rates.get((gpus, True))) for gpus in without]
        rows.append(row)
    header = [*keys, "batch per GPU", "per second", "one GPU"]
    header += [word for gpus in counts for word in (f"{gpus} GPUs", "to one")]
    return study_page.markdown_table([*header, *(f"{gpus}, without NVLink to with" for gpus in without)], rows)


def _rates(records: Sequence[RunRecord]) -> list[float]:
    """Return tokens per second of text, else samples per second, of the runs that did not fail."""
    measured = (record.throughput for record in records if record.throughput)
    return [each.tokens_per_second or each.samples_per_second for each in measured]


def _unit(cells: Mapping[object, Sequence[RunRecord]]) -> set[str]:
    """Return the unit of the rates of one setting, one text for all."""
    measured = [record.throughput for records in cells.values() for record in records if record.throughput]
    return {"tokens" if any(each.tokens_per_second for each in measured) else "samples"}


def _mean(records: Sequence[RunRecord] | None, rates: Sequence[float] | None) -> str:
    """Return the mean of the rates, or how runs without a rate ended, such as "out of memory"."""
    if not rates:
        return ", ".join(sorted({record.state.value for record in records or ()}))
    return f"{geometric_mean(rates).estimate:,.0f}"


def _ratio(rates: Sequence[float] | None, base: Sequence[float] | None) -> str:
    return f"{geometric_ratio(rates, base)}" if rates and base else ""


def _count(side: pd.DataFrame) -> str:
    failed = int((~side.reached.astype(bool)).sum())
    return f"{len(side)} ({failed} failed)" if failed else f"{len(side)}"


def main() -> int:
    """Write the page, or compare it with what would be written."""
    check = study_page.only_checks(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        page = study_page.fill(PAGE.read_text(), tables(study_page.unpack(ARCHIVE, Path(folder))))
    return study_page.write_or_compare({PAGE: page}, check=check)


if __name__ == "__main__":
    sys.exit(main())

"""How fast the GPUs of runs were clocked while they trained, and how much power they drew, from telemetry.csv."""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from timetrial.runner.record.record_file import read_record
from timetrial.runner.record.telemetry_samples import TelemetrySample, read_samples
from timetrial.scripts.measure.study_page import markdown_table

_BUSY_PERCENT = 50.0  # utilization above which a sample counts


def clock_table(folder: Path, counts: Sequence[int]) -> str:
    """Return a row for each workload of the runs below a folder, with two columns for each of these numbers of GPUs.

    A clock is the mean over all samples, with the mean over GPUs of its standard deviation on one of them.
    """
    found: dict[str, dict[int, list[list[TelemetrySample]]]] = {}
    for path in sorted(folder.rglob("status.json")):
        if record := read_record(path.parent):
            gpus = found.setdefault(record.config["workload"]["title"], {})
            gpus.setdefault(record.config["gpus"], []).extend(_busy_samples(path.parent))
    rows = [
        [title, *(cell for count in counts for cell in _cells(gpus.get(count, [])))] for title, gpus in found.items()
    ]
    names = [f"{count} GPUs" if count > 1 else "one GPU" for count in counts]
    return markdown_table(["workload", *(f"{what}, {name}" for name in names for what in ("clock", "power"))], rows)


def _busy_samples(run_dir: Path) -> Iterator[list[TelemetrySample]]:
    """Yield the samples of each GPU in training, if it has several."""
    for samples in read_samples(run_dir).values():
        busy = [
            sample
            for sample in samples
            if sample.phase == "train" and sample.values.get("utilization_percent", 0.0) > _BUSY_PERCENT
        ]
        if len(busy) > 1:
            yield busy


def _cells(gpus: Sequence[Sequence[TelemetrySample]]) -> tuple[str, str]:
    if not gpus:
        return "", ""
    clocks = [[sample.values["core_mhz"] for sample in samples] for samples in gpus]
    watts = [sample.values["power_watts"] for samples in gpus for sample in samples]
    spread = statistics.mean(map(statistics.stdev, clocks))
    mean = statistics.mean(clock for own in clocks for clock in own)
    return f"{mean:,.0f} ± {spread:.0f} MHz", f"{statistics.mean(watts):.0f} W"

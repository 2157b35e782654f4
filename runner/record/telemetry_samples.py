"""Read the samples of telemetry.csv and relate them to the clock of the run."""

import csv
import io
import itertools
import math
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..core.found_files import UnreadableFile, open_regular

# Samples that are further apart than this, or twice the usual interval, leave a gap, as between two attempts.
MAX_GAP_SECONDS = 5.0
_MAX_BYTES = 1 << 29  # a week of samples of eight GPUs, one a second
_PARTS, _PART_BYTES = 64, 1 << 12  # of a longer file, from which the power is read
_BUSY_PERCENT = 50.0  # utilization above which a sample counts as under load


class TelemetrySample(NamedTuple):
    """A row of telemetry.csv: `values` holds the numeric columns that the source reported."""

    time: float
    phase: str
    source: str
    values: dict[str, float]
    throttle_reasons: str


SamplesByDevice = dict[str, list[TelemetrySample]]  # by node and device, such as "0/host"


def read_samples(run_dir: Path) -> SamplesByDevice:
    """Return the samples of all nodes in the order of their rows; incomplete rows and enormous files are skipped."""
    samples: SamplesByDevice = {}
    for path in sorted(run_dir.glob("telemetry*.csv")):
        node = path.stem.removeprefix("telemetry").lstrip("_") or "0"
        if path.stat().st_size > _MAX_BYTES:
            continue
        with (
            io.TextIOWrapper(open_regular(path), encoding="utf-8", errors="replace", newline="") as file,
            suppress(csv.Error),  # a line that no sampler writes: what follows is not read
        ):
            for row in csv.DictReader(file):
                sample = _parse_row(row)
                if sample:
                    samples.setdefault(f"{node}/{row['device']}", []).append(sample)
    return samples


def read_power(run_dir: Path, start: float, stop: float, most: int) -> list[tuple[float, float]]:
    """Return (seconds after `start`, watts of all GPUs) between two wall times: at most `most` means over equal spans.

    At most 256 KiB are read of each file, in evenly spaced parts; files that cannot be read are passed over.
    """
    sums: dict[int, list[float]] = {}  # of each span: samples, seconds, watts
    devices = set()
    for path in run_dir.glob("telemetry*.csv"):
        with suppress(UnreadableFile):
            for time, device, watts in _read_watts(path):
                if start <= time < stop:
                    devices.add((path, device))
                    span = sums.setdefault(int((time - start) / (stop - start) * most), [0, 0.0, 0.0])
                    span[0], span[1], span[2] = span[0] + 1, span[1] + time - start, span[2] + watts
    means = [(seconds / count, watts / count * len(devices)) for _, (count, seconds, watts) in sorted(sums.items())]
    return [mean for mean in means if math.isfinite(mean[1])]


def _read_watts(path: Path) -> Iterator[tuple[float, str, float]]:
    """Yield time, device and power of samples of GPUs; incomplete rows are skipped."""
    with open_regular(path) as file:
        columns = file.readline(_PART_BYTES).decode(errors="replace").rstrip().split(",")
        if not {"time", "device", "power_watts"} <= set(columns):
            return
        time, device, watts = (columns.index(name) for name in ("time", "device", "power_watts"))
        size = os.fstat(file.fileno()).st_size
        is_short = size <= _PARTS * _PART_BYTES
        for part in range(1 if is_short else _PARTS):
            file.seek(part * size // _PARTS)
            for line in file.read(size if is_short else _PART_BYTES).decode(errors="replace").splitlines():
                cells = line.split(",")
                with suppress(ValueError):
                    if len(cells) == len(columns) and cells[watts]:
                        yield float(cells[time]), cells[device], float(cells[watts])


def _parse_row(row: Mapping[str | None, Any]) -> TelemetrySample | None:
    if None in row or None in row.values():  # too many or too few fields
        return None
    columns = dict(row)
    try:
        time, phase, source = float(columns.pop("time")), columns.pop("phase"), columns.pop("source")
        throttle_reasons = columns.pop("throttle_reasons")
        del columns["device"]
        values = {str(name): float(value) for name, value in columns.items() if value}
    except (KeyError, ValueError):
        return None
    if not all(map(math.isfinite, (time, *values.values()))):
        return None
    return TelemetrySample(time, phase, source, values, throttle_reasons)


def with_value(samples: Iterable[TelemetrySample], name: str) -> list[TelemetrySample]:
    """Return the samples that have a value in column `name`."""
    return [sample for sample in samples if name in sample.values]


def spans_on_clock(samples: Sequence[TelemetrySample]) -> Iterator[tuple[TelemetrySample, TelemetrySample]]:
    """Yield consecutive samples without a gap, the first of which is on the clock."""
    longest = max(MAX_GAP_SECONDS, 2 * sampling_interval([samples]))
    for before, after in itertools.pairwise(samples):
        if before.phase and 0 < after.time - before.time <= longest:
            yield before, after


def total_seconds(spans: Iterable[tuple[TelemetrySample, TelemetrySample]]) -> float:
    """Return the summed duration of spans."""
    return sum(after.time - before.time for before, after in spans)


def sampling_interval(devices: Iterable[Sequence[TelemetrySample]]) -> float:
    """Return the median number of seconds between two samples; 0 for fewer than two samples."""
    intervals = [after.time - before.time for samples in devices for before, after in itertools.pairwise(samples)]
    return statistics.median(intervals) if intervals else 0.0


def counter_increase(counter: str) -> Callable[[TelemetrySample, TelemetrySample], float]:
    """Return a function of two samples: the increase of a counter; 0 if it was reset in between."""
    return lambda before, after: max(after.values[counter] - before.values[counter], 0.0)


def under_load(samples: Iterable[TelemetrySample]) -> list[TelemetrySample]:
    """Return the training samples of a busy GPU that report its core clock."""
    training = (sample for sample in samples if sample.phase == "train")
    busy = (sample for sample in training if sample.values.get("utilization_percent", 100) > _BUSY_PERCENT)
    return with_value(busy, "core_mhz")


def max_fraction(devices: Iterable[Sequence[TelemetrySample]], predicate: Callable[[TelemetrySample], bool]) -> float:
    """Return the fraction of a device's samples on the clock that satisfy `predicate`, of the device with the most."""
    fractions = []
    for samples in devices:
        on_clock = [sample for sample in samples if sample.phase]
        fractions.append(sum(map(predicate, on_clock)) / len(on_clock) if on_clock else 0.0)
    return max(fractions, default=0.0)

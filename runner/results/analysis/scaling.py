"""Scaling over the number of accelerators, and speed as a linear function of an accelerator's peak."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ...hardware.datasheets import find_datasheet
from ..parse.external import ExternalMeasurement, select_metric
from . import stats
from .groups import RunGroup
from .stats import LinearFit

_SUPER_LINEAR = 1.05  # efficiency above which scaling is super-linear
_PEAKS = (("FP32 peak", "TFLOP/s", "peak_tflops"), ("memory bandwidth", "GB/s", "bandwidth_gb_s"))


@dataclass(frozen=True)
class Scaling:
    """Speedup and efficiency of a workload by number of accelerators, relative to the smallest number.

    `source` is the study of external measurements, or `RunGroup.workload`. `basis` is "time-to-train" or "throughput".
    """

    title: str
    source: str
    workload: str
    accelerator: str
    basis: str
    counts: list[int]
    speedup: list[float]
    efficiency: list[float]
    super_linear: list[bool]


@dataclass(frozen=True)
class PeakFit:
    """Speed of several accelerators as a linear function through the origin of one of their peaks.

    The speed of external measurements is in passes per second, that of run groups in samples per second per
    accelerator.
    """

    workload: str
    accelerators: list[str]
    peaks: list[float]
    speeds: list[float]
    line: LinearFit
    peak_name: str
    peak_unit: str
    speed_unit: str


def compute_scalings(groups: Iterable[RunGroup], measurements: Sequence[ExternalMeasurement]) -> list[Scaling]:
    """Return the scaling of run groups by time-to-train, and of measurements by throughput or by published speedup."""
    return [*_scale_groups(groups), *_scale_throughput(measurements), *_scale_speedups(measurements)]


def _scale_groups(groups: Iterable[RunGroup]) -> list[Scaling]:
    series: dict[tuple[str, str, str, str, str], list[RunGroup]] = {}
    for group in groups:
        run = group.runs[0]
        if run.num_accelerators and run.accelerator and group.minutes:
            key = (group.workload, group.model, group.submitter, run.accelerator, run.precision)
            series.setdefault(key, []).append(group)
    scalings = []
    for (workload, model, submitter, accelerator, precision), same in series.items():
        minutes = {int(group.runs[0].num_accelerators or 0): group.mean_minutes.estimate for group in same}
        if len(minutes) > 1:
            vendor = "" if accelerator.startswith(submitter) else submitter
            title = " ".join(part for part in (vendor, accelerator, precision) if part)
            labels = (title, workload, model, accelerator, "time-to-train")
            scalings.append(_scaling(labels, minutes, lambda value: 1 / value))
    return scalings


def _scale_throughput(measurements: Sequence[ExternalMeasurement]) -> list[Scaling]:
    series: dict[tuple[str, str, str, str, str], list[ExternalMeasurement]] = {}
    for entry in select_metric(measurements, "samples_per_second"):
        key = (entry.workload, entry.accelerator, entry.precision, entry.interconnect, entry.study)
        series.setdefault(key, []).append(entry)
    scalings = []
    for key, entries in series.items():
        workload, accelerator, precision, interconnect, study = key
        if interconnect and not any(entry.num_accelerators == 1 for entry in entries):
            # A single accelerator is measured without an interconnect.
            without = series.get((workload, accelerator, precision, "", study), ())
            entries += [entry for entry in without if entry.num_accelerators == 1]
        for same in _split_by_batch(entries):
            rates = {entry.num_accelerators: entry.value or 0.0 for entry in same}
            if len(rates) > 1:
                title = ", ".join(part for part in (workload, accelerator, precision, interconnect) if part)
                labels = (title, study, workload, accelerator, "throughput")
                scalings.append(_scaling(labels, rates, lambda rate: rate))
    return scalings


def _scale_speedups(measurements: Sequence[ExternalMeasurement]) -> list[Scaling]:
    series: dict[tuple[str, str, str], dict[int, float]] = {}
    for entry in select_metric(measurements, "speedup"):
        if entry.baseline == f"1 x {entry.accelerator}":
            speedups = series.setdefault((entry.study, entry.workload, entry.accelerator), {1: 1.0})
            speedups[entry.num_accelerators] = entry.value or 0.0
    return [
        _scaling((f"{workload}, {accelerator}", study, workload, accelerator, "time-to-train"), speedups, lambda x: x)
        for (study, workload, accelerator), speedups in series.items()
    ]


def _split_by_batch(entries: Sequence[ExternalMeasurement]) -> list[list[ExternalMeasurement]]:
    """Return one series, or one per batch size if a number of accelerators has several."""
    if len({entry.num_accelerators for entry in entries}) == len(entries):
        return [list(entries)]
    return [[entry for entry in entries if entry.batch == batch] for batch in {entry.batch for entry in entries}]


def _scaling(
    labels: tuple[str, str, str, str, str], values: dict[int, float], speed_of: Callable[[float], float]
) -> Scaling:
    counts = sorted(values)
    speedups = [speed_of(values[count]) / speed_of(values[counts[0]]) for count in counts]
    efficiencies = [speedup * counts[0] / count for speedup, count in zip(speedups, counts, strict=True)]
    return Scaling(*labels, counts, speedups, efficiencies, [efficiency > _SUPER_LINEAR for efficiency in efficiencies])


def fit_speed_to_peaks(measurements: Sequence[ExternalMeasurement], groups: Sequence[RunGroup]) -> list[PeakFit]:
    """Return a fit for every workload measured on at least three accelerators with a known FP32 peak or bandwidth."""
    fits = []
    for name, unit, metric in _PEAKS:
        fits += _fit_measurements(measurements, name, unit, metric)
        fits += _fit_groups(groups, name, unit, metric)
    return fits


def _fit_measurements(measurements: Sequence[ExternalMeasurement], name: str, unit: str, metric: str) -> list[PeakFit]:
    peaks = {
        (entry.study, entry.accelerator): entry.value or 0.0
        for entry in select_metric(measurements, metric)
        if entry.precision in ("fp32", "")
    }
    series: dict[tuple[str, str, str], list[ExternalMeasurement]] = {}
    for entry in select_metric(measurements, "milliseconds"):
        if entry.precision == "fp32" and (entry.study, entry.accelerator) in peaks:
            series.setdefault((entry.study, entry.workload, entry.task), []).append(entry)
    fits = []
    for (study, workload, task), entries in series.items():
        points = [
            (entry.accelerator, peaks[study, entry.accelerator], 1000 / (entry.value or math.inf)) for entry in entries
        ]
        fits += _fit(f"{workload}, {task}", points, name, unit, "passes per second")
    return fits


def _fit_groups(groups: Sequence[RunGroup], name: str, unit: str, metric: str) -> list[PeakFit]:
    workloads: dict[str, dict[str, tuple[str, float, float]]] = {}
    for group in groups:
        sheet = find_datasheet(group.runs[0].accelerator)
        if sheet is None or not group.throughput_per_accelerator:
            continue
        peak = sheet["tflops"].get("fp32") if metric == "peak_tflops" else sheet.get("bandwidth_gb_s")
        if peak:
            point = (sheet["name"], peak, group.throughput_per_accelerator)
            workloads.setdefault(group.workload, {}).setdefault(sheet["name"], point)
    fits = []
    for workload, points in workloads.items():
        fits += _fit(workload, list(points.values()), name, unit, "samples per second per accelerator")
    return fits


def _fit(
    workload: str, points: Sequence[tuple[str, float, float]], peak_name: str, peak_unit: str, speed_unit: str
) -> list[PeakFit]:
    if len(points) < 3:
        return []
    accelerators, peaks, speeds = (list(values) for values in zip(*points, strict=True))
    line = stats.fit_through_origin(peaks, speeds)
    return [PeakFit(workload, accelerators, peaks, speeds, line, peak_name, peak_unit, speed_unit)]

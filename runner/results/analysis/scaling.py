"""Scaling over the number of accelerators, and speed as a function of an accelerator's peak."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ...hardware.datasheets import find_datasheet
from ..parse.external import ExternalMeasurement, select_metric
from .groups import RunGroup
from .intervals import LEVEL, Interval, Sample, log_ratio
from .regression import LinearFit, PowerFit, fit_power_law, fit_through_origin

SUPER_LINEAR = 1.05
"""Efficiency above which scaling is super-linear if it has no confidence interval, because nothing was repeated."""
_PEAKS = (("FP32 peak", "TFLOP/s", "peak_tflops"), ("memory bandwidth", "GB/s", "bandwidth_gb_s"))


class ScalingBasis(StrEnum):
    """What grows with the number of accelerators."""

    TIME_TO_TRAIN = "time-to-train"
    THROUGHPUT = "throughput"


@dataclass(frozen=True)
class Scaling:
    """Speedup and efficiency of a workload by number of accelerators, relative to the smallest number.

    `source` is the study of external measurements, or `RunGroup.workload`.
    An efficiency has a confidence interval if both numbers of accelerators were measured at least twice.
    """

    title: str
    source: str
    workload: str
    accelerator: str
    basis: ScalingBasis
    counts: list[int]
    speedup: list[float]
    efficiency: list[Interval]

    @property
    def super_linear(self) -> list[bool]:
        """Whether each efficiency is above 1: its lower bound, or without one, itself by more than `SUPER_LINEAR`."""
        return [
            interval.low > 1 if interval.is_bounded else interval.estimate > SUPER_LINEAR
            for interval in self.efficiency
        ]


@dataclass(frozen=True)
class PeakFit:
    """Speed of several accelerators as a function of one of their peaks.

    `power_law` predicts further accelerators; `line` goes through the origin. The speed of external measurements is in
    passes per second, that of run groups in samples per second per accelerator.
    """

    workload: str
    accelerators: list[str]
    peaks: list[float]
    speeds: list[float]
    line: LinearFit
    power_law: PowerFit
    peak_name: str
    peak_unit: str
    speed_unit: str


_Labels = tuple[str, str, str, str, ScalingBasis]  # the first fields of Scaling


def compute_scalings(groups: Iterable[RunGroup], measurements: Sequence[ExternalMeasurement]) -> list[Scaling]:
    """Return the scaling of run groups by time-to-train, and of measurements by throughput or by published speedup."""
    return [*_scale_groups(groups), *_scale_throughput(measurements), *_scale_speedups(measurements)]


def _scale_groups(groups: Iterable[RunGroup]) -> Iterator[Scaling]:
    series: dict[tuple[str, str, str, str, str], list[RunGroup]] = {}
    for group in groups:
        run = group.runs[0]
        if run.num_accelerators and run.accelerator and group.minutes:
            key = (group.workload, group.model, group.submitter, run.accelerator, run.precision)
            series.setdefault(key, []).append(group)
    for (workload, model, submitter, accelerator, precision), same in series.items():
        vendor = "" if accelerator.startswith(submitter) else submitter
        for batch, groups_of_batch in _split_groups_by_batch(same):
            title = " ".join(part for part in (vendor, accelerator, precision, batch) if part)
            seconds = {_count(group): group.time_sample for group in groups_of_batch}
            labels = title, workload, model, accelerator, ScalingBasis.TIME_TO_TRAIN
            # The fastest of several groups of one number is fast by luck too (Bonferroni).
            yield _scale(labels, seconds, inverse=True, num_candidates=len(same) - len(groups_of_batch) + 1)


def _split_groups_by_batch(groups: Sequence[RunGroup]) -> Iterator[tuple[str, list[RunGroup]]]:
    """Yield one series, or if a number of accelerators has several groups, one per batch: global, and per accelerator.

    Of groups with the same number and the same batch, the fastest stands for it: a series shows the best results.
    """
    by_speed = sorted(groups, key=lambda group: group.mean_minutes.estimate, reverse=True)
    series = {"": {_count(group): group for group in by_speed}}
    if len(series[""]) < len(groups):
        series = {}
        for group in by_speed:
            batch, count = group.runs[0].global_batch_size, _count(group)
            for label in (f"batch {batch}", f"batch {batch / count:g} per accelerator") if batch else ("",):
                series.setdefault(label, {})[count] = group
    for label, by_count in series.items():
        if len(by_count) > 1:
            yield label, list(by_count.values())


def _count(group: RunGroup) -> int:
    return group.runs[0].num_accelerators or 0


def _scale_throughput(measurements: Sequence[ExternalMeasurement]) -> Iterator[Scaling]:
    """Yield the scaling of throughput; measurements of the same configuration are repeats."""
    series: dict[tuple[str, str, str, str, str, str], list[ExternalMeasurement]] = {}
    for entry in select_metric(measurements, "samples_per_second"):
        key = (entry.workload, entry.task, entry.accelerator, entry.precision, entry.interconnect, entry.study)
        series.setdefault(key, []).append(entry)
    for key, same in series.items():
        workload, task, accelerator, precision, interconnect, study = key
        entries = same
        if interconnect and not any(entry.num_accelerators == 1 for entry in same):
            # A single accelerator is measured without an interconnect.
            without = series.get((workload, task, accelerator, precision, "", study), ())
            entries = [*same, *(entry for entry in without if entry.num_accelerators == 1)]
        title = ", ".join(part for part in (workload, task, accelerator, precision, interconnect) if part)
        for rates in _split_by_batch(entries):
            if len(rates) > 1:
                yield _scale((title, study, workload, accelerator, ScalingBasis.THROUGHPUT), rates)


def _split_by_batch(entries: Sequence[ExternalMeasurement]) -> list[dict[int, Sample]]:
    """Return the rates by number of accelerators: one series, or one per batch if a number has several batches."""
    batches: dict[int, set[int | None]] = {}
    for entry in entries:
        batches.setdefault(entry.num_accelerators, set()).add(entry.batch)
    is_split = any(len(sizes) > 1 for sizes in batches.values())
    series: dict[int | None, dict[int, tuple[float, ...]]] = {}
    for entry in entries:
        rates = series.setdefault(entry.batch if is_split else None, {})
        rates[entry.num_accelerators] = (*rates.get(entry.num_accelerators, ()), entry.value or 0.0)
    return [{count: Sample(values) for count, values in rates.items()} for rates in series.values()]


def _scale_speedups(measurements: Sequence[ExternalMeasurement]) -> Iterator[Scaling]:
    series: dict[tuple[str, str, str], dict[int, Sample]] = {}
    for entry in select_metric(measurements, "speedup"):
        if entry.baseline == f"1 x {entry.accelerator}":
            speedups = series.setdefault((entry.study, entry.workload, entry.accelerator), {1: Sample((1.0,))})
            speedups[entry.num_accelerators] = Sample((entry.value or 0.0,))
    for (study, workload, accelerator), speedups in series.items():
        yield _scale((f"{workload}, {accelerator}", study, workload, accelerator, ScalingBasis.TIME_TO_TRAIN), speedups)


def _scale(
    labels: _Labels, samples: Mapping[int, Sample], *, inverse: bool = False, num_candidates: int = 1
) -> Scaling:
    """Return the scaling of speeds by number of accelerators; `inverse` if the samples are times.

    Intervals hold for the best of `num_candidates` samples of one number.
    """
    counts = sorted(samples)
    speedups = [Interval(1.0, math.nan, math.nan, len(samples[counts[0]].values))]
    for count in counts[1:]:
        pair = samples[count], samples[counts[0]]
        speedups.append(log_ratio(*(reversed(pair) if inverse else pair)).interval(1 - (1 - LEVEL) / num_candidates))
    efficiency = [speedup.scaled(counts[0] / count) for count, speedup in zip(counts, speedups, strict=True)]
    return Scaling(*labels, counts, [speedup.estimate for speedup in speedups], efficiency)


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
    accelerators, peaks, speeds = (list(values) for values in zip(*points, strict=True))
    if len(points) < 3 or len(set(peaks)) == 1:
        return []
    fits = fit_through_origin(peaks, speeds), fit_power_law(peaks, speeds)
    return [PeakFit(workload, accelerators, peaks, speeds, *fits, peak_name, peak_unit, speed_unit)]

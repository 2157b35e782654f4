"""Findings: sentences that warn the reader of a report or draw attention to something."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from ...core.found_files import UnreadableFile, make_visible
from ..parse.external import OWN_RUNS, ExternalMeasurement, select_metric
from .groups import RunGroup
from .intervals import LogEstimate, Sample, log_mean, rounding_floor
from .scaling import SUPER_LINEAR, PeakFit, Scaling, ScalingBasis
from .verdicts import ALONE, MARGIN, Levels, Verdict, decide

_MIN_PRECISION_EFFECT = 0.02  # a precision that changes the rate by less was probably not in effect
_MAX_SINGLE_DEVICE_EFFECT = 0.05  # an interconnect cannot change the rate of a single accelerator by more
_HALF_PRECISIONS = ("fp16", "bf16")


class FindingKind(StrEnum):
    """How urgent a finding is, the most urgent first."""

    BANNER = "banner"
    FLAG = "flag"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """A sentence about `subject`."""

    kind: FindingKind
    subject: str
    message: str


def list_unreadable(errors: Iterable[UnreadableFile]) -> list[Finding]:
    """Return a flag for each file that was passed over."""
    by_file = {error.path.absolute(): error for error in errors}
    return [
        Finding(FindingKind.FLAG, make_visible(str(error.path)), f"Passed over: {error}") for error in by_file.values()
    ]


def describe_speedup(speedup: LogEstimate, levels: Levels = ALONE) -> str:
    """Return a ratio of rates in words: equal within the margin, faster, slower, or that it cannot be told."""
    interval = speedup.interval(levels.difference)
    if not interval.is_bounded:
        return f"cannot tell ({interval.estimate:.3f} times, not repeated and so without a confidence interval)"
    verdict = decide(speedup, levels=levels)
    margin = f" within {MARGIN:.0%}" if verdict == Verdict.EQUAL else ""
    bounds = f"{levels.difference * 100:.3g}% CI: {interval.low:.3f} to {interval.high:.3f}"
    return f"{verdict}{margin} ({interval.estimate:.3f} times, {bounds})"


def check_precision(groups: Sequence[RunGroup]) -> list[Finding]:
    """Flag groups in half precision that are as fast as their fp32 counterpart: the switch probably had no effect."""
    settings: dict[tuple[object, ...], dict[str, RunGroup]] = {}
    for group in groups:
        run = group.runs[0]
        if run.precision and group.throughput_per_accelerator:
            key = (group.workload, group.system, run.accelerator, run.num_accelerators, run.global_batch_size)
            settings.setdefault(key, {})[run.precision] = group
    findings = []
    for by_precision in settings.values():
        full = by_precision.get("fp32")
        for precision in _HALF_PRECISIONS:
            half = by_precision.get(precision)
            if full is None or half is None:
                continue
            speedup = (half.throughput_per_accelerator or 0.0) / (full.throughput_per_accelerator or float("inf"))
            if abs(speedup - 1) < _MIN_PRECISION_EFFECT:
                message = (
                    f"{precision} speedup {speedup:.2f} over fp32: the precision switch very likely had no effect."
                )
                findings.append(Finding(FindingKind.FLAG, half.title, message))
    return findings


def check_measurements(
    measurements: Sequence[ExternalMeasurement], scalings: Sequence[Scaling], fits: Sequence[PeakFit]
) -> list[Finding]:
    """Return all findings about measurements, their scaling and their fits."""
    return [
        *(finding for scaling in scalings for finding in _check_scaling(scaling)),
        *check_epochs(measurements),
        # Own runs with and without peer-to-peer are paired by their whole configuration, in `throughput_groups`.
        *_check_interconnects([entry for entry in measurements if entry.source != OWN_RUNS]),
        *_pool_speedups(measurements),
        *_check_half_precision(measurements),
        *_list_outcomes(measurements),
        *(_describe_fit(fit) for fit in fits),
    ]


def _check_scaling(scaling: Scaling) -> Iterable[Finding]:
    reason = {
        ScalingBasis.TIME_TO_TRAIN: (
            "the epochs to converge must have decreased, so time-to-train reflects the recipe as well"
        ),
        ScalingBasis.THROUGHPUT: "the measurement with the fewest accelerators is probably too low",
    }[scaling.basis]
    points = zip(scaling.counts, scaling.speedup, scaling.efficiency, scaling.super_linear, strict=True)
    for count, speedup, efficiency, super_linear in points:
        if super_linear:
            factor = count / scaling.counts[0]
            certainty = (
                f"95% CI: {efficiency.low:.0%} to {efficiency.high:.0%}"
                if efficiency.is_bounded
                else f"not repeated, so without a confidence interval; flagged above {SUPER_LINEAR:.0%}"
            )
            message = (
                f"Super-linear scaling: {speedup:.1f} times faster with {factor:g} times the accelerators ({count}), "
                f"an efficiency of {efficiency.estimate:.0%} ({certainty})"
            )
            yield Finding(FindingKind.FLAG, scaling.title, f"{message}; {reason}.")


def check_epochs(measurements: Sequence[ExternalMeasurement]) -> Iterable[Finding]:
    """Yield a banner for each workload whose epochs to converge differ: its time-to-train compares recipes."""
    workloads: dict[tuple[str, str], list[ExternalMeasurement]] = {}
    for entry in select_metric(measurements, "epochs"):
        workloads.setdefault((entry.study, entry.workload), []).append(entry)
    for (_, workload), entries in workloads.items():
        values = [entry.value or 0.0 for entry in entries]
        if max(values) > 1.05 * min(values):
            yield Finding(
                FindingKind.BANNER,
                workload,
                f"These results cannot be compared by time-to-train: the epochs to converge differ by a factor of up "
                f"to {max(values) / min(values):.1f} ({_list_epochs(entries)}); compare the throughput.",
            )


def _list_epochs(entries: Sequence[ExternalMeasurement]) -> str:
    """Return such as "T4 x 1, 2: 12, 7; V100 x 1, 2: 16, 12"."""
    accelerators: dict[str, list[ExternalMeasurement]] = {}
    for entry in entries:
        accelerators.setdefault(entry.accelerator, []).append(entry)
    return "; ".join(
        f"{accelerator} x {', '.join(str(entry.num_accelerators) for entry in same)}: "
        f"{', '.join(f'{entry.value:g}' for entry in same)}"
        for accelerator, same in accelerators.items()
    )


_Configuration = tuple[str, str, str, int | None, int]


def _check_interconnects(measurements: Sequence[ExternalMeasurement]) -> Iterable[Finding]:
    """Yield the effect of each interconnect over all configurations measured with and without it."""
    for study in dict.fromkeys(entry.study for entry in measurements):
        rates: dict[_Configuration, dict[str, float]] = {}
        for entry in select_metric([entry for entry in measurements if entry.study == study], "samples_per_second"):
            key = (entry.workload, entry.accelerator, entry.precision, entry.batch, entry.num_accelerators)
            rates.setdefault(key, {})[entry.interconnect] = entry.value or 0.0
        for link in dict.fromkeys(name for by_link in rates.values() for name in by_link):
            pairs = {
                key: (by_link[link], without)
                for key, by_link in rates.items()
                if link in by_link and (without := by_link.get(f"no {link}"))
            }
            yield from _describe_interconnect(link, pairs)


def pool_by_workload(ratios: Mapping[_Configuration, float], floor: float = 0.0) -> LogEstimate | None:
    """Return the mean ratio over the workloads of configurations with several accelerators, None without any.

    Configurations of one workload are not independent, so the geometric mean of a workload is one observation.
    `floor` is that of `Sample`.
    """
    logs: dict[str, list[float]] = {}
    for (workload, *_, num_accelerators), ratio in ratios.items():
        if num_accelerators != 1:
            logs.setdefault(workload, []).append(math.log(ratio))
    return log_mean(Sample(tuple(math.exp(np.mean(values)) for values in logs.values()), floor)) if logs else None


def _describe_interconnect(link: str, rates: Mapping[_Configuration, tuple[float, float]]) -> Iterable[Finding]:
    """Yield the effect of `link`; `rates` are those with and without it."""
    ratios = {key: rate / without for key, (rate, without) in rates.items()}
    floor = max((math.hypot(*(rounding_floor([rate]) for rate in pair)) for pair in rates.values()), default=0.0)
    if effect := pool_by_workload(ratios, floor):
        num_configurations = sum(key[4] != 1 for key in ratios)
        yield Finding(
            FindingKind.NOTE,
            "interconnect",
            f"Several accelerators with {link} against without: {describe_speedup(effect)}, from {effect.n} workloads "
            f"in {num_configurations} configurations; the configurations of one workload count as one observation.",
        )
    single_device = {
        key: ratio for key, ratio in ratios.items() if key[4] == 1 and abs(ratio - 1) > _MAX_SINGLE_DEVICE_EFFECT
    }
    if single_device:
        listed = ", ".join(f"{key[0]} {key[2]} {ratio - 1:+.0%}" for key, ratio in single_device.items())
        yield Finding(
            FindingKind.FLAG,
            "interconnect",
            f"{link} cannot affect a single accelerator, but its rate changed: {listed}. Something else differed "
            "between these measurements, or they vary between repeats.",
        )


def _pool_speedups(measurements: Sequence[ExternalMeasurement]) -> Iterable[Finding]:
    """Yield one number for each two accelerators that a study compares on several workloads."""
    speedups: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for entry in select_metric(measurements, "speedup"):
        if entry.value and entry.baseline and not entry.baseline.endswith(f"x {entry.accelerator}"):
            by_workload = speedups.setdefault((entry.study, entry.accelerator, entry.baseline), {})
            by_workload.setdefault(entry.workload, []).append(entry.value)
    for (_, accelerator, baseline), by_workload in speedups.items():
        if len(by_workload) > 1:
            means = tuple(math.exp(np.mean(np.log(values))) for values in by_workload.values())
            floor = rounding_floor([value for values in by_workload.values() for value in values])
            pooled = log_mean(Sample(means, floor))
            yield Finding(
                FindingKind.NOTE,
                f"{accelerator} against {baseline}",
                f"{describe_speedup(pooled)} over {', '.join(by_workload)}, each measured without repeats: the "
                "interval is for further workloads, and of a single one nobody can tell speed from luck.",
            )


def _check_half_precision(measurements: Sequence[ExternalMeasurement]) -> Iterable[Finding]:
    """Flag a half precision that is as fast as fp32, each at its best batch size."""
    best_rates: dict[tuple[str, str, str, str, int, str], dict[str, float]] = {}
    for entry in select_metric(measurements, "samples_per_second"):
        precision, _, execution = entry.precision.partition(" ")
        key = (entry.study, entry.workload, entry.accelerator, entry.interconnect, entry.num_accelerators, execution)
        rates = best_rates.setdefault(key, {})
        rates[precision] = max(entry.value or 0.0, rates.get(precision, 0.0))
    without_effect: dict[tuple[str, str], list[float]] = {}
    for key, rates in best_rates.items():
        for half in _HALF_PRECISIONS:
            if half in rates and "fp32" in rates and abs(rates[half] / rates["fp32"] - 1) < _MIN_PRECISION_EFFECT:
                without_effect.setdefault((key[1], half), []).append(rates[half] / rates["fp32"])
    for (workload, half), speedups in without_effect.items():
        yield Finding(
            FindingKind.FLAG,
            workload,
            f"{half} speedup {min(speedups):.2f} to {max(speedups):.2f} over fp32: the precision switch very likely "
            "had no effect.",
        )


def _list_outcomes(measurements: Sequence[ExternalMeasurement]) -> Iterable[Finding]:
    """Yield a note for each configuration without a value."""
    outcomes = dict.fromkeys((entry.title, entry.outcome) for entry in measurements if entry.value is None)
    for title, outcome in outcomes:
        yield Finding(FindingKind.NOTE, title, f"{outcome}: shown as a result, not as 0.")


def _describe_fit(fit: PeakFit) -> Finding:
    exponent = fit.power_law.exponent
    worst = int(np.argmax(np.abs(fit.power_law.residuals)))
    factor = math.exp(fit.power_law.residuals[worst])
    return Finding(
        FindingKind.NOTE,
        fit.workload,
        f"Speed by {fit.peak_name}, {len(fit.accelerators)} accelerators: speed grows as the peak to the power of "
        f"{exponent.estimate:.2f} (95% CI: {exponent.low:.2f} to {exponent.high:.2f}). Fit through the origin: R² "
        f"{fit.line.r2_uncentered:.3f} uncentered, {fit.line.r2_centered:.2f} centered (a fit through the origin "
        f"overstates the uncentered R²). Farthest from the power law: {fit.accelerators[worst]}, {factor:.2f} times.",
    )

"""One number for a GPU: its speed against a baseline over several workloads, and how often it is near the fastest."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .comparison import Comparison
from .groups import RunGroup
from .intervals import Interval, LogEstimate, Ratio, Sample, log_mean

PROFILE_FACTORS = (1.0, 1.25, 1.5, 2.0, 4.0)


@dataclass(frozen=True)
class GpuScore:
    """Geometric mean of the speed ratios of `other` over `baseline`, one ratio per workload.

    `speed` has the interval for these workloads, in which only the runs vary. `speed_elsewhere` is the interval for
    further workloads of their kind: Student's t over workloads, whose coverage is right from two workloads on, where a
    hierarchical bootstrap falls far short (docs/calibration.md). `left_out` names workloads without a ratio. `machines`
    says between which machines it holds, empty if every ratio is about GPUs.
    """

    baseline: str
    other: str
    workloads: list[str]
    left_out: list[str]
    speed: Interval
    speed_elsewhere: Interval
    machines: str


@dataclass(frozen=True)
class PerformanceProfile:
    """Share of the workloads on which a system is within each of `PROFILE_FACTORS` of the fastest (Dolan, Moré 2002).

    A workload on which no run of the system reached the target counts as infinitely slow.
    """

    system: str
    workloads: int
    shares: tuple[float, ...]


def name_systems(groups: Iterable[RunGroup]) -> dict[str, str]:
    """Return by title of a group what one number is about: accelerators with number and precision.

    Where several systems have these in common, the name says which one it is.
    """
    names: dict[str, str] = {}
    systems: dict[str, set[tuple[str, str]]] = {}
    groups = list(groups)
    for group in groups:
        precision = group.runs[0].precision
        name = ", ".join(filter(None, [group.accelerators or group.origin, precision]))
        names[group.title] = name
        systems.setdefault(name, set()).add((group.submitter, group.system))
    return {
        group.title: f"{group.origin}, {names[group.title]}"
        if len(systems[names[group.title]]) > 1
        else names[group.title]
        for group in groups
    }


def score_gpus(comparisons: Iterable[Comparison]) -> list[GpuScore]:
    """Return a score for every two systems that are compared on at least two workloads."""
    comparisons = list(comparisons)
    names = name_systems(group for comparison in comparisons for group in (comparison.baseline, comparison.other))
    by_systems: dict[tuple[str, str], list[Comparison]] = {}
    for comparison in comparisons:
        key = names[comparison.baseline.title], names[comparison.other.title]
        by_systems.setdefault(key, []).append(comparison)
    scores = []
    for (baseline, other), same in by_systems.items():
        by_workload = ratios_by_workload(same)
        if baseline != other and len(by_workload) > 1:
            left_out = {comparison.baseline.workload for comparison in same} - by_workload.keys()
            scores.append(
                GpuScore(
                    baseline,
                    other,
                    list(by_workload),
                    sorted(left_out),
                    combine_fixed(list(by_workload.values())).interval(),
                    log_mean(Sample(tuple(math.exp(ratio.log) for ratio in by_workload.values()))).interval(),
                    next((each.machines for each in same if each.machines), ""),
                )
            )
    return scores


def ratios_by_workload(comparisons: Iterable[Comparison]) -> dict[str, LogEstimate]:
    """Return the first ratio of every workload that has one with an interval."""
    ratios: dict[str, LogEstimate] = {}
    for comparison in comparisons:
        if (ratio := _log_estimate(comparison.ratio)) and comparison.baseline.workload not in ratios:
            ratios[comparison.baseline.workload] = ratio
    return ratios


def pace_by_workload(comparisons: Iterable[Comparison]) -> dict[str, LogEstimate]:
    """Return the first ratio of the times per epoch of every workload that has one with an interval."""
    ratios: dict[str, LogEstimate] = {}
    for comparison in comparisons:
        if math.isfinite(comparison.pace.error):
            ratios.setdefault(comparison.baseline.workload, comparison.pace)
    return ratios


def combine_fixed(ratios: Sequence[LogEstimate]) -> LogEstimate:
    """Return the geometric mean of independent ratios, with the degrees of freedom of Welch and Satterthwaite.

    Its `n` is the number of runs of the ratio that has fewest.
    """
    count, variances = len(ratios), [ratio.error**2 for ratio in ratios]
    parts = sum(variance**2 / ratio.dof for variance, ratio in zip(variances, ratios, strict=True))
    dof = sum(variances) ** 2 / parts if parts else math.inf
    log = sum(ratio.log for ratio in ratios) / count
    return LogEstimate(log, math.sqrt(sum(variances)) / count, dof, min(ratio.n for ratio in ratios))


def _log_estimate(ratio: Ratio | None) -> LogEstimate | None:
    """Return a ratio with a standard error; that of expected times is read off its interval."""
    if isinstance(ratio, LogEstimate):
        return ratio if math.isfinite(ratio.error) else None
    interval = ratio.interval() if ratio else None
    if interval is None or not interval.is_bounded:
        return None
    error = (math.log(interval.high) - math.log(interval.low)) / (2 * 1.959964)
    return LogEstimate(math.log(interval.estimate), error, math.inf, interval.n)


def profile_performance(groups: Iterable[RunGroup]) -> list[PerformanceProfile]:
    """Return the profile of every system over the workloads that all of at least two systems ran."""
    groups = list(groups)
    names = name_systems(groups)
    times: dict[str, dict[str, float]] = {}
    for group in groups:
        times.setdefault(names[group.title], {}).setdefault(group.workload, group.outcomes.expected_time().estimate)
    common = [
        workload
        for workload in dict.fromkeys(name for of_system in times.values() for name in of_system)
        if all(workload in of_system for of_system in times.values())
    ]
    if len(times) < 2 or len(common) < 2:
        return []
    fastest = {workload: min(of_system[workload] for of_system in times.values()) for workload in common}
    return [
        PerformanceProfile(
            system,
            len(common),
            tuple(
                sum(of_system[name] <= factor * fastest[name] and math.isfinite(of_system[name]) for name in common)
                / len(common)
                for factor in PROFILE_FACTORS
            ),
        )
        for system, of_system in times.items()
    ]

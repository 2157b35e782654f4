"""The one number of a system against a baseline: over its comparable benchmarks, or by time per epoch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..analysis.comparison import Comparison
from ..analysis.intervals import UNKNOWN, Interval, LogEstimate
from ..analysis.scores import combine_fixed, pace_by_workload, ratios_by_workload
from ..analysis.verdicts import MARGIN, Verdict, decide, family_levels
from .systems import System


@dataclass(frozen=True)
class Mean:
    """The one number of a system: over `used` comparable benchmarks, or if there are none by time per epoch.

    `span` is from the lowest to the highest ratio.
    """

    ratio: Interval
    verdict: Verdict
    used: int
    span: tuple[float, float]


def means_of(
    systems: Sequence[System], comparisons: Mapping[tuple[System, str], Comparison]
) -> dict[System, Mean | None]:
    """Return the one number of each system; those over several benchmarks are decided together."""
    own = {system: [pair for (row, _), pair in comparisons.items() if row == system] for system in systems}
    ratios = {system: ratios_by_workload(pairs) for system, pairs in own.items()}
    pooled = [system for system in systems if len(ratios[system]) > 1]
    combined = [combine_fixed(list(ratios[system].values())) for system in pooled]
    margin = next((pair.margin for pair in comparisons.values()), MARGIN)
    levels = dict(zip(pooled, family_levels(combined, margin), strict=True))
    means = dict(zip(pooled, combined, strict=True))
    found: dict[System, Mean | None] = {}
    for system in systems:
        if system in means:
            level = levels[system]
            interval, verdict = means[system].interval(level.difference), decide(means[system], margin, level)
            if any(pair.distorting for pair in own[system]):
                verdict = Verdict.CANNOT_TELL
            found[system] = Mean(interval, verdict, len(ratios[system]), _span(ratios[system]))
        else:
            found[system] = _single_mean(own[system])
    return found


def _single_mean(own: Sequence[Comparison]) -> Mean | None:
    """Return the number of a system with one comparable benchmark, or with none, by time per epoch."""
    comparable = [comparison for comparison in own if comparison.verdict != Verdict.NOT_COMPARABLE]
    if comparable:
        ratios = ratios_by_workload(comparable)
        return Mean(shown_ratio(comparable[0]), comparable[0].verdict, 1, _span(ratios)) if ratios else None
    ratios = pace_by_workload(own)
    if not ratios:
        return None
    return Mean(combine_fixed(list(ratios.values())).interval(), Verdict.NOT_COMPARABLE, len(ratios), _span(ratios))


def _span(ratios: Mapping[str, LogEstimate]) -> tuple[float, float]:
    values = [math.exp(ratio.log) for ratio in ratios.values()]
    return min(values), max(values)


def shown_ratio(comparison: Comparison) -> Interval:
    """Return the ratio of a comparison with its 95% interval: of the time per epoch if times are not comparable.

    It is unknown where a side never reached the target.
    """
    ratio = comparison.ratio.interval() if comparison.ratio else comparison.seconds_per_epoch
    return ratio if math.isfinite(ratio.estimate) else UNKNOWN

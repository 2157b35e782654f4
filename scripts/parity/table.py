"""The table: what both sides reach, how much it varies, and whether they are equal."""

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scipy import stats

from .curves import Curve

_LEVEL = 0.95


class Estimate(NamedTuple):
    """A value with its confidence interval."""

    value: float
    low: float
    high: float


def difference_of_means(first: Sequence[float], second: Sequence[float], level: float) -> Estimate:
    """Return the mean of `second` minus that of `first`, with Welch's interval."""
    value = statistics.fmean(second) - statistics.fmean(first)
    parts = [statistics.variance(values) / len(values) for values in (first, second)]
    error = math.sqrt(sum(parts))
    if not error:
        return Estimate(value, value, value)
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True)
    )
    half = float(stats.t.ppf((1 + level) / 2, freedom)) * error
    return Estimate(value, value - half, value + half)


def ratio_of_variances(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Return the variance of `second` over that of `first`, with the 95% interval of normal values (F)."""
    variances = [statistics.variance(values) for values in (first, second)]
    if not variances[0]:
        return Estimate(math.inf if variances[1] else math.nan, 0.0, math.inf)
    ratio, freedom = variances[1] / variances[0], (len(second) - 1, len(first) - 1)
    low, high = (float(stats.f.ppf(p, *freedom)) for p in ((1 + _LEVEL) / 2, (1 - _LEVEL) / 2))
    return Estimate(ratio, ratio / low, ratio / high)


def verdict(first: Sequence[float], second: Sequence[float], margin: float) -> str:
    """Return equal, different or undecided: two one-sided tests at 5% of means that differ by less than `margin`."""
    inner, outer = difference_of_means(first, second, 0.9), difference_of_means(first, second, _LEVEL)
    if -margin < inner.low and inner.high < margin:
        return "equal"
    return "undecided" if outer.low <= 0 <= outer.high else "different"


def format_table(curves: Iterable[Curve], margin: float) -> str:
    """Return a table in Markdown with a line for each side and setting: means, and standard deviations in brackets.

    The margin of the verdict is `margin` times the reference's mean of the best qualities.
    """
    ordered = sorted(curves, key=lambda curve: (curve.workload, curve.overrides, curve.side, curve.seed))
    columns = ("workload", "side", "seeds", "quality after epochs", "best", "ratio of variances", "verdict")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for (workload, overrides), of_both in itertools.groupby(ordered, lambda curve: (curve.workload, curve.overrides)):
        sides = {side: list(group) for side, group in itertools.groupby(of_both, lambda curve: curve.side)}
        name = " ".join([workload, *(f"`{override}`" for override in overrides)])
        best = {side: [curve.best for curve in group] for side, group in sides.items()}
        for side, group in sides.items():
            compared = ["", ""]
            if side == "timetrial" and all(len(values) > 1 for values in best.values()) and len(best) > 1:
                ratio = ratio_of_variances(best["reference"], best["timetrial"])
                limit = margin * statistics.fmean(best["reference"])
                difference = difference_of_means(best["reference"], best["timetrial"], 0.9)
                compared = [
                    f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
                    f"{verdict(best['reference'], best['timetrial'], limit)}: {difference.value:+.4f} "
                    f"({difference.low:+.4f} to {difference.high:+.4f}), margin {limit:.4f}",
                ]
            cells = [name, side, str(len(group)), _points(group), _mean(best[side]), *compared]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _points(group: Sequence[Curve]) -> str:
    """Return the qualities after the first, a middle and the last evaluation that all curves have."""
    count = min(len(curve.epochs) for curve in group)
    chosen = sorted({0, (count - 1) // 2, count - 1})
    return ", ".join(
        f"{group[0].epochs[place]}: {_mean([curve.qualities[place] for curve in group])}" for place in chosen
    )


def _mean(values: Sequence[float]) -> str:
    spread = f" ({statistics.stdev(values):.4f})" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4f}{spread}"

"""The chart of speeds against a baseline."""

from collections.abc import Sequence
from typing import NamedTuple

from ..analysis.intervals import Interval
from .chart import Axis, Chart, Plot, clip_label, describe

_MOST = 1e6  # times as fast at the end of the axis, where larger ratios of damaged results are drawn


class SpeedRow(NamedTuple):
    """A system, the GPU by which it is filtered, its mean, its comparable ratios and those per epoch only."""

    label: str
    gpu: str
    mean: Interval | None
    solid: Sequence[float]
    hollow: Sequence[float]


def plot_speeds(name: str, baseline: str, rows: Sequence[SpeedRow]) -> Plot:
    """Plot one row a system: a diamond with its interval for the mean, a marker for each benchmark."""
    drawn = rows[:10]
    values = [value for _, _, mean, solid, hollow in drawn for value in (*solid, *hollow, *_ends(mean)) if value > 0]
    low, high = max(min([*values, 0.8]), 1 / _MOST) / 1.1, min(max([*values, 1.25]), _MOST) * 1.1
    axis = Axis(low, high, "times as fast (log scale) → faster", is_log=True)
    chart = Chart(axis, None, height=38.0 * len(drawn) + 4, left=8)
    for number, (label, gpu, mean, solid, hollow) in enumerate(drawn):
        middle, first = 38.0 * number + 27, len(chart.marks)
        chart.row_label(middle - 13, clip_label(label))
        chart.line([1, 1], [middle - 9, middle + 11], 0, "rule")  # the baseline, beside the name and not through it
        chart.dots([(value, middle) for value in hollow], 0, "hollow")
        chart.dots([(value, middle) for value in solid], 0)
        if mean:
            if mean.is_bounded:
                chart.line([mean.low, mean.high], [middle, middle], 1, "bar")
            chart.dots([(mean.estimate, middle)], 1, "diamond")
        chart.group(first, gpu)
    caption = f"Speed against {baseline}. Diamond: the one number, with its interval in the table. Points: benchmarks"
    caption += ", hollow ones by time per epoch only." if any(row.hollow for row in drawn) else "."
    caption += f" The first {len(drawn)} of {len(rows)}." if len(drawn) < len(rows) else ""
    means = {row.label: row.mean.estimate for row in drawn if row.mean}
    return chart.plot(
        name, "Speed, times the baseline", caption, describe(means, "times as fast") if means else caption
    )


def _ends(mean: Interval | None) -> list[float]:
    if mean is None:
        return []
    return [mean.low, mean.estimate, mean.high] if mean.is_bounded else [mean.estimate]

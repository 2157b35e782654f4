"""The chart of speeds against a baseline."""

from collections.abc import Sequence

from ..analysis.intervals import Interval
from .chart import Axis, Chart, Plot, clip_label, describe

_MOST = 1e6  # times as fast at the end of the axis, where larger ratios of damaged results are drawn


def plot_speeds(
    name: str, baseline: str, rows: Sequence[tuple[str, Interval | None, Sequence[float], Sequence[float]]]
) -> Plot:
    """Plot one row a system: a diamond with its interval for the mean, a marker for each benchmark."""
    drawn = rows[:10]
    values = [value for _, mean, solid, hollow in drawn for value in (*solid, *hollow, *_ends(mean)) if value > 0]
    low, high = max(min([*values, 0.8]), 1 / _MOST) / 1.1, min(max([*values, 1.25]), _MOST) * 1.1
    axis = Axis(low, high, "times as fast (log scale) → faster", is_log=True)
    chart = Chart(axis, None, height=38.0 * len(drawn) + 4, left=8)
    chart.rule(1, is_vertical=True)
    for number, (label, mean, solid, hollow) in enumerate(drawn):
        middle = 38.0 * number + 27
        chart.row_label(middle - 13, clip_label(label))
        chart.dots([(value, middle) for value in hollow], 0, "hollow")
        chart.dots([(value, middle) for value in solid], 0)
        if mean:
            if mean.is_bounded:
                chart.line([mean.low, mean.high], [middle, middle], 1, "bar")
            chart.dots([(mean.estimate, middle)], 1, "diamond")
    caption = f"Speed against {baseline}. Diamond: the one number, with its interval in the table. Points: benchmarks"
    caption += ", hollow ones by time per epoch only." if any(row[3] for row in drawn) else "."
    caption += f" The first {len(drawn)} of {len(rows)}." if len(drawn) < len(rows) else ""
    means = {label: mean.estimate for label, mean, _, _ in drawn if mean}
    return chart.plot(
        name, "Speed, times the baseline", caption, describe(means, "times as fast") if means else caption
    )


def _ends(mean: Interval | None) -> list[float]:
    if mean is None:
        return []
    return [mean.low, mean.estimate, mean.high] if mean.is_bounded else [mean.estimate]

"""The plots of the report page, each with the data behind it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ..analysis.comparison import Comparison
from ..analysis.groups import RunGroup
from ..analysis.intervals import Interval, geometric_mean
from ..analysis.scaling import Scaling
from ..parse.evaluations import Evaluation
from ..parse.runs import Run
from .drawing import (
    INK,
    MUTED,
    PAPER,
    REFERENCE_LINE,
    SERIES,
    STYLE,
    Plot,
    draw_legend,
    error_bar,
    format_number,
    interval_columns,
    render_plot,
    series_style,
    set_log_ticks,
    stacked_axes,
)
from .scaling_plots import plot_scaling

_MAX_BARS_BY_DEVICE = 12  # charts with more bars are sorted by value
_MAX_CURVES = 60  # per quality plot
_Curve = list[tuple[float, float]]  # (epoch, quality)


def plots_of_workload(
    name: str, title: str, groups: Sequence[RunGroup], comparisons: Sequence[Comparison], scalings: Sequence[Scaling]
) -> list[Plot]:
    """Return the plots of one workload for which there is data; `name` is the prefix of their file names."""
    with rc_context(STYLE):
        plots = [
            _plot_minutes(f"{name}-minutes", title, groups),
            _plot_throughput(f"{name}-throughput", title, groups),
            *_plot_qualities(f"{name}-quality", title, groups),
            _plot_epochs(f"{name}-epochs", title, groups),
            plot_scaling(f"{name}-scaling", title, scalings),
            _plot_ratios(f"{name}-ratios", title, comparisons),
        ]
    return [plot for plot in plots if plot]


def group_label(group: RunGroup) -> str:
    """Return system and accelerators of a group, cut to the width of a plot."""
    return _truncate(f"{group.submitter} {group.system}, {group.setting or group.accelerators}", 72)


def comparison_label(comparison: Comparison, max_length: int = 36) -> str:
    """Return "baseline vs. other", each named by what distinguishes it within its section."""
    first, second = comparison.baseline, comparison.other
    if first.submitter != second.submitter:
        names = [f"{group.submitter} {group.system}" for group in (first, second)]
    else:
        same_system = first.system == second.system
        names = [(group.setting if same_system else group.system) or group_label(group) for group in (first, second)]
    return " vs. ".join(_truncate(name, max_length) for name in names)


def no_result(group: RunGroup) -> str:
    """Return the text that replaces the score of a group with failed runs; empty for a group without failures."""
    return f"no result: {group.num_failed} of {len(group.runs)} failed" if group.num_failed else ""


def _truncate(text: str, max_length: int) -> str:
    text = " ".join(text.split()).strip(" ,")
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def _plot_minutes(name: str, title: str, groups: Sequence[RunGroup]) -> Plot | None:
    caption = "Geometric mean of the runs that reached the target, with its 95% confidence interval. Lower is better."
    rows = [(group, group.mean_minutes) for group in groups]
    return _plot_bars(name, f"Minutes to train, {title}", caption, "minutes", rows)


def _plot_throughput(name: str, title: str, groups: Sequence[RunGroup]) -> Plot | None:
    """Plot samples per second if the number of samples is known for all groups, epochs per hour otherwise."""
    sizes = [group.train_samples for group in groups]
    sizes_known = all(sizes)
    rates = []
    for group, size in zip(groups, sizes, strict=True):
        values = [(size or 0) / seconds if sizes_known else 3600 / seconds for seconds in group.seconds_per_epoch]
        rates.append((group, geometric_mean(values, floor=group.clock_floor)))
    unit = "samples per second" if sizes_known else "epochs per hour"
    caption = (
        f"Geometric mean {unit} over whole runs, evaluation included, with its 95% confidence interval. Higher is "
        "better."
    )
    return _plot_bars(name, f"Throughput, {title}", caption, unit, rates)


def _plot_bars(
    name: str, title: str, caption: str, unit: str, rows: Sequence[tuple[RunGroup, Interval]]
) -> Plot | None:
    """Plot horizontal bars, each below its label: names of systems are too long for an axis."""
    if not any(interval.n for _, interval in rows):
        return None
    rows = _sort_bars(rows)
    figure, (axes,) = stacked_axes(0.34 * len(rows), left=0.14)
    longest = max(
        interval.high if math.isfinite(interval.high) else interval.estimate for _, interval in rows if interval.n
    )
    for row, (group, interval) in enumerate(rows):
        _draw_bar(axes, row, group, interval, longest)
    axes.set(xlim=(0, longest * 1.16), ylim=(len(rows) + 0.1, 0), xlabel=unit)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}" if value < 1e5 else f"{value:,.0f}")
    axes.yaxis.set_visible(False)
    axes.spines["left"].set_visible(False)
    data = [
        {
            "group": group.title,
            "accelerators": group.accelerators,
            "runs": len(group.runs),
            "failed": group.num_failed,
            **interval_columns(unit.replace(" ", "_"), interval),
        }
        for group, interval in rows
    ]
    values = "; ".join(
        f"{group_label(group)}: {format_number(interval.estimate)}" for group, interval in rows[:_MAX_BARS_BY_DEVICE]
    )
    return render_plot(name, title, caption, f"Horizontal bars of {unit}. {values}.", figure, data)


def _sort_bars(rows: Sequence[tuple[RunGroup, Interval]]) -> list[tuple[RunGroup, Interval]]:
    """Sort a few bars by accelerator and count, many by value."""

    def by_device(row: tuple[RunGroup, Interval]) -> Any:
        run = row[0].runs[0]
        return run.accelerator, run.num_accelerators or 0, group_label(row[0])

    def by_value(row: tuple[RunGroup, Interval]) -> Any:
        return (row[1].estimate if row[1].n else math.inf), group_label(row[0])

    return sorted(rows, key=by_device if len(rows) <= _MAX_BARS_BY_DEVICE else by_value)


def _draw_bar(axes: Axes, row: int, group: RunGroup, interval: Interval, longest: float) -> None:
    """Draw the label of a group and below it its bar with error bar and value, or why there is none."""
    axes.text(0, row + 0.42, group_label(group), va="baseline")
    if not interval.n:
        reason = no_result(group) or "unknown"
        axes.text(longest * 0.01, row + 0.85, reason, va="baseline", color=MUTED, style="italic")
        return
    center, end = row + 0.72, interval.estimate
    axes.barh(center, interval.estimate, 0.34, color=SERIES[0])
    if math.isfinite(interval.high):
        axes.errorbar(interval.estimate, center, xerr=error_bar(interval), color=INK, capsize=2, linewidth=0.9)
        end = max(end, interval.high)
    axes.annotate(format_number(interval.estimate), (end, center), (4, 0), textcoords="offset points", va="center")


def _plot_qualities(name: str, title: str, groups: Sequence[RunGroup]) -> list[Plot | None]:
    metrics = dict.fromkeys(metric for group in groups for metric in group.runs[0].target) or {"quality": None}
    names = {metric: name if number == 0 else f"{name}-{number + 1}" for number, metric in enumerate(metrics)}
    return [_plot_quality(names[metric], title, groups, metric) for metric in metrics]


def _plot_quality(name: str, title: str, groups: Sequence[RunGroup], metric: str) -> Plot | None:
    """Plot `metric` by epoch, one line per run, for the fastest groups."""
    curves = [[(run, _quality_curve(run, metric)) for run in group.runs] for group in groups]
    curves_of = {
        id(group): [(run, curve) for run, curve in own if curve] for group, own in zip(groups, curves, strict=True)
    }
    shown = [group for group in _by_speed(groups) if curves_of[id(group)]][: len(SERIES)]
    if not shown:
        return None
    per_group = max(1, _MAX_CURVES // len(shown))
    figure, (axes,) = stacked_axes(2.5, legend_lines=len(shown) + 1)
    drawn = 0
    for number, group in enumerate(shown):
        for run, curve in curves_of[id(group)][:per_group]:
            _draw_quality_curve(axes, series_style(number), curve, run.success)
            drawn += 1
    handles = [Line2D([], [], **series_style(number), label=group_label(group)) for number, group in enumerate(shown)]
    target = shown[0].runs[0].target.get(metric)
    if target is not None:
        axes.axhline(target, **REFERENCE_LINE)
        handles.append(Line2D([], [], **REFERENCE_LINE, label=f"target {target:g}"))
    metric_name = "quality" if metric == "value" else metric
    axes.set(xlabel="epoch", ylabel=metric_name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    draw_legend(figure, handles)
    caption = "One line per run. The marker at its end identifies the group; a cross marks a run without a result."
    if drawn < sum(map(len, curves_of.values())):
        caption += f" Showing {drawn} runs of the {len(shown)} fastest groups; the CSV file has all runs."
    description = f"Lines of {metric_name} by epoch for {drawn} runs in {len(shown)} groups."
    data = _quality_rows(groups, curves, metric)
    plot_title = f"{metric_name[0].upper()}{metric_name[1:]} by epoch, {title}"
    return render_plot(name, plot_title, caption, description, figure, data)


def _quality_rows(
    groups: Sequence[RunGroup], curves: Sequence[Sequence[tuple[Run, _Curve]]], metric: str
) -> list[dict[str, Any]]:
    return [
        {"group": group.title, "run": run.path.as_posix(), "epoch": epoch, metric: quality, "reached": run.success}
        for group, own in zip(groups, curves, strict=True)
        for run, curve in own
        for epoch, quality in curve
    ]


def _draw_quality_curve(axes: Axes, style: Mapping[str, Any], curve: _Curve, success: bool) -> None:
    epochs, qualities = zip(*curve, strict=True)
    axes.plot(epochs, qualities, color=style["color"], linestyle=style["linestyle"], linewidth=0.8)
    marker = {"marker": style["marker"]} if success else {"marker": "x", "markeredgewidth": 1.4}
    axes.plot(epochs[-1:], qualities[-1:], color=style["color"] if success else INK, **marker)


def _quality_curve(run: Run, metric: str) -> _Curve:
    """Return (epoch, quality) of the evaluations that have both."""

    def quality_of(evaluation: Evaluation) -> float | None:
        only = next(iter(evaluation.quality.values())) if len(evaluation.quality) == 1 else None
        return evaluation.quality.get(metric, only if len(run.target) < 2 else None)

    return [
        (evaluation.progress, quality)
        for evaluation in run.evaluations
        if evaluation.progress is not None and (quality := quality_of(evaluation)) is not None
    ]


def _plot_epochs(name: str, title: str, groups: Sequence[RunGroup]) -> Plot | None:
    """Plot the cumulative distribution of the epochs to converge above, box plots below."""
    repeated = [group for group in _by_speed(groups) if len(group.epochs) > 1]
    shown = repeated[: len(SERIES)]
    if not shown:
        return None
    figure, (above, below) = stacked_axes(1.7, 0.22 * len(shown) + 0.1, legend_lines=len(shown), gap=0.3)
    first, last = min(min(group.epochs) for group in shown), max(max(group.epochs) for group in shown)
    for number, group in enumerate(shown):
        _draw_epochs(above, below, number, group.epochs, (first - 1, last + 1))
    margin = max(0.05 * (last - first), 0.02 * last)
    below.set(xlabel="epochs to converge", ylim=(len(shown) - 0.4, -0.6), xlim=(first - margin, last + margin))
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    above.xaxis.set_major_locator(MaxNLocator(integer=True))
    below.yaxis.set_visible(False)
    above.set(ylabel="fraction of runs", ylim=(0, 1.03), xlim=below.get_xlim())
    above.tick_params(labelbottom=False)
    labels = [group_label(group) for group in shown]
    draw_legend(figure, [Line2D([], [], **series_style(number), label=label) for number, label in enumerate(labels)])
    caption = (
        "Above: fraction of the converged runs that needed at most this many epochs. Below: range (line), middle 50% "
        "(box) and median (marker)."
    )
    if len(shown) < len(repeated):
        caption += f" Showing the {len(shown)} fastest of {len(repeated)} groups; the CSV file has all groups."
    data = [{"group": group.title, "epochs": value} for group in repeated for value in group.epochs]
    description = "; ".join(
        f"{label}: median {format_number(float(np.median(group.epochs)))} epochs"
        for label, group in zip(labels, shown, strict=True)
    )
    return render_plot(name, f"Epochs to converge, {title}", caption, description + ".", figure, data)


def _draw_epochs(above: Axes, below: Axes, number: int, epochs: Sequence[float], ends: tuple[float, float]) -> None:
    """Draw one group's steps, which reach from `ends[0]` to `ends[1]`, and its box plot."""
    values, style = sorted(epochs), series_style(number)
    color = style["color"]
    fractions = np.arange(len(values) + 1) / len(values)
    steps, heights = [ends[0], *values, ends[1]], [*fractions, 1]
    above.step(steps, heights, where="post", color=color, linestyle=style["linestyle"])
    low, median, high = np.percentile(values, [25, 50, 75])
    below.plot([values[0], values[-1]], [number, number], color=color, linewidth=1)
    below.barh(number, high - low, 0.5, low, facecolor=color, alpha=0.35, edgecolor=color)
    below.plot(median, number, color=INK, marker=style["marker"], linestyle="none")


def _plot_ratios(name: str, title: str, comparisons: Sequence[Comparison]) -> Plot | None:
    """Plot a forest plot: one row per comparison, with its ratios below one another."""
    kinds = {"epochs": "epochs", "time per epoch": "seconds_per_epoch", "time-to-train": "time_to_train"}
    rows = [
        (comparison, {kind: getattr(comparison, attribute) for kind, attribute in kinds.items()})
        for comparison in comparisons
    ]
    known = [ratio for _, ratios in rows for ratio in ratios.values() if ratio and ratio.estimate > 0]
    if not known:
        return None
    figure, (axes,) = stacked_axes(0.62 * len(rows), legend_lines=len(kinds), left=0.14)
    for row, (comparison, ratios) in enumerate(rows):
        _draw_ratios(axes, row, comparison_label(comparison), list(ratios.values()))
    ends = [value for ratio in known for value in (ratio.low, ratio.high, ratio.estimate)]
    ends = [value for value in ends if math.isfinite(value) and value > 0]
    low, high = min([*ends, 1 / 1.05]) / 1.02, max([*ends, 1.05]) * 1.02
    axes.axvline(1, color=INK, linewidth=1)
    axes.set(xscale="log", xlim=(low, high), ylim=(len(rows) + 0.05, 0), xlabel="ratio, baseline over other (log axis)")
    axes.yaxis.set_visible(False)
    axes.spines["left"].set_visible(False)
    set_log_ticks(axes.xaxis, low, high)
    styles = [series_style(number) | {"linestyle": "none", "label": kind} for number, kind in enumerate(kinds)]
    draw_legend(figure, [Line2D([], [], **style) for style in styles])
    caption = (
        "Ratios with 95% confidence intervals. Right of 1 the other group needs less than the baseline. Of an interval "
        "that contains 1 nobody can tell which is faster."
    )
    description = "; ".join(
        f"{comparison_label(comparison)}: time {format_number(comparison.time_to_train.estimate, 3)}"
        for comparison in comparisons
    )
    return render_plot(name, f"Ratios, {title}", caption, description + ".", figure, _ratio_rows(rows))


def _ratio_rows(rows: Sequence[tuple[Comparison, Mapping[str, Interval | None]]]) -> list[dict[str, Any]]:
    return [
        {
            "baseline": comparison.baseline.title,
            "other": comparison.other.title,
            "ratio": kind,
            **interval_columns("estimate", ratio),
        }
        for comparison, ratios in rows
        for kind, ratio in ratios.items()
        if ratio
    ]


def _draw_ratios(axes: Axes, row: int, label: str, ratios: Sequence[Interval | None]) -> None:
    """Draw the label of a comparison and its ratios; unknown ratios are left out."""
    # The background keeps the grid and the line at 1 from crossing the text.
    background = {"facecolor": PAPER, "edgecolor": "none", "pad": 1}
    axes.text(0, row + 0.24, label, va="baseline", transform=axes.get_yaxis_transform(), bbox=background)
    for number, ratio in enumerate(ratios):
        if ratio and ratio.estimate > 0:
            style = series_style(number) | {"linestyle": "none"}
            axes.errorbar(ratio.estimate, row + 0.42 + 0.14 * number, xerr=error_bar(ratio), elinewidth=1.1, **style)


def _by_speed(groups: Iterable[RunGroup]) -> list[RunGroup]:
    """Return the groups in order of their mean time-to-train; groups without one come last."""
    return sorted(groups, key=lambda group: group.mean_minutes.estimate if group.mean_minutes.n else math.inf)

"""The charts of one benchmark: time to target, quality over time, epochs, time per epoch, and scaling."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..analysis.groups import RunGroup
from ..analysis.intervals import Array, Interval
from ..analysis.scaling import Scaling
from ..parse.runs import Run
from .chart import MAX_SERIES, Axis, Chart, Plot, clip_label, describe, span
from .page_text import format_number

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

_MAX_STEPS, _MAX_DOTS = 120, 40  # that are drawn: of a curve, in a row
_GRID_POINTS = 60
Curve = tuple[Array, Array]  # xs and ys
_SHORT_UNITS = {"seconds": "s", "minutes": "min", "hours": "h"}
_UNITS = ((1.0, "seconds"), (60.0, "minutes"), (3600.0, "hours"))


@dataclass(frozen=True)
class Series:
    """A run group that is drawn, with its name; its place in the list chooses color, dash and marker."""

    label: str
    group: RunGroup


def charts_of_benchmark(name: str, series: Sequence[Series], scalings: Sequence[Scaling]) -> list[Plot]:
    """Return the charts for which there is data; `name` is the prefix of their ids."""
    unit = series[0].group.progress_unit
    plots = [
        _plot_target_times(f"{name}-times", series),
        *_plot_qualities(f"{name}-quality", series),
        _plot_strips(
            f"{name}-epochs",
            f"{unit.capitalize()} to the target",
            unit,
            series,
            lambda group: group.epoch_sample.values,
        ),
        _plot_strips(
            f"{name}-pace",
            f"Time per {unit.removesuffix('s')}",
            f"seconds per {unit.removesuffix('s')}, with evaluation",
            series,
            lambda group: group.pace_sample.values,
        ),
        plot_scaling(f"{name}-scaling", scalings),
    ]
    return [plot for plot in plots if plot]


def _plot_target_times(name: str, series: Sequence[Series]) -> Plot:
    """Plot the share of the runs that reached the target by a time, with bands and a cross for each censored run."""
    seconds, unit = time_unit([run.observed for entry in series for run in entry.group.runs])
    last = max(run.observed for entry in series for run in entry.group.runs) / seconds
    chart = Chart(Axis(0, last * 1.02 or 1, unit), Axis(0, 1, "", ticks=_percent_ticks()))
    medians = {}
    for number, entry in enumerate(series):
        curve = entry.group.survival
        kept = thin(len(curve.times), _MAX_STEPS)
        times, reached = 60 / seconds * curve.times[kept], curve.reached[kept]
        low, high = (np.nan_to_num(side[kept], nan=0.0) for side in (curve.low, curve.high))
        known = np.isfinite(curve.low[kept]) & np.isfinite(curve.high[kept])
        if known.any():
            chart.band(times[known].tolist(), low[known].tolist(), high[known].tolist(), number)
        end = max(run.observed for run in entry.group.runs) / seconds
        steps = [0.0, *times.tolist(), max(end, times[-1] if len(times) else 0.0)]
        chart.steps(steps, [0.0, *reached.tolist(), reached[-1] if len(reached) else 0.0], number)
        censored = [run.observed / seconds for run in entry.group.runs if not run.success][:_MAX_DOTS]
        heights = [_height(times, reached, time) for time in censored]
        chart.dots(list(zip(censored, heights, strict=True)), number, "cross")
        medians[entry.label] = math.nan if curve.median is None else curve.median * 60 / seconds
    caption = "Share of runs at their target by a time (Kaplan-Meier), with 95% bands. Crosses: runs without a result."
    return chart.plot(name, "Time to the target", caption, f"Medians: {describe(medians, unit)}")


def _height(times: Array, reached: Array, time: float) -> float:
    """Return the height of a step curve at a time."""
    index = int(np.searchsorted(times, time, side="right")) - 1
    return float(reached[index]) if index >= 0 else 0.0


def thin(count: int, most: int) -> list[int]:
    """Return the indices of at most `most` of `count` points, with the first and the last."""
    return sorted({round(index) for index in np.linspace(0, count - 1, min(count, most)).tolist()})


def _percent_ticks() -> list[tuple[float, str]]:
    return [(number / 4, f"{25 * number}%") for number in range(5)]


def _plot_qualities(name: str, series: Sequence[Series]) -> list[Plot | None]:
    metrics = list(series[0].group.runs[0].target) or ["quality"]
    return [_plot_quality(f"{name}-{number}", metric, series) for number, metric in enumerate(metrics[:2], start=1)]


def _plot_quality(name: str, metric: str, series: Sequence[Series]) -> Plot | None:
    """Plot the median quality of the runs of each group over time, with the band of the middle 80% of runs."""
    curves = [[quality_curve(run, metric) for run in entry.group.runs] for entry in series]
    known = [[curve for curve in own if len(curve[0])] for own in curves]
    if not any(known):
        return None
    seconds, unit = time_unit([times[-1] for own in known for times, _ in own])
    target = series[0].group.runs[0].target.get(metric)
    summaries = [_summarize(own) if own else None for own in known]
    values = [*(value for summary in summaries if summary for value in summary[1]), *([target] if target else [])]
    last = max(summary[0][-1] for summary in summaries if summary) / seconds
    chart = Chart(Axis(0, last, unit), Axis(*span(values), metric))
    if target is not None:
        chart.rule(target)
        chart.text(0, target, f"target {target:g}", "start", "above")
    for number, summary in enumerate(summaries):
        if summary is None:
            continue
        times, median, low, high = summary
        across = [time / seconds for time in times]
        if len(known[number]) > 2:
            chart.band(across, low, high, number)
        chart.steps(across, median, number)
    caption = "Median of the runs, and the band of the middle 80%; a run that has ended keeps its last quality."
    ends = {entry.label: summary[1][-1] for entry, summary in zip(series, summaries, strict=True) if summary}
    return chart.plot(name, f"{metric_title(metric)} over time", caption, f"At the end: {describe(ends, '')}")


def _summarize(curves: Sequence[Curve]) -> tuple[list[float], list[float], list[float], list[float]]:
    """Return times, median, 10% and 90% quantiles of curves, from when most runs have a quality."""
    first = float(np.median([times[0] for times, _ in curves]))
    grid = np.linspace(first, max(float(times[-1]) for times, _ in curves), _GRID_POINTS)
    values = np.full((len(curves), _GRID_POINTS), np.nan)
    for row, (times, qualities) in enumerate(curves):
        indices = np.searchsorted(times, grid, side="right") - 1
        values[row] = np.where(indices >= 0, qualities[np.maximum(indices, 0)], np.nan)
    low, median, high = np.nanpercentile(values, [10, 50, 90], axis=0)
    return grid.tolist(), median.tolist(), low.tolist(), high.tolist()


def quality_curve(run: Run, metric: str, x_name: str = "seconds") -> Curve:
    """Return the seconds, or with "progress" epochs or samples, and the qualities of evaluations that have the metric.

    The only metric of a log may have another name.
    """
    points = []
    for evaluation in run.evaluations:
        only = next(iter(evaluation.quality.values())) if len(evaluation.quality) == 1 else None
        quality = evaluation.quality.get(metric, only if len(run.target) < 2 else None)
        x = getattr(evaluation, x_name)
        if quality is not None and x is not None and math.isfinite(x) and x >= 0:
            points.append((x, quality))
    return as_curve(sorted(points, key=lambda point: point[0]))


def as_curve(points: Iterable[tuple[float, float]]) -> Curve:
    """Return the finite points as two arrays."""
    array = np.array(list(points), dtype=float).reshape(-1, 2)
    array = array[np.isfinite(array).all(axis=1)]
    return array[:, 0], array[:, 1]


def _plot_strips(
    name: str,
    title: str,
    unit: str,
    series: Sequence[Series],
    values_of: Callable[[RunGroup], Sequence[float]],
) -> Plot | None:
    """Plot one row a group: a point for each run, and below the geometric mean with its 95% interval."""
    rows = [(number, entry.label, values_of(entry.group)) for number, entry in enumerate(series)]
    rows = [row for row in rows if row[2]]
    if not rows:
        return None
    factor, label = _axis_unit([value for *_, values in rows for value in values], unit)
    means = {number: _interval(series[number].group, values) for number, _, values in rows}
    ends = [end for mean in means.values() if mean.is_bounded for end in (mean.low, mean.high)]
    height = 52.0
    ends += [value for *_, values in rows for value in values]
    if min(ends) == max(ends):
        ends += [0.8 * ends[0], 1.2 * ends[0]]
    limits = span([value / factor for value in ends])
    chart = Chart(Axis(*limits, label), None, height * len(rows) + 4, 8)
    for row, (number, text, values) in enumerate(rows):
        top = height * row
        chart.row_label(top + 12, clip_label(text), number)
        kept = sorted(values)[:: math.ceil(len(values) / _MAX_DOTS)]
        chart.swarm([value / factor for value in kept], top + 33, number)
        mean = means[number]
        if mean.is_bounded:
            chart.line([mean.low / factor, mean.high / factor], [top + 48] * 2, number, "bar")
    caption = "One point a run (up to 40 a row); the bar below is the 95% interval of their geometric mean."
    listed = {text: means[number].estimate / factor for number, text, _ in rows}
    return chart.plot(name, title, caption, f"Means: {describe(listed, label)}")


def _interval(group: RunGroup, values: Sequence[float]) -> Interval:
    return group.mean_epochs if values == group.epoch_sample.values else group.mean_seconds_per_epoch


def _axis_unit(values: Sequence[float], unit: str) -> tuple[float, str]:
    """Return a factor and the unit with it, so that ticks are short."""
    exponent = 3 * math.floor(math.log10(max(values)) / 3)
    if -3 <= exponent < 6:
        return 1.0, unit
    return 10.0**exponent, f"{unit}, × 10{str(exponent).translate(_SUPERSCRIPTS)}"


def plot_scaling(name: str, scalings: Sequence[Scaling]) -> Plot | None:
    """Plot the speedup by number of GPUs on log axes, with ideal scaling as a dashed line."""
    shown = scalings[:MAX_SERIES]
    if not shown:
        return None
    most = max(scaling.counts[-1] / scaling.counts[0] for scaling in shown)
    fastest = max(most, *(max(scaling.speedup) for scaling in shown))
    ticks = [(2.0**power, f"{2**power}×") for power in range(math.ceil(math.log2(max(fastest, 2))) + 1)]
    slowest = min(1.0, *(min(scaling.speedup) for scaling in shown))
    axis = Axis(1, most, "GPUs, times the fewest", is_log=True, ticks=[tick for tick in ticks if tick[0] <= most])
    chart = Chart(axis, Axis(slowest, fastest, "", is_log=True, ticks=[tick for tick in ticks if tick[0] <= fastest]))
    ends = [1.0, most]
    chart.marks.append(f'<path class="rule" d="M{"L".join(chart.point(end, end) for end in ends)}"/>')
    for number, scaling in enumerate(shown):
        factors = [count / scaling.counts[0] for count in scaling.counts]
        chart.line(factors, scaling.speedup, number)
        points = list(zip(factors, scaling.speedup, strict=True))
        chart.dots(points, number)
        chart.dots([point for point, ring in zip(points, scaling.super_linear, strict=True) if ring], number, "ring")
    caption = f"Speedup in {shown[0].basis}; dashed: ideal."
    if any(any(scaling.super_linear) for scaling in shown):
        caption += " A ring marks super-linear scaling, which more GPUs alone cannot explain."
    if len(shown) < len(scalings):
        caption += f" {len(shown)} of {len(scalings)} lines; csv/scaling.csv has all."
    speedups = {scaling.title: scaling.speedup[-1] for scaling in shown}
    legend = [
        (number, f"{' '.join(scaling.title.split())[:60]}: {', '.join(map(str, scaling.counts))} GPUs")
        for number, scaling in enumerate(shown)
    ]
    plot = chart.plot(name, "Scaling", caption, describe(speedups, "times as fast on the most GPUs"))
    return replace(plot, legend=legend)


def time_unit(seconds: Sequence[float]) -> tuple[float, str]:
    """Return seconds per unit, and the unit, in which the longest time is between 2 and a few hundred."""
    longest = max(seconds, default=0.0)
    return next((unit for unit in reversed(_UNITS) if longest >= 2 * unit[0]), _UNITS[0])


def format_duration(seconds: float, longest: float = 0.0) -> str:
    """Return a time in seconds, minutes or hours, whichever suits the longest beside it."""
    factor, unit = time_unit([seconds, longest])
    return f"{format_number(seconds / factor, 3)} {_SHORT_UNITS[unit]}"


def metric_title(metric: str) -> str:
    """Return the name of a metric as a title."""
    name = "quality" if metric == "value" else metric.replace("_", " ")
    return f"{name[0].upper()}{name[1:]}"

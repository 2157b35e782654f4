"""Curves of runs and run groups, of which the page shows any two on the same axes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...record.telemetry_samples import read_power
from ..parse.runs import Run
from .benchmark_charts import Curve, as_curve, metric_title, quality_curve, thin, time_unit
from .chart import Axis, Chart, Plot, span

# Of a line, and of all lines of a chart together, so that a page over thousands of runs stays small.
_MAX_POINTS, _MIN_POINTS, _MAX_POINTS_OF_CHART = 60, 12, 12_000
_MAX_LINEAR_RATIO = 20.0  # of the highest loss to the lowest; beyond, the axis is logarithmic


@dataclass(frozen=True)
class CurveChoice:
    """A run, or a run group whose curves are medians over its runs; `anchor` is its value in the page's menus.

    `gpu` is what the filter matches.
    """

    anchor: str
    label: str
    runs: Sequence[Run]
    gpu: str


@dataclass(frozen=True)
class _Kind:
    """A chart of what `curve_of` returns for each run; with `holds_last`, a run that has ended counts in the median."""

    name: str
    title: str
    caption: str
    curve_of: Callable[[Run], Curve]
    x_label: str = ""  # seconds, in a unit that fits, if it is empty
    target: float | None = None
    holds_last: bool = True


def plot_curves(name: str, choices: Sequence[CurveChoice], picked: Sequence[str]) -> list[Plot]:
    """Return the charts for which there is data, with a line for each choice; those in `picked` are shown at first."""
    first = choices[0].runs[0]
    unit, kinds = first.progress_unit, []
    for number, metric in enumerate((list(first.target) or ["quality"])[:2], start=1):
        title, target = metric_title(metric), first.target.get(metric)
        seconds, progress = (partial(quality_curve, metric=metric, x_name=x) for x in ("seconds", "progress"))
        kinds.append(_Kind(f"quality-{number}-time", f"{title} over time", "", seconds, target=target))
        kinds.append(_Kind(f"quality-{number}-progress", f"{title} over {unit}", "", progress, unit, target))
    kinds.append(_Kind("loss", "Training loss", "Means between evaluations.", _loss_curve, "epochs"))
    kinds.append(_Kind("power", "Power, watts", "All GPUs of a run together.", _power_curve, holds_last=False))
    return [plot for kind in kinds if (plot := _plot(f"{name}-{kind.name}", kind, choices, picked))]


def _plot(name: str, kind: _Kind, choices: Sequence[CurveChoice], picked: Sequence[str]) -> Plot | None:
    runs = {run.source: run for choice in choices for run in choice.runs}
    of_run = {source: kind.curve_of(run) for source, run in runs.items()}
    curves = {}
    for choice in choices:
        known = [curve for run in choice.runs if len((curve := of_run[run.source])[0])]
        if known:
            curves[choice.anchor] = known[0] if len(known) == 1 else _median(known, kind.holds_last)
    if not curves:
        return None
    last = max(float(xs[-1]) for xs, _ in curves.values())
    factor, unit = (1.0, kind.x_label) if kind.x_label else time_unit([last])
    values = [float(value) for _, ys in curves.values() for value in ys]
    y_axis, title = _y_axis(kind, values), kind.title
    title += " (log scale)" if y_axis.is_log else ""
    chart = Chart(Axis(0, last / factor or 1.0, unit), y_axis)
    if kind.target is not None:
        chart.rule(kind.target)
        chart.text(0, kind.target, f"target {kind.target:g}", "start", "above")
    most = max(_MIN_POINTS, min(_MAX_POINTS, _MAX_POINTS_OF_CHART // len(curves)))
    lines = {}
    for anchor, (xs, ys) in curves.items():
        kept = thin(len(xs), most)
        lines[anchor] = ((xs[kept] / factor).tolist(), ys[kept].tolist())
    chart.pickable_lines(lines, picked)
    return chart.plot(name, title, kind.caption, f"{title} of the runs that are picked above.")


def _median(curves: Sequence[Curve], holds_last: bool) -> Curve:
    """Return the median of curves from where most have a value; with `holds_last`, each keeps its last value."""
    first = float(np.median([xs[0] for xs, _ in curves]))
    grid = np.linspace(first, max(float(xs[-1]) for xs, _ in curves), _MAX_POINTS)
    values = np.array([np.interp(grid, xs, ys, np.nan, ys[-1] if holds_last else np.nan) for xs, ys in curves])
    known = np.isfinite(values).any(axis=0)
    return grid[known], np.nanmedian(values[:, known], axis=0)


def _y_axis(kind: _Kind, values: Sequence[float]) -> Axis:
    """Return an axis over all values; that of power starts at 0, and that of a loss that falls far is logarithmic."""
    low, high = min(values), max(values)
    if kind.name == "loss" and low > 0 and high > _MAX_LINEAR_RATIO * low:
        return Axis(low, high, "", is_log=True)
    ends = values if kind.target is None else [*values, kind.target]
    return Axis(*span(ends, from_zero=kind.name == "power"), "")


def _loss_curve(run: Run) -> Curve:
    training = run.run_record.training if run.run_record else None
    return as_curve((block.last_epoch, block.loss) for block in training.blocks) if training else as_curve([])


def _power_curve(run: Run) -> Curve:
    training = run.run_record.training if run.run_record else None
    if training is None:
        return as_curve([])
    return as_curve(read_power(run.folder, training.started_at, training.started_at + training.seconds, _MAX_POINTS))

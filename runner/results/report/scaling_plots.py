"""Plots of scaling over accelerators and of speed against measured peaks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ..analysis.intervals import Interval
from ..analysis.scaling import PeakFit, Scaling
from .drawing import (
    INK,
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


def plots_of_measurements(scalings: Mapping[str, Sequence[Scaling]], fits: Mapping[str, PeakFit]) -> list[Plot]:
    """Return the plots of external and throughput measurements; the keys are their file names."""
    with rc_context(STYLE):
        scaling_plots = [plot_scaling(name, same[0].workload, same) for name, same in scalings.items()]
        return [plot for plot in scaling_plots if plot] + [_plot_peak_fit(name, fit) for name, fit in fits.items()]


def plot_scaling(name: str, title: str, scalings: Sequence[Scaling]) -> Plot | None:
    """Plot the speedup by number of accelerators on log axes, with ideal scaling as a dashed line."""
    if not scalings:
        return None
    shown = scalings[: len(SERIES)]
    figure, (axes,) = stacked_axes(2.4, legend_lines=len(shown) + 1)
    max_factor = max(scaling.counts[-1] / scaling.counts[0] for scaling in shown)
    axes.plot([1, max_factor], [1, max_factor], **REFERENCE_LINE)
    handles = [Line2D([], [], **REFERENCE_LINE, label="ideal scaling")]
    for number, scaling in enumerate(shown):
        factors = [count / scaling.counts[0] for count in scaling.counts]
        axes.plot(factors, scaling.speedup, **series_style(number))
        rows = zip(factors, scaling.speedup, scaling.super_linear, strict=True)
        rings = [(factor, speedup) for factor, speedup, is_super_linear in rows if is_super_linear]
        if rings:
            axes.plot(*zip(*rings, strict=True), "o", markersize=9, markerfacecolor="none", markeredgecolor=INK)
        label = f"{' '.join(scaling.title.split())[:56]}: {', '.join(map(str, scaling.counts))} GPUs"
        handles.append(Line2D([], [], **series_style(number), label=label))
    axes.set(xscale="log", yscale="log", xlabel="number of GPUs, relative to the smallest", ylabel="speedup")
    max_speedup = max(max_factor, *(max(scaling.speedup) for scaling in shown))
    for axis in (axes.xaxis, axes.yaxis):
        set_log_ticks(axis, 1, max_speedup, powers_of_two=True)
    draw_legend(figure, handles)
    caption = f"Speedup in {shown[0].basis} over the smallest number of GPUs."
    if any(any(scaling.super_linear) for scaling in shown):
        caption += " A ring marks super-linear scaling, which the additional GPUs alone cannot explain."
    if len(shown) < len(scalings):
        caption += f" Showing {len(shown)} of {len(scalings)} lines; the CSV file has all lines."
    description = "; ".join(
        f"{scaling.title}: {format_number(scaling.speedup[-1])} times on {scaling.counts[-1]} GPUs" for scaling in shown
    )
    return render_plot(name, f"Scaling, {title}", caption, description + ".", figure, _scaling_rows(scalings))


def _scaling_rows(scalings: Sequence[Scaling]) -> list[dict[str, Any]]:
    return [
        {
            "title": scaling.title,
            "basis": scaling.basis,
            "num_accelerators": count,
            "speedup": speedup,
            **interval_columns("efficiency", efficiency),
            "super_linear": is_super_linear,
        }
        for scaling in scalings
        for count, speedup, efficiency, is_super_linear in zip(
            scaling.counts, scaling.speedup, scaling.efficiency, scaling.super_linear, strict=True
        )
    ]


def _plot_peak_fit(name: str, fit: PeakFit) -> Plot:
    """Plot measured speed over peak with the power law and its prediction band above, factors from it below.

    Diamonds mark the predictions for two peaks that were not measured: the middle of the range, and 1.5 times its end.
    """
    peaks, law = np.array(fit.peaks), fit.power_law
    unmeasured = [float(peaks.min() + peaks.max()) / 2, 1.5 * float(peaks.max())]
    predictions = {peak: law.predict(peak) for peak in unmeasured}
    x_max = unmeasured[1] * 1.05
    figure, (above, below) = stacked_axes(2.3, 0.8, gap=0.28)
    top = 2 * max(*fit.speeds, *(speed.estimate for speed in predictions.values()))
    _draw_fit(above, fit, predictions, np.linspace(float(peaks.min()) / 2, x_max, 50), top)
    factors = np.exp(law.residuals)
    below.axhline(1, color=SERIES[0])
    below.vlines(peaks, 1, factors, color=INK, linewidth=1)
    below.plot(peaks, factors, "o", color=INK)
    above.set(ylabel=fit.speed_unit, xlim=(0, x_max), ylim=(0, top))
    above.tick_params(labelbottom=False)
    below.set(xlabel=f"{fit.peak_name} in {fit.peak_unit}", ylabel="times the fit", xlim=(0, x_max))
    predicted = " and ".join(
        f"{format_number(speed.estimate)} ({format_number(speed.low)} to {format_number(speed.high)}) "
        f"at {format_number(peak)} {fit.peak_unit}"
        for peak, speed in predictions.items()
    )
    exponent = law.exponent
    caption = (
        f"Power law fitted on logs, {law.n} GPUs: speed grows as the peak to the power of {exponent.estimate:.2f} "
        f"(95% CI: {exponent.low:.2f} to {exponent.high:.2f}). The band is the 95% prediction interval for another "
        f"GPU. Predictions (diamonds): {predicted}. A line through the origin has R² {fit.line.r2_uncentered:.3f} "
        f"uncentered, {fit.line.r2_centered:.3f} centered."
    )
    exponent_text = format_number(exponent.estimate)
    description = f"Points of {law.n} GPUs with a power law of exponent {exponent_text}, factors from it below."
    title = f"Speed by {fit.peak_name}: {fit.workload}"
    return render_plot(name, title, caption, description, figure, _peak_fit_rows(fit, predictions))


def _draw_fit(axes: Axes, fit: PeakFit, predictions: Mapping[float, Interval], x: Any, top: float) -> None:
    """Draw prediction band, curve, measured points with their names, and predictions; the band ends at `top`."""
    peaks, residuals = np.array(fit.peaks), fit.power_law.residuals
    band = [fit.power_law.predict(float(value)) for value in x]
    lows, highs = [min(interval.low, top) for interval in band], [min(interval.high, top) for interval in band]
    axes.fill_between(x, lows, highs, color=SERIES[0], alpha=0.15, linewidth=0)
    axes.plot(x, [interval.estimate for interval in band], color=SERIES[0])
    axes.plot(peaks, np.array(fit.speeds), "o", color=INK)
    above_line = [index for index in np.argsort(peaks) if residuals[index] >= 0]
    for index, device in enumerate(fit.accelerators):
        # Names stay clear of the curve: upper left of points above it (upper right of the last), else lower right.
        if index in above_line[:-1]:
            offset, alignment = (-4, 5), "right"
        else:
            offset, alignment = ((4, 5) if index in above_line else (4, -10)), "left"
        point = (float(peaks[index]), float(fit.speeds[index]))
        axes.annotate(device, point, offset, textcoords="offset points", ha=alignment)
    diamond: dict[str, Any] = {"marker": "D", "markerfacecolor": "none", "color": SERIES[1], "capsize": 2}
    for peak, speed in predictions.items():
        visible = replace(speed, high=min(speed.high, top))
        axes.errorbar(peak, speed.estimate, yerr=error_bar(visible), **diamond)


def _peak_fit_rows(fit: PeakFit, predictions: Mapping[float, Interval]) -> list[dict[str, Any]]:
    factors = np.exp(fit.power_law.residuals).tolist()
    rows: list[dict[str, Any]] = [
        {"accelerator": device, "peak": peak, "speed": speed, "times_fit": factor, "low": "", "high": ""}
        for device, peak, speed, factor in zip(fit.accelerators, fit.peaks, fit.speeds, factors, strict=True)
    ]
    for peak, speed in predictions.items():
        row = {"accelerator": "predicted", "peak": peak, "speed": speed.estimate, "times_fit": ""}
        rows.append(row | {"low": speed.low, "high": speed.high})
    return rows

"""The plot of speed over the peak of several GPUs, with a power law."""

import numpy as np

from ..analysis.scaling import PeakFit
from .chart import Axis, Chart, Plot
from .page_text import format_number


def plot_peak_fit(name: str, fit: PeakFit) -> Plot:
    """Plot measured speed over peak with the power law and its prediction band.

    Diamonds mark the predictions for two peaks that were not measured: the middle of the range, and 1.5 times its end.
    """
    peaks, law = np.array(fit.peaks), fit.power_law
    unmeasured = [float(peaks.min() + peaks.max()) / 2, 1.5 * float(peaks.max())]
    predictions = {peak: law.predict(peak) for peak in unmeasured}
    last = unmeasured[1] * 1.05
    top = 2 * max(*fit.speeds, *(speed.estimate for speed in predictions.values()))
    chart = Chart(Axis(0, last, f"{fit.peak_name} in {fit.peak_unit}"), Axis(0, top, fit.speed_unit))
    grid = np.linspace(float(peaks.min()) / 2, last, 50).tolist()
    band = [law.predict(value) for value in grid]
    chart.band(grid, [entry.low for entry in band], [entry.high for entry in band], 0)
    chart.line(grid, [entry.estimate for entry in band], 0)
    points = [(peak, float(speed)) for peak, speed in zip(fit.peaks, fit.speeds, strict=True)]
    chart.dots(points, 0)
    for device, point in zip(fit.accelerators, points, strict=True):
        chart.text(*point, device, "end", "above")
    chart.dots([(peak, speed.estimate) for peak, speed in predictions.items()], 1, "diamond")
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
    description = f"Points of {law.n} GPUs with a power law of exponent {format_number(exponent.estimate)}."
    return chart.plot(name, f"Speed by {fit.peak_name}: {fit.workload}", caption, description)

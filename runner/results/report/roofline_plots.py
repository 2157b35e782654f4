"""The roofline plot of a GPU, and the tables of its peaks and of the workloads below them."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ..analysis.roofline import Roofline, RooflinePoint, Roofs
from .drawing import INK, MUTED, PAPER, SERIES, STYLE, Plot, draw_legend, format_number, render_plot, stacked_axes
from .tables import Table

EXPLANATION = (
    "A workload can perform no more operations per second than the peak of the GPU in its number format (horizontal "
    "roof), and no more than the memory bandwidth can feed (sloped roof). Which roof limits it depends on the number "
    "of operations per byte of memory traffic. The actual traffic is unknown without a profiler, so each workload is "
    "drawn as a range: the number marks the traffic if no operations are fused or cached, the right end marks the "
    "minimum: weights, gradients, optimizer state and the batch."
)
_MICROBENCHMARK_COLUMNS = (
    *("kind", "shape", "storage", "compute", "tflops", "gb_s"),
    *("seconds", "fastest", "slowest", "repeats", "core_mhz", "watts", "host_bound"),
)
_FORMATS = ("fp32", "tf32", "bf16", "fp16")
_MAX_WORKLOADS = 16  # per plot
_MEASURED: dict[str, Any] = {"linewidth": 1.8}
_DATASHEET: dict[str, Any] = {"linewidth": 0.7, "linestyle": (0, (4, 2))}


def plot_roofline(name: str, roofline: Roofline) -> Plot:
    """Plot both roofs on log axes, measured ones thick and those of the data sheet thin, and the workloads below."""
    points, formats = _select_points(roofline.points), _formats(roofline)
    with rc_context(STYLE):
        figure, (axes,) = stacked_axes(3.3, legend_lines=len(points) + 2)
        intensities = [value for point in points for value in (point.unfused_intensity, point.max_intensity)]
        low, high = _axis_range(intensities, _ridge_points(roofline))
        high *= 8  # room for the names of the roofs
        for roofs, style in ((roofline.datasheet, _DATASHEET), (roofline.measured, _MEASURED)):
            if roofs and roofs.gb_s:
                _draw_roofs(axes, roofs, formats, low, high, style)
        peaks = [roofs.tflops[name] for roofs in _known_roofs(roofline) for name in formats if name in roofs.tflops]
        bottom, top = _axis_range([point.tflops for point in points], peaks)
        _label_roofs(axes, roofline, formats, high)
        for number, point in reversed(list(enumerate(points, start=1))):  # the fastest workload on top
            _draw_point(axes, number, point)
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(bottom, top))
        axes.set(xlabel="operations per byte of memory traffic", ylabel="TFLOP/s per GPU")
        for axis, ends in ((axes.xaxis, (low, high)), (axes.yaxis, (bottom, top))):
            _set_decade_ticks(axis, *ends)
        workload_entries = [_workload_entry(number, point) for number, point in enumerate(points, 1)]
        draw_legend(figure, [*_roof_entries(roofline), *workload_entries])
    description = "; ".join(
        f"{point.title}: {format_number(point.tflops, 3)} TFLOP/s, {point.bound}" for point in points
    )
    caption = _caption(roofline, len(points))
    data = [_point_row(point) for point in roofline.points]
    title = f"Roofline of {roofline.accelerator}"
    return render_plot(name, title, caption, description or "Roofs without workloads", figure, data)


def _caption(roofline: Roofline, num_shown: int) -> str:
    measured, datasheet = (bool(roofs and roofs.gb_s) for roofs in (roofline.measured, roofline.datasheet))
    if measured:
        sentences = ["Thick lines: measured by timetrial peaks; percentages refer to these."]
        sentences += ["Thin lines: data sheet."] if datasheet else []
    else:
        roofs = "The roofs are those of the data sheet." if datasheet else "There are no roofs."
        sentences = [f"{roofs} Run timetrial peaks gemm copy to measure them."]
    sentences.append("Numbers: workloads.")
    if num_shown < len(roofline.points):
        sentences.append(
            f"Showing {num_shown} of {len(roofline.points)}: each on the fewest GPUs, those with the most operations "
            "per second."
        )
    return " ".join(sentences)


def _select_points(points: Sequence[RooflinePoint]) -> list[RooflinePoint]:
    """Return each workload on its fewest GPUs, in the given order: on more GPUs its point hardly moves."""
    fewest: dict[tuple[str, str, int], RooflinePoint] = {}
    for point in sorted(points, key=lambda point: point.num_accelerators):
        fewest.setdefault((point.workload, point.precision, point.batch), point)
    return [point for point in points if point in fewest.values()][:_MAX_WORKLOADS]


def _known_roofs(roofline: Roofline) -> list[Roofs]:
    return [roofs for roofs in (roofline.measured, roofline.datasheet) if roofs]


def _formats(roofline: Roofline) -> list[str]:
    """Return the number formats that have a roof."""
    return [name for name in _FORMATS if any(name in roofs.tflops for roofs in _known_roofs(roofline))]


def _ridge_points(roofline: Roofline) -> list[float]:
    """Return the operations per byte at which each horizontal roof meets its sloped roof."""
    return [peak * 1e3 / roofs.gb_s for roofs in _known_roofs(roofline) if roofs.gb_s for peak in roofs.tflops.values()]


def _axis_range(points: Iterable[float], roofs: Iterable[float]) -> tuple[float, float]:
    """Return the ends of a log axis that contains all values, with room for labels."""
    known = [value for value in (*points, *roofs) if value > 0] or [1.0]
    return min(known) / 3, max(known) * 2.2


def _color(precision: str) -> str:
    return SERIES[_FORMATS.index(precision)] if precision in _FORMATS else INK


def _draw_roofs(
    axes: Axes, roofs: Roofs, formats: Sequence[str], low: float, high: float, style: dict[str, Any]
) -> None:
    """Draw the slope up to the highest horizontal roof, and each horizontal roof from the slope on."""
    slope = (roofs.gb_s or 0.0) / 1e3  # TFLOP/s for each operation per byte
    peaks = {name: roofs.tflops[name] for name in formats if name in roofs.tflops}
    top = max(peaks.values(), default=slope * high)
    axes.plot([low, top / slope], [slope * low, top], color=MUTED, **style)
    for name, peak in peaks.items():
        axes.plot([peak / slope, high], [peak, peak], color=_color(name), **style)


def _label_roofs(axes: Axes, roofline: Roofline, formats: Sequence[str], x: float) -> None:
    """Write the format and peak of each horizontal roof at its right end; roofs of similar height share a line."""
    roofs = roofline.measured or roofline.datasheet
    if not roofs:
        return
    rows: list[tuple[float, list[str]]] = []
    for peak, name in sorted((roofs.tflops[name], name) for name in formats if name in roofs.tflops):
        label = f"{name} {format_number(peak, 3)}"
        if rows and peak < 1.25 * rows[-1][0]:
            rows[-1] = (peak, [*rows[-1][1], label])
        else:
            rows.append((peak, [label]))
    background = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.6}
    style: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "va": "top", "bbox": background}
    for height, labels in rows:
        axes.annotate(", ".join(labels), (x, height), (-2, -3), fontsize=7.5, zorder=4, **style)


def _draw_point(axes: Axes, number: int, point: RooflinePoint) -> None:
    """Draw a workload: its number at the unfused traffic, and a line to the minimum traffic."""
    color = _color(point.precision)
    axes.plot(
        [point.unfused_intensity, point.max_intensity], [point.tflops] * 2, color=color, linewidth=1.0, alpha=0.55
    )
    axes.plot(point.max_intensity, point.tflops, "|", color=color, markersize=6)
    axes.plot(point.unfused_intensity, point.tflops, "o", color=color, markersize=9.5, markeredgecolor=PAPER, zorder=5)
    style: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": 6.2, "color": PAPER, "zorder": 6}
    axes.text(point.unfused_intensity, point.tflops, str(number), fontweight="bold", **style)


def _workload_entry(number: int, point: RooflinePoint) -> Line2D:
    share = f", {format_number(100 * point.fraction_of_measured, 2)}% of peak" if point.fraction_of_measured else ""
    label = f"{number}  {point.short_title}: {format_number(point.tflops, 3)} TFLOP/s{share}"
    return Line2D([], [], color=_color(point.precision), marker="o", linewidth=1.0, label=label)


def _roof_entries(roofline: Roofline) -> list[Line2D]:
    entries = []
    for roofs, source, style in (
        (roofline.measured, "measured", _MEASURED),
        (roofline.datasheet, "data sheet", _DATASHEET),
    ):
        if roofs and roofs.gb_s:
            label = f"{source}: memory bandwidth {format_number(roofs.gb_s, 3)} GB/s, arithmetic peak per format"
            entries.append(Line2D([], [], color=MUTED, label=label, **style))
    return entries


def _set_decade_ticks(axis: Any, low: float, high: float) -> None:
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    axis.set_major_locator(FixedLocator([10.0**power for power in powers]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))


def peaks_table(name: str, roofline: Roofline) -> Table:
    """Return the table of peaks: measured, from the data sheet, and their ratio."""
    rows, data = [], _roof_rows(roofline)
    for row in data:
        ratio = f"{row['measured'] / row['data_sheet']:.0%}" if row["measured"] and row["data_sheet"] else ""
        values = [format_number(row[key], 4) if row[key] else "unknown" for key in ("measured", "data_sheet")]
        rows.append([f"{row['roof']}, {row['unit']}", *values, ratio])
    source = f" (measured: {roofline.source})" if roofline.source else ""
    columns = ["Peak", "Measured", "Data sheet", "Measured / data sheet"]
    return Table(name, f"Peaks of {roofline.accelerator}{source}", columns, rows, data)


def workloads_table(name: str, roofline: Roofline) -> Table:
    """Return the table of the workloads below the roofs."""
    columns = ["Workload", "Bound by", "TFLOP/s per GPU", "Of measured peak", "Of data sheet"]
    columns += ["Operations per byte, unfused", "Operations per byte, at most"]
    rows = [
        [
            point.title,
            point.bound,
            format_number(point.tflops, 3),
            *(
                f"{share:.1%}" if share else "unknown"
                for share in (point.fraction_of_measured, point.fraction_of_datasheet)
            ),
            format_number(point.unfused_intensity, 3),
            format_number(point.max_intensity, 3),
        ]
        for point in roofline.points
    ]
    data = [_point_row(point) for point in roofline.points]
    return Table(name, f"Training workloads on {roofline.accelerator}", columns, rows, data, text_columns=2)


def microbenchmarks_table(name: str, roofline: Roofline) -> Table:
    """Return the table of the micro-benchmarks that `timetrial peaks` ran."""
    columns = ["Operation", "Shape", "Stored in", "Computed in", "TFLOP/s", "GB/s", "Spread of repeats"]
    data = [{key: row[key] for key in _MICROBENCHMARK_COLUMNS} for row in roofline.fastest_rows]
    rows = [
        [
            *(str(row[key]) for key in ("kind", "shape", "storage", "compute")),
            format_number(row["tflops"], 3) if row["tflops"] else "",
            format_number(row["gb_s"], 3) if row["gb_s"] and not row["tflops"] else "",
            f"{(row['slowest'] - row['fastest']) / row['seconds']:.1%}" if row["repeats"] > 1 else "",
        ]
        for row in data
    ]
    caption = f"Fastest micro-benchmark of each kind and format, measured by timetrial peaks on {roofline.accelerator}"
    return Table(name, caption, columns, rows, data, text_columns=4)


def _roof_rows(roofline: Roofline) -> list[dict[str, Any]]:
    def peak(roofs: Roofs | None, name: str) -> float | None:
        return None if roofs is None else roofs.gb_s if name == "memory" else roofs.tflops.get(name)

    return [
        {
            "roof": name,
            "unit": "GB/s" if name == "memory" else "TFLOP/s",
            "measured": peak(roofline.measured, name),
            "data_sheet": peak(roofline.datasheet, name),
        }
        for name in (*_formats(roofline), "memory")
    ]


def _point_row(point: RooflinePoint) -> dict[str, Any]:
    return {
        "workload": point.workload,
        "accelerator": point.accelerator,
        "num_accelerators": point.num_accelerators,
        "precision": point.precision,
        "batch_per_accelerator": point.batch,
        "tflops": point.tflops,
        "fraction_of_measured_peak": point.fraction_of_measured,
        "fraction_of_data_sheet": point.fraction_of_datasheet,
        "operations_per_byte_unfused": point.unfused_intensity,
        "operations_per_byte_at_most": point.max_intensity,
        "bound_by": point.bound,
    }

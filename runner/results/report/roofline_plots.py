"""The roofline plot of a GPU, and the tables of its peaks and of the workloads below them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..analysis.roofline import Roofline, RooflinePoint, Roofs
from .chart import MAX_SERIES, Axis, Chart, Plot
from .page_text import format_number
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


def plot_roofline(name: str, roofline: Roofline) -> Plot:
    """Plot both roofs on log axes, measured ones thick and those of the data sheet thin, and the workloads below."""
    points, formats = _select_points(roofline.points), _formats(roofline)
    intensities = [value for point in points for value in (point.unfused_intensity, point.max_intensity)]
    low, high = _axis_range(intensities, _ridge_points(roofline))
    high *= 8  # room for the names of the roofs
    peaks = [roofs.tflops[name] for roofs in _known_roofs(roofline) for name in formats if name in roofs.tflops]
    bottom, top = _axis_range([point.tflops for point in points], peaks)
    x_axis = Axis(low, high, "operations per byte of memory traffic", is_log=True, ticks=_decades(low, high))
    chart = Chart(x_axis, Axis(bottom, top, "", is_log=True, ticks=_decades(bottom, top)), height=250)
    for roofs, kind in ((roofline.datasheet, "line thin"), (roofline.measured, "line thick")):
        if roofs and roofs.gb_s:
            _draw_roofs(chart, roofs, formats, kind)
    _label_roofs(chart, roofline, formats)
    for number, point in reversed(list(enumerate(points, start=1))):  # the fastest workload on top
        _draw_point(chart, number, point)
    description = "; ".join(
        f"{point.title}: {format_number(point.tflops, 3)} TFLOP/s, {point.bound}" for point in points
    )
    title = f"Roofline of {roofline.accelerator}, TFLOP/s per GPU"
    plot = chart.plot(name, title, _caption(roofline, len(points)), description or "Roofs without workloads")
    return replace(plot, legend=[_workload_entry(number, point) for number, point in enumerate(points, 1)])


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


def _series(precision: str) -> int:
    return _FORMATS.index(precision) if precision in _FORMATS else MAX_SERIES - 1


def _draw_roofs(chart: Chart, roofs: Roofs, formats: Sequence[str], kind: str) -> None:
    """Draw the slope up to the highest horizontal roof, and each horizontal roof from the slope on."""
    slope, low, high = (roofs.gb_s or 0.0) / 1e3, chart.x.low, chart.x.high  # TFLOP/s for each operation per byte
    peaks = {name: roofs.tflops[name] for name in formats if name in roofs.tflops}
    top = max(peaks.values(), default=slope * high)
    bottom = chart.y.low if chart.y else 0.0
    chart.line([max(low, bottom / slope), top / slope], [max(slope * low, bottom), top], MAX_SERIES - 1, kind)
    for name, peak in peaks.items():
        chart.line([peak / slope, high], [peak, peak], _series(name), kind)


def _label_roofs(chart: Chart, roofline: Roofline, formats: Sequence[str]) -> None:
    """Write the format and peak of each horizontal roof at its right end; roofs of similar height share a line."""
    roofs = roofline.measured or roofline.datasheet
    if not roofs:
        return
    rows: list[tuple[float, list[str]]] = []
    for peak, name in sorted((roofs.tflops[name], name) for name in formats if name in roofs.tflops):
        label = f"{name} {format_number(peak, 3)}"
        if rows and peak < 1.4 * rows[-1][0]:
            rows[-1] = (peak, [*rows[-1][1], label])
        else:
            rows.append((peak, [label]))
    for height, labels in rows:
        chart.text(chart.x.high, height, ", ".join(labels), "end", "above")


def _draw_point(chart: Chart, number: int, point: RooflinePoint) -> None:
    """Draw a workload: its number at the unfused traffic, and a line to the minimum traffic."""
    series = _series(point.precision)
    chart.line([point.unfused_intensity, point.max_intensity], [point.tflops] * 2, series, "line thin")
    chart.dots([(point.unfused_intensity, point.tflops)], series, "disc")
    chart.text(point.unfused_intensity, point.tflops, str(number), "middle", "inside")


def _workload_entry(number: int, point: RooflinePoint) -> tuple[int, str]:
    share = f", {format_number(100 * point.fraction_of_measured, 2)}% of peak" if point.fraction_of_measured else ""
    return _series(point.precision), (f"{number}  {point.short_title}: {format_number(point.tflops, 3)} TFLOP/s{share}")


def _decades(low: float, high: float) -> list[tuple[float, str]]:
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    return [(10.0**power, f"{10**power:,}" if power >= 0 else f"{10.0**power:g}") for power in powers]


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

"""The roofline of a card: a picture, a table of its peaks and one of the workloads under them."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ..analysis.roofline import Place, Roofline, Roofs
from .drawing import INK, MUTED, PAPER, SERIES, STYLE, Picture, legend, panels, picture, plain

EXPLANATION = (
    "No workload does more operations a second than its card's arithmetic in that format allows (a flat roof), nor "
    "more than its memory can feed (the slope): which is nearer depends on how many operations are done with each "
    "byte. How many bytes truly move nobody tells, so each workload is a span: its number stands where nothing is "
    "fused or cached, its right end where only weights, gradients, optimizer state and the batch would move."
)
_TIMED = (
    *("kind", "shape", "storage", "compute", "tflops", "gb_s"),
    *("seconds", "fastest", "slowest", "repeats", "core_mhz", "watts", "host_bound"),
)
_FORMATS = ("fp32", "tf32", "bf16", "fp16")
_MOST = 16  # places that a picture can hold


def roofline(name: str, line: Roofline) -> Picture:
    """Both roofs on log axes, measured ones thick and those of the data sheet thin; a span a workload below them."""
    shown, used = _drawn(line.places), _formats(line)
    with rc_context(STYLE):
        canvas, (axes,) = panels(3.3, legend=len(shown) + 2)
        low, high = _span([value for place in shown for value in (place.unfused, place.at_most)], _ridges(line))
        high *= 8  # where the roofs have their names
        for roofs, style in (
            (line.sheet, {"linewidth": 0.7, "linestyle": (0, (4, 2))}),
            (line.measured, {"linewidth": 1.8}),
        ):
            if roofs and roofs.gb_s:
                _draw_roofs(axes, roofs, used, low, high, style)
        heights = [roofs.tflops[one] for roofs in _both(line) for one in used if one in roofs.tflops]
        floor, top = _span([place.tflops for place in shown], heights)
        _name_roofs(axes, line, used, high)
        for number, place in reversed(list(enumerate(shown, start=1))):  # the busiest on top
            _draw_place(axes, number, place)
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(floor, top))
        axes.set(xlabel="operations a byte of memory traffic", ylabel="TFLOP/s of one card")
        for axis, ends in ((axes.xaxis, (low, high)), (axes.yaxis, (floor, top))):
            _decades(axis, *ends)
        legend(canvas, [*_legend_of_roofs(line), *(_entry(number, place) for number, place in enumerate(shown, 1))])
    measured, sheet = (bool(roofs and roofs.gb_s) for roofs in (line.measured, line.sheet))
    thick = "Thick: measured by timetrial peaks; shares are of these." if measured else ""
    thin = "Thin: data sheet." if sheet else ""
    if not measured:
        thick = "The roofs are the data sheet's" if sheet else "There are no roofs"
        thick += ": timetrial peaks measures this card's own, gemm and copy at least."
        thin = ""
    caption = " ".join(filter(None, (thick, thin, "Numbers: workloads.")))
    if len(shown) < len(line.places):
        caption += f" Drawn are {len(shown)} of {len(line.places)}: on the fewest cards, the most operations a second."
    data = [_place_row(place) for place in line.places]
    described = "; ".join(f"{place.title}: {plain(place.tflops, 3)} TFLOP/s, {place.bound}" for place in shown)
    return picture(name, f"Roofline of {line.card}", caption, described or "Roofs without workloads", canvas, data)


def _drawn(places: Sequence[Place]) -> list[Place]:
    """On more cards a workload stands nearly where it stands on one: of each that on the fewest, the busiest first."""
    fewest: dict[tuple[str, str, int], Place] = {}
    for place in sorted(places, key=lambda place: place.count):
        fewest.setdefault((place.work, place.precision, place.batch), place)
    return [place for place in places if place in fewest.values()][:_MOST]


def _both(line: Roofline) -> list[Roofs]:
    return [roofs for roofs in (line.measured, line.sheet) if roofs]


def _formats(line: Roofline) -> list[str]:
    """Formats with a roof."""
    return [one for one in _FORMATS if any(one in roofs.tflops for roofs in _both(line))]


def _ridges(line: Roofline) -> list[float]:
    return [peak * 1e3 / roofs.gb_s for roofs in _both(line) if roofs.gb_s for peak in roofs.tflops.values()]


def _span(values: Iterable[float], others: Iterable[float]) -> tuple[float, float]:
    """Ends of a log axis that holds all of it, with room for words."""
    known = [value for value in (*values, *others) if value > 0] or [1.0]
    return min(known) / 3, max(known) * 2.2


def _colour(precision: str) -> str:
    return SERIES[_FORMATS.index(precision)] if precision in _FORMATS else INK


def _draw_roofs(axes: Any, roofs: Roofs, used: Sequence[str], low: float, high: float, style: dict[str, Any]) -> None:
    """The slope up to the highest ceiling, and each ceiling from the slope on."""
    slope = (roofs.gb_s or 0.0) / 1e3  # TFLOP/s for each operation a byte
    peaks = {one: roofs.tflops[one] for one in used if one in roofs.tflops}
    top = max(peaks.values(), default=slope * high)
    axes.plot([low, top / slope], [slope * low, top], color=MUTED, **style)
    for one, peak in peaks.items():
        axes.plot([peak / slope, high], [peak, peak], color=_colour(one), **style)


def _name_roofs(axes: Any, line: Roofline, used: Sequence[str], high: float) -> None:
    """Each ceiling's name at its right end; formats of one height share a line of text."""
    roofs = line.measured or line.sheet
    if not roofs:
        return
    rows: list[tuple[float, list[str]]] = []
    for one in sorted((one for one in used if one in roofs.tflops), key=lambda one: roofs.tflops[one]):
        if rows and roofs.tflops[one] < 1.25 * rows[-1][0]:
            rows[-1] = (roofs.tflops[one], [*rows[-1][1], f"{one} {plain(roofs.tflops[one], 3)}"])
        else:
            rows.append((roofs.tflops[one], [f"{one} {plain(roofs.tflops[one], 3)}"]))
    for height, names in rows:
        ground = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.6}
        where: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "va": "top", "bbox": ground}
        axes.annotate(", ".join(names), (high, height), (-2, -3), fontsize=7.5, zorder=4, **where)


def _draw_place(axes: Any, number: int, place: Place) -> None:
    colour = _colour(place.precision)
    axes.plot([place.unfused, place.at_most], [place.tflops] * 2, color=colour, linewidth=1.0, alpha=0.55)
    axes.plot(place.at_most, place.tflops, "|", color=colour, markersize=6)
    axes.plot(place.unfused, place.tflops, "o", color=colour, markersize=9.5, markeredgecolor=PAPER, zorder=5)
    words: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": 6.2, "color": PAPER, "zorder": 6}
    axes.text(place.unfused, place.tflops, str(number), fontweight="bold", **words)


def _entry(number: int, place: Place) -> Line2D:
    share = f", {plain(100 * place.of_measured, 2)}% of peak" if place.of_measured else ""
    words = f"{number}  {place.short}: {plain(place.tflops, 3)} TFLOP/s{share}"
    return Line2D([], [], color=_colour(place.precision), marker="o", linewidth=1.0, label=words)


def _legend_of_roofs(line: Roofline) -> list[Line2D]:
    entries = []
    for roofs, word, style in (
        (line.measured, "measured", {"linewidth": 1.8}),
        (line.sheet, "data sheet", {"linewidth": 0.7, "linestyle": (0, (4, 2))}),
    ):
        if roofs and roofs.gb_s:
            label = f"{word}: memory at {plain(roofs.gb_s, 3)} GB/s, arithmetic by format"
            entries.append(Line2D([], [], color=MUTED, label=label, **style))
    return entries


def _decades(axis: Any, low: float, high: float) -> None:
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    axis.set_major_locator(FixedLocator([10.0**power for power in powers]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))


def peaks(line: Roofline) -> tuple[str, list[str], list[list[str]], list[dict[str, Any]]]:
    """Caption, columns, rows and data of the table of peaks."""
    rows, data = [], _roof_rows(line)
    for row in data:
        share = f"{row['measured'] / row['data_sheet']:.0%}" if row["measured"] and row["data_sheet"] else ""
        told = [plain(row[key], 4) if row[key] else "not known" for key in ("measured", "data_sheet")]
        rows.append([f"{row['roof']}, {row['unit']}", *told, share])
    source = f" (measured: {line.source})" if line.source else ""
    return f"Peaks of {line.card}{source}", ["Peak", "ThroughputMeter", "Data sheet", "BatchSharding"], rows, data


def places(line: Roofline) -> tuple[str, list[str], list[list[str]], list[dict[str, Any]]]:
    """Caption, columns, rows and data of the table of workloads."""
    columns = ["Workload", "Bound by", "TFLOP/s of one card", "Of measured peak", "Of data sheet"]
    columns += ["Operations a byte, unfused", "at most"]
    rows = [
        [
            place.title,
            place.bound,
            plain(place.tflops, 3),
            *(f"{share:.1%}" if share else "not known" for share in (place.of_measured, place.of_sheet)),
            plain(place.unfused, 3),
            plain(place.at_most, 3),
        ]
        for place in line.places
    ]
    return f"Workloads on {line.card}, training", columns, rows, [_place_row(place) for place in line.places]


def timed(line: Roofline) -> tuple[str, list[str], list[list[str]], list[dict[str, Any]]]:
    """Caption, columns, rows and data of the table of micro-benchmarks."""
    columns = ["Operation", "Shape", "Stored in", "Computed in", "TFLOP/s", "GB/s", "Repeats within"]
    data = [{key: row[key] for key in _TIMED} for row in line.timed]
    rows = [
        [
            *(str(row[key]) for key in ("kind", "shape", "storage", "compute")),
            plain(row["tflops"], 3) if row["tflops"] else "",
            plain(row["gb_s"], 3) if row["gb_s"] and not row["tflops"] else "",
            f"{(row['slowest'] - row['fastest']) / row['seconds']:.1%}" if row["repeats"] > 1 else "",
        ]
        for row in data
    ]
    return f"The fastest of each kind and format that timetrial peaks timed on {line.card}", columns, rows, data


def _roof_rows(line: Roofline) -> list[dict[str, Any]]:
    def value(roofs: Roofs | None, one: str) -> float | None:
        return None if roofs is None else roofs.gb_s if one == "memory" else roofs.tflops.get(one)

    return [
        {
            "roof": one,
            "unit": "GB/s" if one == "memory" else "TFLOP/s",
            "measured": value(line.measured, one),
            "data_sheet": value(line.sheet, one),
        }
        for one in (*_formats(line), "memory")
    ]


def _place_row(place: Place) -> dict[str, Any]:
    return {
        "workload": place.work,
        "card": place.card,
        "cards": place.count,
        "precision": place.precision,
        "batch_per_card": place.batch,
        "tflops": place.tflops,
        "of_measured_peak": place.of_measured,
        "of_data_sheet": place.of_sheet,
        "operations_per_byte_unfused": place.unfused,
        "operations_per_byte_at_most": place.at_most,
        "bound_by": place.bound,
    }

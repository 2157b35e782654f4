"""How pictures look: one scale, colours and fonts left to the page, SVG that can stand inside it."""

import html
import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from ..analysis.stats import Interval

# Colours that stand for variables of the style sheet, so that one picture serves light, dark and print.
INK, MUTED, _GRID, PAPER = "#010201", "#010202", "#010203", "#010204"
SERIES = [f"#0103{number:02x}" for number in range(1, 9)]
_VARIABLES = {INK: "ink", MUTED: "muted", _GRID: "grid", PAPER: "paper"} | {
    colour: f"series-{number}" for number, colour in enumerate(SERIES, start=1)
}
_MARKERS, _DASHES = "os^DvPX*", ("solid", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
_WIDTH, _LINE = 5.6, 0.165  # inches: of every picture, so that all have one scale; of a line of the legend
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "timetrial", "text.parse_math": False, "font.size": 8.5,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": MUTED, "axes.linewidth": 0.7,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": _GRID, "grid.linewidth": 0.6, "xtick.color": MUTED, "ytick.color": MUTED,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "xtick.major.size": 3, "ytick.major.size": 3,
    "lines.linewidth": 1.2, "lines.markersize": 4.5, "legend.frameon": False, "legend.fontsize": 8.5,
}  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """A picture, what to say below it, and the rows of its CSV file `name`.csv."""

    name: str
    title: str
    caption: str
    svg: str
    data: Sequence[Mapping[str, Any]]


def plain(value: float, counting: int = 4) -> str:
    """A number with so many digits that count."""
    if not math.isfinite(value):
        return "not known"
    digits = 0 if value == 0 or abs(value) >= 1000 else max(0, counting - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def series(number: int) -> dict[str, Any]:
    """Colour, dashes and marker of a series: any one of them would do."""
    return {"color": SERIES[number], "linestyle": _DASHES[number % len(_DASHES)], "marker": _MARKERS[number]}


def arms(found: Interval) -> list[list[float]] | None:
    """An interval as matplotlib's error bars; None where there is none."""
    if not math.isfinite(found.low) or not math.isfinite(found.high):
        return None
    return [[max(0.0, found.estimate - found.low)], [max(0.0, found.high - found.estimate)]]


def in_columns(what: str, found: Interval | None) -> dict[str, Any]:
    """An interval as columns of a CSV file, empty where nothing is known."""
    ends = {what: found.estimate, f"{what}_low": found.low, f"{what}_high": found.high} if found else {}
    known = {name: end if math.isfinite(end) else None for name, end in ends.items()}
    return (
        known | {f"{what}_n": found.n} if found else dict.fromkeys([what, f"{what}_low", f"{what}_high", f"{what}_n"])
    )


def panels(*heights: float, legend: int = 0, left: float = 0.62, gap: float = 0.0) -> tuple[Canvas, list[Axes]]:
    """Axes below one another, given in inches: no layout engine, which would take longer than the drawing."""
    top, bottom, right = 0.12, 0.48 + legend * _LINE + (0.08 if legend else 0), 0.14
    total = top + sum(heights) + gap * (len(heights) - 1) + bottom
    canvas, upper, axes = Canvas(figsize=(_WIDTH, total)), total - top, []
    for height in heights:
        axes.append(
            canvas.add_axes((left / _WIDTH, (upper - height) / total, 1 - (left + right) / _WIDTH, height / total))
        )
        upper -= height + gap
    return canvas, axes


def legend(canvas: Canvas, handles: Sequence[Line2D]) -> None:
    """A legend below everything, one entry a line."""
    canvas.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.01, 0), handlelength=3.2, labelspacing=0.3, borderaxespad=0
    )


def plain_ticks(axis: Any, low: float, high: float, powers_of_two: bool = False) -> None:
    """Ticks of a log axis as plain numbers; a short axis gets even steps."""
    if powers_of_two:
        ticks = [2.0**power for power in range(math.ceil(math.log2(high)) + 1)]
    elif high / low < 4:
        ticks = [tick for tick in MaxNLocator(6).tick_values(low, high) if low <= tick <= high]
    else:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [lead * 10.0**decade for decade in decades for lead in ((1, 2, 5) if len(decades) < 4 else (1,))]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def picture(
    name: str, title: str, caption: str, described: str, canvas: Canvas, data: Sequence[Mapping[str, Any]]
) -> Picture:
    """The finished picture; `described` is for those who cannot see it."""
    text = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # a letter that the font for measuring lacks is the browser's affair
        canvas.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return Picture(name, title, caption, _inline(text.getvalue(), name, title, described), data)


def _inline(svg: str, name: str, title: str, described: str) -> str:
    """matplotlib's file as a part of a page: no header, no style of its own, no id that another picture may have."""
    body = re.sub(
        r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg[svg.index("<svg") :], flags=re.DOTALL
    )
    wanted = set(re.findall(r'(?:url\(|href=")#([^")]+)', body))

    def mended(tag: re.Match[str]) -> str:
        text = tag[0].replace("xlink:href", "href")
        text = re.sub(r' id="([^"]*)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in wanted else "", text)
        text = re.sub(r'(url\(|href=")#', rf"\g<1>#{name}-", text)
        text = re.sub(r"-?\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), text)
        text = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", text)
        text = re.sub(r"font-family: [^;\"]*; ", "", text)
        text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
        return re.sub(r"#010[23]0[1-8]", lambda found: f"var(--{_VARIABLES[found[0]]})", text)

    view = re.search(r'viewBox="[^"]*"', body)
    inner = re.sub(r"<[^>]*>", mended, body[body.index(">") + 1 :])
    inner = re.sub(r"\s*\n\s*", "\n", inner).replace("<g>\n</g>\n", "").strip()
    return (
        f'<svg {view[0] if view else ""} role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{html.escape(title)}</title>'
        f'<desc id="{name}-desc">{html.escape(described)}</desc>{inner}'
    )

"""Matplotlib style, axes helpers, and conversion of a figure to SVG that is embedded in the report page."""

import html
import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from ..analysis.intervals import Interval

# Placeholder colors. `_inline_svg` replaces them with CSS variables, so that one SVG serves light, dark and print.
INK, MUTED, _GRID, PAPER = "#010201", "#010202", "#010203", "#010204"
REFERENCE_LINE: dict[str, Any] = {"color": INK, "linewidth": 1, "linestyle": (0, (7, 3))}
SERIES = [f"#0103{number:02x}" for number in range(1, 9)]
_CSS_VARIABLES = {INK: "ink", MUTED: "muted", _GRID: "grid", PAPER: "paper"} | {
    color: f"series-{number}" for number, color in enumerate(SERIES, start=1)
}
_MARKERS, _LINE_STYLES = "os^DvPX*", ("solid", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
_FIGURE_WIDTH, _LEGEND_LINE_HEIGHT = 5.6, 0.165  # inches; all figures have the same width and thus the same scale
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "timetrial", "text.parse_math": False, "font.size": 8.5,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": MUTED, "axes.linewidth": 0.7,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": _GRID, "grid.linewidth": 0.6, "xtick.color": MUTED, "ytick.color": MUTED,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "xtick.major.size": 3, "ytick.major.size": 3,
    "lines.linewidth": 1.2, "lines.markersize": 4.5, "legend.frameon": False, "legend.fontsize": 8.5,
}  # fmt: skip


@dataclass(frozen=True)
class Plot:
    """A plot as inline SVG, its caption, and the rows of its CSV file `<name>.csv`."""

    name: str
    title: str
    caption: str
    svg: str
    data: Sequence[Mapping[str, Any]]


def format_number(value: float, significant_digits: int = 4) -> str:
    """Return `value` rounded to `significant_digits`, "unknown" where it is not finite."""
    if not math.isfinite(value):
        return "unknown"
    if value == 0 or abs(value) >= 1000:
        decimals = 0
    else:
        decimals = max(0, significant_digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def series_style(number: int) -> dict[str, Any]:
    """Return color, line style and marker of a data series; each of the three alone identifies it."""
    return {"color": SERIES[number], "linestyle": _LINE_STYLES[number % len(_LINE_STYLES)], "marker": _MARKERS[number]}


def error_bar(interval: Interval) -> list[list[float]] | None:
    """Return the lengths of matplotlib's error bar for `interval`, None where it has no bounds."""
    if not math.isfinite(interval.low) or not math.isfinite(interval.high):
        return None
    return [[max(0.0, interval.estimate - interval.low)], [max(0.0, interval.high - interval.estimate)]]


def interval_columns(name: str, interval: Interval | None) -> dict[str, Any]:
    """Return the CSV columns `name`, `name`_low, `name`_high and `name`_n; unknown values are None."""
    columns = [name, f"{name}_low", f"{name}_high"]
    if interval is None:
        return dict.fromkeys([*columns, f"{name}_n"])
    values = (interval.estimate, interval.low, interval.high)
    known = [value if math.isfinite(value) else None for value in values]
    return dict(zip(columns, known, strict=True)) | {f"{name}_n": interval.n}


def stacked_axes(
    *heights: float, legend_lines: int = 0, left: float = 0.62, gap: float = 0.0
) -> tuple[Figure, list[Axes]]:
    """Create a figure with one axes per height, from top to bottom; all lengths are in inches.

    Positions are computed here because matplotlib's layout engines take longer than drawing the plot.
    """
    top, right = 0.12, 0.14
    bottom = 0.48 + legend_lines * _LEGEND_LINE_HEIGHT + (0.08 if legend_lines else 0)
    total = top + sum(heights) + gap * (len(heights) - 1) + bottom
    figure, upper, axes = Figure(figsize=(_FIGURE_WIDTH, total)), total - top, []
    for height in heights:
        width = 1 - (left + right) / _FIGURE_WIDTH
        axes.append(figure.add_axes((left / _FIGURE_WIDTH, (upper - height) / total, width, height / total)))
        upper -= height + gap
    return figure, axes


def draw_legend(figure: Figure, handles: Sequence[Line2D]) -> None:
    """Draw a legend below all axes, one entry per line."""
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.01, 0), handlelength=3.2, labelspacing=0.3, borderaxespad=0
    )


def set_log_ticks(axis: Any, low: float, high: float, powers_of_two: bool = False) -> None:
    """Label the ticks of a log axis with plain numbers; a range below a factor of 4 gets linear steps."""
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


def render_plot(
    name: str, title: str, caption: str, description: str, figure: Figure, data: Sequence[Mapping[str, Any]]
) -> Plot:
    """Render `figure` to a `Plot`; `description` is the text alternative for screen readers."""
    text = io.StringIO()
    with warnings.catch_warnings():
        # The browser chooses the font, so glyphs that are missing in matplotlib's font do not matter.
        warnings.simplefilter("ignore", UserWarning)
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return Plot(name, title, caption, _inline_svg(text.getvalue(), name, title, description), data)


def _inline_svg(svg: str, name: str, title: str, description: str) -> str:
    """Return matplotlib's SVG file as an inline element: no header, no styles, and ids prefixed with `name`."""
    body = re.sub(
        r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg[svg.index("<svg") :], flags=re.DOTALL
    )
    referenced_ids = set(re.findall(r'(?:url\(|href=")#([^")]+)', body))
    view_box = re.search(r'viewBox="[^"]*"', body)
    content = re.sub(r"<[^>]*>", lambda tag: _clean_tag(tag[0], name, referenced_ids), body[body.index(">") + 1 :])
    content = re.sub(r"\s*\n\s*", "\n", content).replace("<g>\n</g>\n", "").strip()
    return (
        f'<svg {view_box[0] if view_box else ""} role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{html.escape(title)}</title>'
        f'<desc id="{name}-desc">{html.escape(description)}</desc>{content}'
    )


def _clean_tag(tag: str, name: str, referenced_ids: set[str]) -> str:
    """Return one SVG tag with unique ids, numbers of two decimals, CSS variables as colors and no font family."""

    def prefix_id(match: re.Match[str]) -> str:
        return f' id="{name}-{match[1]}"' if match[1] in referenced_ids else ""

    tag = tag.replace("xlink:href", "href")
    tag = re.sub(r' id="([^"]*)"', prefix_id, tag)
    tag = re.sub(r'(url\(|href=")#', rf"\g<1>#{name}-", tag)
    tag = re.sub(r"-?\d+\.\d{3,}", lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."), tag)
    tag = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", tag)
    tag = re.sub(r"font-family: [^;\"]*; ", "", tag)
    tag = re.sub(r' transform="rotate\(-0 [^"]*"', "", tag)
    return re.sub(r"#010[23]0[1-8]", lambda match: f"var(--{_CSS_VARIABLES[match[0]]})", tag)

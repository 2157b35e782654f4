"""Charts as inline SVG: axes, lines, bands, intervals and points whose colors and fonts come from the page's CSS.

A chart is 400 units wide with text of 15, so that text is at least 11 pixels high in a chart of 300 pixels.
"""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .page_text import format_number

MAX_SERIES = 6  # that color, dash and marker tell apart
_WIDTH, _RIGHT, _TOP = 400, 10, 8
_MARKERS = (  # each around the current point
    "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "m-3.5-3.5h7v7h-7z", "m0-4.8l4.6 8.2h-9.2z",
    "m0-5l5 5l-5 5l-5-5z", "m0 4.8l4.6-8.2h-9.2z", "m-4.5-1.5h3v-3h3v3h3v3h-3v3h-3v-3h-3z",
)  # fmt: skip
_CIRCLE = "m-8 0a8 8 0 1 0 16 0a8 8 0 1 0-16 0z"
_SHAPES = {"cross": "m-4-4l8 8m0-8l-8 8", "diamond": "m0-7l7 7l-7 7l-7-7z", "ring": _CIRCLE, "disc": _CIRCLE}


@dataclass(frozen=True)
class Plot:
    """A chart as inline SVG with its title and caption; `legend` names series that no table beside it names."""

    name: str
    title: str
    caption: str
    svg: str
    legend: Sequence[tuple[int, str]] = ()


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high`; `ticks` are chosen if there are none."""

    low: float
    high: float
    label: str
    is_log: bool = False
    ticks: Sequence[tuple[float, str]] = ()

    def position(self, value: float) -> float:
        """Return where a value lies: 0 at the low end, 1 at the high end; values outside are moved to the ends."""
        low, high, value = (
            math.log(max(number, 1e-300)) if self.is_log else number for number in (self.low, self.high, value)
        )
        return min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 0.5

    def labeled_ticks(self) -> Sequence[tuple[float, str]]:
        """Return the ticks with their text."""
        values = _log_ticks(self.low, self.high) if self.is_log else _linear_ticks(self.low, self.high)
        return self.ticks or [(value, _tick_text(value)) for value in values]


@dataclass
class Chart:
    """A chart that marks are drawn into; `height` and `left` are the sizes of plot area and margin in units."""

    x: Axis
    y: Axis | None
    height: float = 200
    left: float = 54
    marks: list[str] = field(default_factory=list)

    def point(self, x: float, y: float) -> str:
        """Return the coordinates of a value; without a y axis `y` is in units from the top."""
        return "{:.1f} {:.1f}".format(*self._place(x, y))

    def _place(self, x: float, y: float) -> tuple[float, float]:
        across = self.left + self.x.position(x) * (_WIDTH - _RIGHT - self.left)
        return across, _TOP + (y if self.y is None else (1 - self.y.position(y)) * self.height)

    def line(self, xs: Sequence[float], ys: Sequence[float], series: int, kind: str = "line") -> None:
        """Draw a line through all points."""
        points = [self.point(x, y) for x, y in zip(xs, ys, strict=True)]
        self.marks.append(f'<path class="{kind} s{series + 1}" d="M{"L".join(points)}"/>')

    def pickable_lines(
        self, curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], picked: Sequence[str]
    ) -> None:
        """Draw lines that the menus of the page pick by name; those in `picked` are shown at first.

        Coordinates are hundredths of units, because the page stretches the x axis, which starts at 0, to the lines that
        it shows. `data-end` is the end of a line in ten-thousandths of the axis.
        """
        paths = []
        for name, (xs, ys) in curves.items():
            places = [self._place(x, y) for x, y in zip(xs, ys, strict=True)]
            points = [(round(100 * across), round(100 * down)) for across, down in places]
            steps = [f"{x - x_before}{y - y_before:+d}" for (x_before, y_before), (x, y) in pairwise(points)]
            shown = f' class="s{picked.index(name) + 1}"' if name in picked else ""
            start = f"{points[0][0]} {points[0][1]}"
            end = round(10_000 * self.x.position(xs[-1]))
            path = f'd="M{start}l{" ".join(steps) or "0 0"}"'
            paths.append(f'<path data-run="{name}" data-end="{end}"{shown} {path}/>')
        self.marks.append(f'<g class="curves" data-left="{self.left}" transform="scale(.01)">{"".join(paths)}</g>')

    def steps(self, xs: Sequence[float], ys: Sequence[float], series: int) -> None:
        """Draw a line that is level from each point to the next one."""
        self.line(*_stepped(xs, ys), series)

    def band(self, xs: Sequence[float], lows: Sequence[float], highs: Sequence[float], series: int) -> None:
        """Fill the steps between two curves."""
        steps, below = _stepped(xs, lows)
        _, above = _stepped(xs, highs)
        self.line([*steps, *reversed(steps)], [*below, *reversed(above)], series, "band")

    def dots(self, points: Sequence[tuple[float, float]], series: int, kind: str = "dot") -> None:
        """Draw the marker of a series at each point; `kind` may be "dot", "hollow" or one of `_SHAPES`."""
        shape = _SHAPES.get(kind, _MARKERS[series])
        path = "".join(f"M{self.point(x, y)}{shape}" for x, y in points)
        if points:
            self.marks.append(f'<path class="{kind} s{series + 1}" d="{path}"/>')

    def swarm(self, values: Sequence[float], y: float, series: int) -> None:
        """Draw a point for each of the sorted values; those that would overlap stand above and below each other."""
        lanes, points = dict.fromkeys((0.0, -5.0, 5.0, -10.0), -math.inf), []
        for value in values:
            across = self.x.position(value) * (_WIDTH - _RIGHT - self.left)
            lane = next((lane for lane, last in lanes.items() if across - last >= 6), 0.0)
            lanes[lane] = across
            points.append((value, y + lane))
        self.dots(points, series, "hollow")

    def rule(self, value: float, *, is_vertical: bool = False, kind: str = "rule") -> None:
        """Draw a line over the whole chart at a value of an axis."""
        y_ends = (0.0, self.height) if self.y is None else (self.y.low, self.y.high)
        ends = [(value, y) for y in y_ends] if is_vertical else [(x, value) for x in (self.x.low, self.x.high)]
        self.marks.append(f'<path class="{kind}" d="M{"L".join(self.point(*end) for end in ends)}"/>')

    def text(self, x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> None:
        """Write text at a point."""
        place = self.point(x, y).split()
        self.marks.append(
            f'<text x="{place[0]}" y="{place[1]}" text-anchor="{anchor}"{f" class={kind}" if kind else ""}>'
            f"{html.escape(text)}</text>"
        )

    def row_label(self, y: float, text: str, series: int | None = None) -> None:
        """Write the name of a row at the left edge; with `series`, it is filtered with the series."""
        kind = "" if series is None else f' class="name s{series + 1}"'
        self.marks.append(f'<text x="2" y="{_TOP + y:.1f}"{kind}>{html.escape(text)}</text>')

    def group(self, first: int, gpu: str) -> None:
        """Let the page filter the marks from number `first` on by their GPU."""
        self.marks[first:] = [f'<g data-gpu="{html.escape(gpu)}">{"".join(self.marks[first:])}</g>']

    def plot(self, name: str, title: str, caption: str, description: str) -> Plot:
        """Return the finished chart; `description` is the text alternative for screen readers."""
        total = _TOP + self.height + (46 if self.x.label else 26)
        body = "".join([*self._x_axis(), *self._y_axis(), *self.marks])
        svg = (
            f'<svg viewBox="0 0 {_WIDTH} {total:.0f}" role="img" aria-labelledby="{name}-title {name}-desc">'
            f'<title id="{name}-title">{html.escape(title)}</title>'
            f'<desc id="{name}-desc">{html.escape(description)}</desc>{body}</svg>'
        )
        return Plot(name, title, caption, svg)

    def _x_axis(self) -> list[str]:
        bottom, marks = _TOP + self.height, []
        for value, text in self.x.labeled_ticks():
            across = self.left + self.x.position(value) * (_WIDTH - _RIGHT - self.left)
            anchor = "end" if across > _WIDTH - 28 else "middle"
            marks.append(f'<path class="grid" d="M{across:.1f} {_TOP}V{bottom:.1f}"/>')
            place = f'x="{across:.1f}" y="{bottom + 18:.1f}" text-anchor="{anchor}"'
            marks.append(f'<text class="tick" {place}>{text}</text>')
        marks.append(f'<path class="frame" d="M{self.left} {bottom:.1f}H{_WIDTH - _RIGHT}"/>')
        center = (self.left + _WIDTH - _RIGHT) / 2
        marks.append(
            f'<text x="{center:.0f}" y="{bottom + 39:.1f}" text-anchor="middle">{html.escape(self.x.label)}</text>'
        )
        return marks if self.x.label else marks[:-1]

    def _y_axis(self) -> list[str]:
        if self.y is None:
            return []
        marks = []
        for value, text in self.y.labeled_ticks():
            down = _TOP + (1 - self.y.position(value)) * self.height
            marks.append(f'<path class="grid" d="M{self.left} {down:.1f}H{_WIDTH - _RIGHT}"/>')
            marks.append(f'<text x="{self.left - 5}" y="{down + 5:.1f}" text-anchor="end">{text}</text>')
        return marks


def clip_label(text: str) -> str:
    """Return text that fits over the width of a chart."""
    return text if len(text) <= 46 else f"{text[:45]}…"


def swatch(series: int) -> str:
    """Return a small SVG with line and marker of a series, for a table that serves as legend."""
    marks = f'<path class="line s{series + 1}" d="M0 6H22"/>'
    marks += f'<path class="dot s{series + 1}" d="M11 6{_MARKERS[series]}"/>'
    return f'<svg class="swatch" viewBox="0 0 22 12" aria-hidden="true">{marks}</svg>'


def span(values: Sequence[float], margin: float = 0.05, *, from_zero: bool = False) -> tuple[float, float]:
    """Return the ends of a linear axis over finite values, with a relative margin."""
    known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = (0.0 if from_zero else min(known)), max(known)
    room = margin * (high - low) or 0.02 * abs(high) or 1.0
    return (low if from_zero else low - room), high + room


def interval_columns(name: str, interval: Any) -> dict[str, Any]:
    """Return the CSV columns `name`, `name`_low, `name`_high and `name`_n; unknown values are None."""
    columns = [name, f"{name}_low", f"{name}_high"]
    if interval is None:
        return dict.fromkeys([*columns, f"{name}_n"])
    values = (interval.estimate, interval.low, interval.high)
    known = [value if math.isfinite(value) else None for value in values]
    return dict(zip(columns, known, strict=True)) | {f"{name}_n": interval.n}


def _stepped(xs: Sequence[float], ys: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the corners of a curve that is level from each point to the next one."""
    across = [x for pair in zip(xs, xs, strict=True) for x in pair][1:]
    return across, [y for pair in zip(ys, ys, strict=True) for y in pair][:-1]


def _linear_ticks(low: float, high: float) -> list[float]:
    """Return about five round values (Heckbert 1990)."""
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for leads in ((1, 1.2, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 5), (1,)):
        ticks = [lead * 10.0**decade for decade in decades for lead in leads]
        shown = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        if len(shown) <= 7:
            return shown if len(shown) > 1 else _linear_ticks(low, high)
    return shown[:: math.ceil(len(shown) / 6)]


def _tick_text(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"


def describe(values: Mapping[str, float], unit: str) -> str:
    """Return a text alternative that lists values by name."""
    listed = "; ".join(f"{name}: {format_number(value, 3)} {unit}" for name, value in values.items())
    return f"{listed}."

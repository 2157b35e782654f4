"""Panels of the first screen: a table, a chart, sentences and a legend."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..analysis.intervals import Interval
from ..analysis.verdicts import Verdict
from .chart import Plot
from .page_text import format_number

_TONES = {Verdict.FASTER: "faster", Verdict.SLOWER: "slower", Verdict.EQUAL: "equal"}


@dataclass(frozen=True)
class TableCell:
    """One value of a first-screen table with what stands below it, its word, and the numbers of its marks."""

    value: str
    bounds: str = ""
    word: str = ""
    tone: str = "unsure"
    marks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Row:
    """A row of a first-screen table; `label` and `detail` name it, `gpu` is what the filter matches."""

    label: str
    detail: str
    gpu: str
    cells: Sequence[TableCell]


@dataclass
class Panel:
    """A table with its chart, sentences and legend.

    `columns` are (text, anchor of the benchmark or ""); `row_anchors` are those of rows that are benchmarks.
    `alternatives` are the same results against other baselines than `baseline`.
    """

    name: str
    title: str
    caption: str
    row_title: str
    columns: Sequence[tuple[str, str]]
    rows: Sequence[Row]
    sentences: Sequence[tuple[str, str]]
    legend: Sequence[str] = ()
    has_mean: bool = True
    plots: Sequence[Plot] = ()
    rounds: Sequence[str] = ()
    scale: str = ""
    row_anchors: Sequence[str] = ()
    baseline: str = ""
    alternatives: "list[Panel]" = field(default_factory=list)

    @property
    def answer(self) -> str:
        """The first values in words, for a folded panel."""
        shown = [(row.label, next((cell for cell in row.cells if cell.value), row.cells[0])) for row in self.rows[:3]]
        return "; ".join(f"{label} {cell.value}, {cell.word}" for label, cell in shown if cell.tone != "baseline")


def format_bounds(interval: Interval) -> str:
    """Return "1.79–1.90"; empty without bounds."""
    if not interval.is_bounded:
        return ""
    return f"{format_number(interval.low, 3)}–{format_number(interval.high, 3)}"


def verdict_word(verdict: Verdict, margin: float) -> str:
    """Return the word of a verdict, with the margin of equality."""
    return f"equal within {margin:.0%}" if verdict == Verdict.EQUAL else verdict.value


def ratio_cell(verdict: Verdict, ratio: Interval, margin: float, marks: tuple[int, ...] = ()) -> TableCell:
    """Return the cell of a speed ratio."""
    is_single = ratio.n > 0 and not ratio.is_bounded and verdict == Verdict.CANNOT_TELL
    return TableCell(
        f"{format_number(ratio.estimate, 3)}×" if ratio.n else "–",
        format_bounds(ratio),
        "measured once" if is_single else verdict_word(verdict, margin),
        _TONES.get(verdict, "unsure"),
        marks,
    )

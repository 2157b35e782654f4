"""Rows of the calibration tables, and the bars that they must reach."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from timetrial.runner.results.analysis.intervals import Interval

SIZES = (2, 3, 5, 10, 20)


@dataclass(frozen=True)
class Row:
    """Frequencies over `replicates` studies by number of runs, each with a median half-width in percent or NaN.

    From three runs on, a frequency must be at least `least`; from two runs on, it must be at most `most`.
    """

    name: str
    cells: dict[int, tuple[float, float]]
    replicates: int
    least: float | None = None
    most: float | None = None

    def problems(self) -> list[str]:
        """Return a sentence for each frequency that misses its bar by more than two standard errors."""
        sentences = []
        for n, (share, _) in self.cells.items():
            if self.least is not None and n >= 3 and share < self.least - self._error(self.least):
                sentences.append(f"{self.name}, n = {n}: {share:.3f} is below {self.least:g}")
            if self.most is not None and share > self.most + self._error(self.most):
                sentences.append(f"{self.name}, n = {n}: {share:.3f} is above {self.most:g}")
        return sentences

    def _error(self, bar: float) -> float:
        return 2 * math.sqrt(bar * (1 - bar) / self.replicates)


def coverage(intervals: Iterable[Interval], truth: float) -> tuple[float, float]:
    """Return the share of the bounded intervals that contain the truth, and their median half-width in percent."""
    bounded = [interval for interval in intervals if interval.is_bounded]
    if not bounded:
        return math.nan, math.nan
    contains = [interval.low - 1e-12 <= truth <= interval.high + 1e-12 for interval in bounded]
    widths = [_half_width(interval) for interval in bounded if interval.estimate > 0]
    return float(np.mean(contains)), 100 * float(np.median(widths)) if widths else math.nan


def _half_width(interval: Interval) -> float:
    return (interval.high - interval.low) / 2 / interval.estimate


def format_table(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table, one column per number of runs."""
    sizes = sorted({n for row in rows for n in row.cells})
    lines = [f"| | {' | '.join(f'n = {n}' for n in sizes)} | asked |", f"|---|{'---|' * (len(sizes) + 1)}"]
    for row in rows:
        bar = (
            f"at least {row.least:g}" if row.least is not None else "" if row.most is None else f"at most {row.most:g}"
        )
        lines.append(f"| {row.name} | {' | '.join(_format_cell(row.cells.get(n)) for n in sizes)} | {bar} |")
    return "\n".join(lines)


def _format_cell(cell: tuple[float, float] | None) -> str:
    if cell is None or math.isnan(cell[0]):
        return ""
    if math.isnan(cell[1]):
        return f"{cell[0]:.3f}"
    return f"{cell[0]:.3f} (±{cell[1]:.2g}%)" if cell[1] < 99.5 else f"{cell[0]:.3f} (> ±100%)"

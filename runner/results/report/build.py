"""Everything that a report says, gathered and judged once; the page, the terminal and the CSV files only show it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from ...core.errors import DataError
from ..analysis import convergence, findings, plausibility, roofline, throughput_groups, validity
from ..analysis.comparison import Comparison, compare
from ..analysis.findings import CardLine, Finding, Scaling
from ..analysis.groups import Cell, cells_of
from ..analysis.roofline import Roofline
from ..analysis.throughput_groups import SpeedCell
from ..parse import external, sources
from ..parse.external import OWN, Figure
from ..parse.runs import Run

_MOST_COMPARISONS = 12  # pairs a benchmark: more say nothing that the table of cells does not


@dataclass
class Report:
    """What the runs, measured speeds and borrowed figures at some paths come to; speeds are among the figures too."""

    paths: list[str]
    runs: list[Run] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    speeds: list[SpeedCell] = field(default_factory=list)
    rooflines: list[Roofline] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    scalings: list[Scaling] = field(default_factory=list)
    card_lines: list[CardLine] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def borrowed(self) -> list[Figure]:
        """The figures that others have measured."""
        return [figure for figure in self.figures if figure.source != OWN]


def build(paths: Sequence[Path]) -> Report:
    """Reads all there is at `paths`: run folders, published trees, logs, and CSV or JSON files of borrowed figures."""
    tables = [path for path in paths if path.is_file() and path.name != roofline.FILE and external.is_borrowed(path)]
    others = [path for path in paths if path not in tables]
    if not paths:
        raise DataError(
            "Nothing was named: give run folders, published result trees, logs or tables of borrowed figures."
        )
    report = Report([str(path) for path in paths])
    report.speeds = throughput_groups.gather(others)
    report.rooflines = roofline.rooflines(report.speeds, roofline.read_peaks(others))
    report.figures = [figure for table in tables for figure in external.read_figures(table)]
    report.figures += throughput_groups.figures(report.speeds)
    report.runs = sources.gather(others, needed=not report.speeds and not report.rooflines) if others else []
    report.cells = cells_of(report.runs)
    report.comparisons = list(_pairs(report.cells))
    report.scalings = findings.scalings(report.cells, report.figures)
    report.card_lines = findings.card_lines(report.figures, report.cells)
    waiting = sum(run.unfinished for run in report.runs)
    report.findings = [
        *([Finding("note", "unfinished runs", f"{waiting} have not ended yet and are in no set.")] if waiting else []),
        *findings.of_figures(report.figures, report.scalings, report.card_lines),
        *throughput_groups.of_links(report.speeds),
        *roofline.findings(report.rooflines),
        *_banners(report.comparisons),
        *findings.of_cells(report.cells),
        *convergence.findings(report.cells),
        *plausibility.findings(report.cells, report.figures),
        *validity.findings(report.cells),
    ]
    return report


def _banners(comparisons: Iterable[Comparison]) -> Iterable[Finding]:
    """One a work; each pair's own reason stands with the pair."""
    works: dict[str, list[Comparison]] = {}
    for found in comparisons:
        works.setdefault(found.one.work, []).append(found)
    for work, pairs in works.items():
        told = [found.banner for found in pairs if found.banner]
        if len(pairs) == 1 and told:
            yield Finding("banner", work, told[0])
        elif told:
            sentence = f"{len(told)} of {len(pairs)} pairs cannot be compared by time-to-train"
            yield Finding("banner", work, f"{sentence}: their epochs differ or vary too much; time per epoch can be.")


def _pairs(cells: Iterable[Cell]) -> Iterable[Comparison]:
    """Comparisons of cells of one work: model, round, scale; the best populated cells first."""
    works: dict[str, list[Cell]] = {}
    for cell in cells:
        works.setdefault(cell.work, []).append(cell)
    for same in works.values():
        chosen = sorted((cell for cell in same if cell.converged), key=lambda cell: cell.mean_minutes.estimate)
        for one, other in list(combinations(chosen, 2))[:_MOST_COMPARISONS]:
            yield compare(one, other)

"""Lays a report out as one page, in HTML and in Markdown, with a CSV file behind every table and picture."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from ...core.atomic_files import write_atomically
from ...record.run_dir import slug
from ..analysis.comparison import ALPHA, Comparison
from ..analysis.findings import Finding
from ..analysis.groups import Cell
from ..analysis.stats import Interval
from ..parse.external import Figure
from . import csv_tables, plots, roofline_plots
from .build import Report
from .drawing import Picture, in_columns, plain

DISCLAIMER = "Results are informational and not verified by MLCommons."
_SHOWN = 5  # sentences or pairs of a list before the rest is folded
_LONG = 24  # rows from which a table is folded
_KINDS = {"banner": "Read this first", "flag": "Doubtful", "note": "Noted"}
_METHODS = {
    "Time-to-train": "From run_start to run_stop of the log, evaluations included, for runs that reached their target.",
    "Epochs-to-converge": "The epoch of the first evaluation that reached the target, counted from 1.",
    "Olympic mean": (
        "MLPerf's score: the mean without the fastest and the slowest run. One failed run counts as the slowest; with "
        "two there is no result. Some rounds multiply it with a factor against lucky epochs: then it is called scaled."
    ),
    "95% interval": (
        "Of a mean: BCa bootstrap (Efron 1987), a t interval on the log scale for two to four values. Single runs have "
        "none. Of a ratio: both sides resampled."
    ),
    "Median by Kaplan-Meier": (
        "The time by which half of all runs had reached the target. A run that failed counts as censored at its end "
        "instead of being left out."
    ),
    "Pooled epochs": (
        "Where two cells train by one recipe to one target (iso-convergence), different epochs are luck. Their "
        "expected ratio is that of time per epoch and overhead alone."
    ),
    "Comparison": (
        "Time-to-train is epochs x training time per epoch x overhead (all of the time over training time). Ratios are "
        "the first over the second: below 1 the first is faster."
    ),
    "Borrowed figures, measured speeds": (
        "What others measured and published; each row of the data names its source, and nothing was rerun. Own runs of "
        "`timetrial throughput` stand beside them as a study of their own, means over the runs of a setting."
    ),
}


@dataclass(frozen=True)
class Table:
    """A table as shown, and the rows of its CSV file `name`.csv; the first `left` columns are words."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    data: Sequence[Mapping[str, Any]]
    left: int = 1

    @property
    def folded(self) -> bool:
        """True for a table that would push everything else away."""
        return len(self.rows) > _LONG


@dataclass(frozen=True)
class Words:
    """Sentences below a heading; `kind` decides how loud, and those after the first `shown` are folded."""

    kind: str
    title: str
    sentences: Sequence[str]
    shown: int = _SHOWN


@dataclass
class Section:
    """A part of the page: blocks are (what, thing), such as ("table", Table)."""

    title: str
    anchor: str
    blocks: list[tuple[str, Any]] = field(default_factory=list)


def write(report: Report, folder: Path) -> Path:
    """Writes csv/, report.md and last report.html, and returns its path."""
    sections = _sections(report)
    things = [thing for section in sections for thing in _with_data(section)]
    for thing in things:
        csv_tables.write_csv(folder / "csv" / f"{thing.name}.csv", thing.data)
    for name, rows in (("findings", list(map(asdict, report.findings))), ("inferred", _inferences(report.cells))):
        if rows:
            csv_tables.write_csv(folder / "csv" / f"{name}.csv", rows)
    if report.runs:
        csv_tables.write_runs(folder / "csv" / "runs.csv", report.runs)
    kinds = [[thing for thing in things if isinstance(thing, kind)] for kind in (Table, Picture)]
    content = {
        "title": "Time to train",
        "lead": _lead(report),
        "disclaimer": DISCLAIMER,
        "sections": sections,
        "shown": _SHOWN,
        "numbers": {thing.name: number for same in kinds for number, thing in enumerate(same, start=1)},
    }
    written = {f"{thing.name}.csv" for thing in things} | {"findings.csv", "inferred.csv", "runs.csv"}
    for stale in (folder / "csv").glob("*.csv"):  # of an earlier report in the same place
        if stale.name not in written:
            stale.unlink()
    write_atomically(folder / "report.md", _template("page.md.j2", _safe).render(content))
    write_atomically(folder / "report.html", _template("page.html.j2").render(content))
    return folder / "report.html"


def _template(name: str, safe: Callable[[object], str] | None = None) -> Template:
    """A template in which every value is escaped: by `safe`, or else for HTML."""
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    if safe:
        environment.finalize = safe
    else:
        environment.autoescape = True
        environment.filters["drawn"] = Markup  # all text of a picture is escaped where it is drawn
    return environment.get_template(name)


def _with_data(section: Section) -> list[Table | Picture]:
    found: list[Table | Picture] = []
    for what, thing in section.blocks:
        found += [thing] if what == "table" else thing if what == "pictures" else []
    return found


def _lead(report: Report) -> str:
    studies = len({figure.study for figure in report.borrowed})
    parts = {
        f"{_count(len(report.runs), 'run')} in {_count(len(report.cells), 'cell')}": report.runs,
        f"{_count(len(report.speeds), 'setting')} that throughput runs measured": report.speeds,
        f"{_count(len(report.rooflines), 'roofline')}": report.rooflines,
        f"{_count(len(report.borrowed), 'borrowed figure')} of {_count(studies, 'study', 'studies')}": report.borrowed,
    }
    *most, last = [part for part, there in parts.items() if there] or ["nothing: there was nothing to read"]
    return f"This page judges {', '.join(most)}{' and ' if most else ''}{last}."


def _sections(report: Report) -> list[Section]:
    works: dict[str, list[Cell]] = {}
    for cell in report.cells:
        works.setdefault(cell.work, []).append(cell)
    anchors = _anchors(works)
    return [
        _says(report),
        *(_work_section(report, work, anchors[work], works[work]) for work in sorted(works)),
        *([_rooflines(report)] if report.rooflines else []),
        *([_figures(report)] if report.figures else []),
        Section("How these numbers were made", "how", [("terms", _METHODS)]),
        *([_inferred(report.cells)] if report.cells else []),
    ]


def _anchors(works: Iterable[str]) -> dict[str, str]:
    """A name for each that is no other's, whatever the files call them."""
    found: dict[str, str] = {}
    for work in works:
        anchor = base = "work-" + slug(work).replace(".", "-")
        while anchor in found.values():
            anchor = f"{base}-{sum(name.startswith(base) for name in found.values()) + 1}"
        found[work] = anchor
    return found


def _says(report: Report) -> Section:
    section = Section("What it says", "says")
    for kind, title in _KINDS.items():
        if sentences := _grouped(found for found in report.findings if found.kind == kind):
            section.blocks.append(("words", Words(kind, title, sentences)))
        if kind == "banner" and report.comparisons:
            verdicts = list(dict.fromkeys(found.verdict for found in report.comparisons))
            section.blocks.append(
                (
                    "words",
                    Words("verdict", "Comparisons", verdicts, shown=len(verdicts) if len(verdicts) <= _SHOWN else 0),
                )
            )
    if not any(found.kind in ("banner", "flag") for found in report.findings):
        section.blocks.append(("text", "Nothing was found that speaks against these results."))
    if report.findings:
        section.blocks.append(("files", {"findings": "All findings, one a row"}))
    return section


def _grouped(findings: Iterable[Finding]) -> list[str]:
    """Each sentence once, after all that it is about."""
    about: dict[str, list[str]] = {}
    for found in findings:
        about.setdefault(found.sentence, []).append(found.about)
    told = []
    for sentence, names in about.items():
        counted = [f"{name} ({times} times)" if times > 1 else name for name, times in Counter(names).items()]
        told.append(f"{'; '.join(counted)}: {sentence}")
    return told


def _work_section(report: Report, work: str, anchor: str, cells: Sequence[Cell]) -> Section:
    name = anchor.removeprefix("work-")
    pairs = [found for found in report.comparisons if found.one.work == work]
    scalings = [one for one in report.scalings if one.source == work]
    section = Section(work, anchor, [("table", _cell_table(f"{name}-cells", work, cells))])
    if pairs:
        section.blocks += [("comparisons", pairs), ("table", _ratio_table(f"{name}-comparisons", work, pairs))]
    section.blocks.append(("pictures", plots.of_work(name, work, cells, pairs, scalings)))
    return section


def _cell_table(name: str, title: str, cells: Sequence[Cell]) -> Table:
    columns = ["System", "Accelerators", "Runs", "Minutes, olympic mean", "Minutes, mean (95%)", "Epochs, mean (95%)"]
    columns += ["Seconds per epoch (95%)", "Minutes, median (Kaplan-Meier)"]
    rows, data = [], []
    for cell in cells:
        median = cell.survival.median
        reached = median is not None and math.isfinite(median)
        means = (cell.mean_minutes, cell.mean_epochs, cell.mean_seconds_per_epoch)
        told = [_interval(mean) if cell.converged else "no result" for mean in means]
        system = ", ".join(part for part in (f"{cell.submitter} {cell.system}".strip(), cell.setting) if part)
        row = [system or "not stated", cell.accelerators or "not stated", _runs(cell), _score(cell), *told]
        rows.append([*row, plain(median or 0.0) if reached else "not reached by half"])
        entry = {"system": system, "accelerators": cell.accelerators, "runs": len(cell.runs), "failed": cell.failed}
        entry |= {"minutes_olympic": cell.minutes_olympic, "scaling_factor": cell.scaling_factor}
        for what, mean in zip(("minutes", "epochs", "seconds_per_epoch"), means, strict=True):
            entry |= in_columns(what, mean)
        data.append(entry | {"median_minutes": median if reached else None})
    return Table(name, f"Cells of {title}", columns, rows, data, left=2)


def _runs(cell: Cell) -> str:
    """How many, and what is to be known of them."""
    marks = [f"{cell.failed} failed"] if cell.failed else []
    marks += [f"{times} {flag}" for flag, times in Counter(flag for run in cell.runs for flag in run.flags).items()]
    return f"{len(cell.runs)} ({', '.join(marks) or 'all converged'})"


def _score(cell: Cell) -> str:
    if cell.minutes_olympic is None:
        return plots.no_result(cell) or f"none: needs 3 runs, has {len(cell.runs)}"
    if cell.scaling_factor:
        return f"{plain(cell.minutes_scaled or 0.0)} (scaled; {plain(cell.minutes_olympic)} before)"
    return plain(cell.minutes_olympic)


def _ratio_table(name: str, title: str, pairs: Sequence[Comparison]) -> Table:
    kinds = {"Time-to-train": "time", "Epochs": "epochs", "Time per epoch": "per_epoch", "Overhead": "overhead"}
    columns = ["First against second", *kinds, "Time, epochs pooled", "p, epochs differ"]
    rows, data = [], []
    for number, pair in enumerate(pairs, start=1):
        ratios = [getattr(pair, kind) for kind in kinds.values()]
        told = [_interval(ratio, 3) for ratio in ratios]
        pooled = _interval(pair.expected, 3) if pair.expected else "not one recipe"
        p_value = f"{pair.p_epochs:.3f}" if pair.p_epochs >= 0.001 else "< 0.001" if pair.p_epochs >= 0 else "not known"
        rows.append([f"{number}. {plots.pair_label(pair, 60)}", *told, pooled, p_value])
        entry: dict[str, Any] = {"first": pair.one.title, "second": pair.other.title}
        for kind, ratio in zip((*kinds.values(), "expected"), (*ratios, pair.expected), strict=True):
            entry |= in_columns(kind, ratio)
        entry |= {"p_epochs": pair.p_epochs if math.isfinite(pair.p_epochs) else None}
        data.append(
            entry | {"banner": pair.banner, "verdict": pair.verdict, "differences": "; ".join(pair.differences)}
        )
    caption = f"Ratios of {title}, first over second, with 95% intervals; epochs differ where p is below {ALPHA:g}"
    return Table(name, caption, columns, rows, data)


def _rooflines(report: Report) -> Section:
    section = Section("Rooflines", "rooflines", [("text", roofline_plots.EXPLANATION)])
    for number, line in enumerate(report.rooflines, start=1):
        section.blocks.append(("pictures", [roofline_plots.roofline(f"roofline-{number}", line)]))
        section.blocks.append(("table", Table(f"roofline-{number}-peaks", *roofline_plots.peaks(line))))
        if line.places:
            section.blocks.append(("table", Table(f"roofline-{number}-places", *roofline_plots.places(line), left=2)))
        if line.timed:
            section.blocks.append(("table", Table(f"roofline-{number}-timed", *roofline_plots.timed(line), left=4)))
    return section


def _figures(report: Report) -> Section:
    own = "ThroughputMeter speeds" if len(report.borrowed) < len(report.figures) else ""
    title = " and ".join(filter(None, (own, "borrowed figures" if report.borrowed else "")))
    section = Section(title[0].upper() + title[1:], "borrowed")
    studies = dict.fromkeys(figure.study for figure in report.figures)
    for number, study in enumerate(studies, start=1):
        same = [figure for figure in report.figures if figure.study == study]
        section.blocks.append(("table", _figure_table(f"borrowed-{number}", same)))
    scaled: dict[tuple[str, str], list[Any]] = {}
    for one in report.scalings:
        if one.source in studies:
            scaled.setdefault((one.source, one.work), []).append(one)
    by_name = {f"borrowed-scaling-{number}": same for number, same in enumerate(scaled.values(), start=1)}
    lines = {f"card-line-{number}": line for number, line in enumerate(report.card_lines, start=1)}
    section.blocks.append(("pictures", plots.of_figures(by_name, lines)))
    return section


def _figure_table(name: str, figures: Sequence[Figure]) -> Table:
    """All figures of one study, without the columns of which it says nothing."""
    words = ["Workload", "Task", "Cards", "Precision", "Interconnect", "Metric", "Remark"]
    rows = [_figure_row(figure) for figure in figures]
    told = [number for number in range(len(words) + 2) if any(row[number] for row in rows)]
    columns = [[*words, "Batch", "Value"][number] for number in told]
    origin = ", ".join(part for part in (figures[0].source, figures[0].published) if part)
    shown = [[row[number] for number in told] for row in rows]
    data = [asdict(figure) for figure in figures]
    return Table(name, f"{figures[0].study} ({origin})", columns, shown, data, left=len(set(columns) & set(words)))


def _figure_row(figure: Figure) -> list[str]:
    remark = ", ".join(part for part in (figure.against and f"against {figure.against}", figure.note) if part)
    value = figure.outcome if figure.value is None else f"{figure.value:,.6g}"
    batch = str(figure.batch) if figure.batch else ""
    cards = f"{figure.count} x {figure.card}"
    metric = figure.metric.replace("_", " ")
    return [figure.workload, figure.task, cards, figure.precision, figure.interconnect, metric, remark, batch, value]


def _inferred(cells: Iterable[Cell]) -> Section:
    section = Section("What was inferred", "inferred")
    sentences = [f"{row['cell']}: {row['inferred']} ({row['runs']} of {row['of']} runs)" for row in _inferences(cells)]
    if sentences:
        section.blocks.append(("words", Words("inferred", "What the logs leave out, cell by cell", sentences, shown=0)))
        section.blocks.append(("files", {"inferred": "What was inferred"}))
    else:
        section.blocks.append(("text", "Nothing: the logs say it all."))
    section.blocks.append(("files", {"runs": "All runs, one a row"}))
    return section


def _inferences(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    return [
        {"cell": cell.title, "inferred": sentence, "runs": times, "of": len(cell.runs)}
        for cell in cells
        for sentence, times in Counter(sentence for run in cell.runs for sentence in run.inferred).items()
    ]


def _count(number: int, one: str, several: str = "") -> str:
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def _interval(found: Interval, digits: int = 4) -> str:
    if not math.isfinite(found.estimate):
        return "not known"
    if not math.isfinite(found.low):
        return f"{plain(found.estimate, digits)} (no interval)"
    return f"{plain(found.estimate, digits)} ({plain(found.low, digits)} to {plain(found.high, digits)})"


def _safe(text: object) -> str:
    """Text that Markdown takes for text: names of systems come from files."""
    return re.sub(r"([\\`*\[\]|<>&])", r"\\\1", " ".join(str(text).split()))

"""The report page in HTML and Markdown, with a CSV file for every table and plot."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from ...core.atomic_files import write_atomically
from ...core.formatting import slug
from ..analysis.findings import Finding
from ..analysis.groups import RunGroup
from ..analysis.scaling import Scaling
from ..parse.external import ExternalMeasurement
from . import csv_tables, plots, roofline_plots, scaling_plots
from .build import Report
from .comparison_table import count_comparisons, ratio_table
from .drawing import Plot, format_number, interval_columns
from .page_text import count, escape_markdown, format_interval
from .tables import Table

DISCLAIMER = "Results are informational and not verified by MLCommons."
_MAX_VISIBLE = 5  # items of a list; the rest is collapsed
_FINDING_TITLES = {"banner": "Important", "flag": "Warnings", "note": "Notes"}
_METHODS = {
    "Time-to-train": "From run_start to run_stop of the log, evaluation included, of runs that reached their target.",
    "Epochs to converge": "The 1-based epoch of the first evaluation that reached the target.",
    "Olympic mean": (
        "MLPerf's score: the mean without the fastest and the slowest run. One failed run counts as the slowest; with "
        "two failed runs there is no result. Some rounds multiply the score by a factor that corrects for fast "
        "convergence; it is then called scaled."
    ),
    "95% confidence interval": (
        "Of the geometric mean: Student's t on logs, with a floor from the grid of evaluations. Of a ratio: Welch's. A "
        "single run has no interval, and repeats of a seed count once. docs/calibration.md has the simulated coverage."
    ),
    "Kaplan-Meier median": (
        "The time by which half of all runs had reached the target. A failed run is censored at its end instead of "
        "being left out; one that diverged counts as never converging."
    ),
    "Pooled epochs": (
        "Where two one-sided tests have shown the epochs of two groups to be equal within the margin, they are pooled: "
        "the time per epoch decides. Otherwise the measured time-to-train does, if the recipes are the same."
    ),
    "Expected time to a success": (
        "Where runs failed: all seconds over the number of successes, the time until a success with the failed runs "
        "before it. It decides then, because the mean of the converged runs favors whoever gives up early."
    ),
    "Comparison": (
        "Time-to-train = epochs x time per epoch, run by run. Ratios are baseline over other: above 1, the other is "
        "faster. At most 5% of reports have any false verdict (Holm's method)."
    ),
    "External and throughput measurements": (
        "External measurements are published by others; each row of the data names its source, and nothing was rerun. "
        "Results of `timetrial throughput` are listed as a separate study: means over the runs of each setting."
    ),
}


@dataclass(frozen=True)
class Notice:
    """A list of sentences with a heading; `kind` is its CSS class; the first `visible` are always shown."""

    kind: str
    title: str
    sentences: Sequence[str]
    visible: int = _MAX_VISIBLE


@dataclass
class Section:
    """A section of the page; `blocks` are (kind, content) pairs, such as ("table", Table), in the templates' terms."""

    title: str
    anchor: str
    blocks: list[tuple[str, Any]] = field(default_factory=list)


def write_page(report: Report, folder: Path) -> Path:
    """Write csv/, report.md and finally report.html to `folder`, and return the path of report.html."""
    sections = _sections(report)
    exhibits = [exhibit for section in sections for exhibit in _exhibits(section)]
    _write_csv_files(report, exhibits, folder / "csv")
    same_kind = [[exhibit for exhibit in exhibits if isinstance(exhibit, kind)] for kind in (Table, Plot)]
    context = {
        "title": "Time to train",
        "lead": _lead(report),
        "disclaimer": DISCLAIMER,
        "sections": sections,
        "max_visible": _MAX_VISIBLE,
        "numbers": {exhibit.name: number for same in same_kind for number, exhibit in enumerate(same, start=1)},
    }
    write_atomically(folder / "report.md", _template("page.md.j2", escape_markdown).render(context))
    write_atomically(folder / "report.html", _template("page.html.j2").render(context))
    return folder / "report.html"


def _write_csv_files(report: Report, exhibits: Sequence[Table | Plot], folder: Path) -> None:
    """Write the data of all tables and plots, and delete the files of an earlier report in the same folder."""
    for exhibit in exhibits:
        csv_tables.write_csv(folder / f"{exhibit.name}.csv", exhibit.data)
    findings = [asdict(finding) for finding in report.findings]
    for name, rows in (("findings", findings), ("inferred", _inferred_rows(report.groups))):
        if rows:
            csv_tables.write_csv(folder / f"{name}.csv", rows)
    if report.runs:
        csv_tables.write_runs(folder / "runs.csv", report.runs)
    current = {f"{exhibit.name}.csv" for exhibit in exhibits} | {"findings.csv", "inferred.csv", "runs.csv"}
    for path in folder.glob("*.csv"):
        if path.name not in current:
            path.unlink()


def _template(name: str, escape: Callable[[object], str] | None = None) -> Template:
    """Load a template that escapes every value: by `escape`, or for HTML if it is None."""
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    if escape:
        environment.finalize = escape
    else:
        environment.autoescape = True
        environment.filters["inline_svg"] = Markup  # text inside a plot is escaped when the plot is rendered
    return environment.get_template(name)


def _exhibits(section: Section) -> list[Table | Plot]:
    """Return the tables and plots of a section in the order of the page."""
    exhibits: list[Table | Plot] = []
    for kind, content in section.blocks:
        exhibits += [content] if kind == "table" else content if kind == "plots" else []
    return exhibits


def _lead(report: Report) -> str:
    external = report.external_measurements
    num_studies = len({measurement.study for measurement in external})
    parts = []
    if report.runs:
        parts.append(f"{count(len(report.runs), 'run')} in {count(len(report.groups), 'run group')}")
    if report.throughput_groups:
        parts.append(f"throughput measurements of {count(len(report.throughput_groups), 'setting')}")
    if report.rooflines:
        parts.append(count(len(report.rooflines), "roofline"))
    if external:
        parts.append(f"{count(len(external), 'external measurement')} from {count(num_studies, 'study', 'studies')}")
    *others, last = parts or ["no results"]
    return f"This report covers {', '.join(others)}{' and ' if others else ''}{last}."


def _sections(report: Report) -> list[Section]:
    by_workload: dict[str, list[RunGroup]] = {}
    for group in report.groups:
        by_workload.setdefault(group.workload, []).append(group)
    anchors = _anchors(by_workload)
    sections = [
        _summary_section(report),
        *(_workload_section(report, name, anchors[name], by_workload[name]) for name in sorted(by_workload)),
    ]
    if report.rooflines:
        sections.append(_roofline_section(report))
    if report.measurements:
        sections.append(_measurement_section(report))
    sections.append(Section("Methods", "methods", [("terms", _METHODS)]))
    if report.groups:
        sections.append(_inferred_section(report.groups))
    return sections


def _anchors(workloads: Iterable[str]) -> dict[str, str]:
    """Return a unique anchor for each workload, whatever characters its name contains."""
    anchors: dict[str, str] = {}
    for workload in workloads:
        anchor = base = "work-" + slug(workload).replace(".", "-")
        while anchor in anchors.values():
            anchor = f"{base}-{sum(name.startswith(base) for name in anchors.values()) + 1}"
        anchors[workload] = anchor
    return anchors


def _summary_section(report: Report) -> Section:
    section = Section("Summary", "summary")
    for kind, title in _FINDING_TITLES.items():
        if sentences := _merge_findings(finding for finding in report.findings if finding.kind == kind):
            section.blocks.append(("notice", Notice(kind, title, sentences)))
        if kind == "banner" and report.comparisons:
            verdicts = list(dict.fromkeys(comparison.summary for comparison in report.comparisons))
            visible = len(verdicts) if len(verdicts) <= _MAX_VISIBLE else 0
            section.blocks.append(
                ("notice", Notice("verdict", count_comparisons(report.comparisons), verdicts, visible))
            )
    if not any(finding.kind in ("banner", "flag") for finding in report.findings):
        section.blocks.append(("text", "No problems were found in these results."))
    if report.findings:
        section.blocks.append(("files", {"findings": "All findings, one per row"}))
    return section


def _merge_findings(findings: Iterable[Finding]) -> list[str]:
    """Return each message once, after all of its subjects."""
    by_message: dict[str, list[str]] = {}
    for finding in findings:
        by_message.setdefault(finding.message, []).append(finding.subject)
    sentences = []
    for message, subjects in by_message.items():
        names = [f"{name} ({times} times)" if times > 1 else name for name, times in Counter(subjects).items()]
        sentences.append(f"{'; '.join(names)}: {message}")
    return sentences


def _workload_section(report: Report, workload: str, anchor: str, groups: Sequence[RunGroup]) -> Section:
    name = anchor.removeprefix("work-")
    comparisons = [comparison for comparison in report.comparisons if comparison.baseline.workload == workload]
    scalings = [scaling for scaling in report.scalings if scaling.source == workload]
    section = Section(workload, anchor, [("table", _group_table(f"{name}-groups", workload, groups))])
    if comparisons:
        ratios = ratio_table(f"{name}-comparisons", workload, comparisons)
        section.blocks += [("comparisons", comparisons), ("table", ratios)]
    section.blocks.append(("plots", plots.plots_of_workload(name, workload, groups, comparisons, scalings)))
    return section


def _group_table(name: str, title: str, groups: Sequence[RunGroup]) -> Table:
    columns = ["System", "Accelerators", "Runs", "Minutes, olympic mean", "Minutes, mean (95% CI)"]
    columns += ["Epochs, mean (95% CI)", "Seconds per epoch (95% CI)", "Minutes, median (Kaplan-Meier)"]
    rows, data = [], []
    for group in groups:
        median = group.survival.median
        if median is not None and not math.isfinite(median):
            median = None
        means = {"minutes": group.mean_minutes, "epochs": group.mean_epochs}
        means |= {"seconds_per_epoch": group.mean_seconds_per_epoch}
        shown = [format_interval(mean) if group.converged_runs else "no result" for mean in means.values()]
        system = ", ".join(part for part in (f"{group.submitter} {group.system}".strip(), group.setting) if part)
        row = [
            system or "not reported",
            group.accelerators or "not reported",
            _run_counts(group),
            _score(group),
            *shown,
        ]
        rows.append([*row, "not reached" if median is None else format_number(median)])
        entry = {"system": system, "accelerators": group.accelerators, "runs": len(group.runs)}
        entry |= {"failed": group.num_failed, "minutes_olympic": group.minutes_olympic}
        entry |= {"scaling_factor": group.scaling_factor}
        for key, mean in means.items():
            entry |= interval_columns(key, mean)
        data.append(entry | {"median_minutes": median})
    return Table(name, f"Run groups of {title}", columns, rows, data, text_columns=2)


def _run_counts(group: RunGroup) -> str:
    """Return the number of runs, and how many of them failed or have validity flags."""
    remarks = [f"{group.num_failed} failed"] if group.num_failed else []
    flags = Counter(flag for run in group.runs for flag in run.flags)
    remarks += [f"{times} {flag}" for flag, times in flags.items()]
    return f"{len(group.runs)} ({', '.join(remarks) or 'all converged'})"


def _score(group: RunGroup) -> str:
    if group.minutes_olympic is None:
        return plots.no_result(group) or f"needs at least 3 runs, has {len(group.runs)}"
    if group.scaling_factor:
        return f"{format_number(group.minutes_scaled or 0.0)} (scaled; unscaled {format_number(group.minutes_olympic)})"
    return format_number(group.minutes_olympic)


def _roofline_section(report: Report) -> Section:
    section = Section("Rooflines", "rooflines", [("text", roofline_plots.EXPLANATION)])
    for number, roofline in enumerate(report.rooflines, start=1):
        name = f"roofline-{number}"
        section.blocks.append(("plots", [roofline_plots.plot_roofline(name, roofline)]))
        section.blocks.append(("table", roofline_plots.peaks_table(f"{name}-peaks", roofline)))
        if roofline.points:
            section.blocks.append(("table", roofline_plots.workloads_table(f"{name}-workloads", roofline)))
        if roofline.fastest_rows:
            section.blocks.append(("table", roofline_plots.microbenchmarks_table(f"{name}-microbenchmarks", roofline)))
    return section


def _measurement_section(report: Report) -> Section:
    has_own = len(report.external_measurements) < len(report.measurements)
    kinds = ["throughput"] if has_own else []
    kinds += ["external"] if report.external_measurements else []
    section = Section(f"{' and '.join(kinds)} measurements".capitalize(), "measurements")
    by_study: dict[str, list[ExternalMeasurement]] = {}
    for measurement in report.measurements:
        by_study.setdefault(measurement.study, []).append(measurement)
    for number, measurements in enumerate(by_study.values(), start=1):
        section.blocks.append(("table", _measurement_table(f"measurements-{number}", measurements)))
    by_workload: dict[tuple[str, str], list[Scaling]] = {}
    for scaling in report.scalings:
        if scaling.source in by_study:
            by_workload.setdefault((scaling.source, scaling.workload), []).append(scaling)
    scalings = {f"measurements-scaling-{number}": same for number, same in enumerate(by_workload.values(), start=1)}
    fits = {f"peak-fit-{number}": fit for number, fit in enumerate(report.peak_fits, start=1)}
    section.blocks.append(("plots", scaling_plots.plots_of_measurements(scalings, fits)))
    return section


def _measurement_table(name: str, measurements: Sequence[ExternalMeasurement]) -> Table:
    """Return the table of one study, without its empty columns."""
    text_columns = ["Workload", "Task", "Accelerators", "Precision", "Interconnect", "Metric", "Remarks"]
    all_columns = [*text_columns, "Batch size", "Value"]
    all_rows = [_measurement_row(measurement) for measurement in measurements]
    used = [index for index in range(len(all_columns)) if any(row[index] for row in all_rows)]
    columns = [all_columns[index] for index in used]
    rows = [[row[index] for index in used] for row in all_rows]
    first = measurements[0]
    caption = f"{first.study} ({', '.join(part for part in (first.source, first.published) if part)})"
    data = [asdict(measurement) for measurement in measurements]
    return Table(name, caption, columns, rows, data, text_columns=len(set(columns) & set(text_columns)))


def _measurement_row(measurement: ExternalMeasurement) -> list[str]:
    baseline = f"baseline {measurement.baseline}" if measurement.baseline else ""
    return [
        measurement.workload,
        measurement.task,
        f"{measurement.num_accelerators} x {measurement.accelerator}",
        measurement.precision,
        measurement.interconnect,
        measurement.metric.replace("_", " "),
        ", ".join(part for part in (baseline, measurement.note) if part),
        str(measurement.batch) if measurement.batch else "",
        measurement.outcome if measurement.value is None else f"{measurement.value:,.6g}",
    ]


def _inferred_section(groups: Iterable[RunGroup]) -> Section:
    section = Section("Inferred values", "inferred")
    sentences = [
        f"{row['group']}: {row['inferred']} ({row['runs']} of {row['of']} runs)" for row in _inferred_rows(groups)
    ]
    if sentences:
        title = "What the logs do not state, by run group"
        section.blocks.append(("notice", Notice("inferred", title, sentences, visible=0)))
        section.blocks.append(("files", {"inferred": "Inferred values"}))
    else:
        section.blocks.append(("text", "None: the logs state all values."))
    section.blocks.append(("files", {"runs": "All runs, one per row"}))
    return section


def _inferred_rows(groups: Iterable[RunGroup]) -> list[dict[str, Any]]:
    return [
        {"group": group.title, "inferred": sentence, "runs": times, "of": len(group.runs)}
        for group in groups
        for sentence, times in Counter(sentence for run in group.runs for sentence in run.inferred).items()
    ]

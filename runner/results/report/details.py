"""The folded part of the page: findings, measurements, rooflines, inferred values and methods."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ...record.published_results import LEGEND, TEXT_TITLES, TITLES, PublishedEntry
from ..analysis.findings import Finding, FindingKind
from ..analysis.groups import RunGroup
from ..analysis.scaling import Scaling
from ..parse.external import ExternalMeasurement
from . import roofline_plots
from .benchmark_charts import plot_scaling
from .build import Report
from .chart import Plot
from .peak_fit_plot import plot_peak_fit
from .tables import Table

_FINDING_TITLES = {FindingKind.BANNER: "Important", FindingKind.FLAG: "Warnings", FindingKind.NOTE: "Notes"}
_METHODS = {
    "Time-to-train": "From run_start to run_stop of the log, evaluation included, of runs that reached their target.",
    "Epochs to converge": "The 1-based epoch of the first evaluation that reached the target.",
    "Speed ratio": (
        "Baseline over other: above 1, the other is faster. The measured time-to-train decides, if the recipes "
        "are the same or two one-sided tests have shown the epochs of both to be equal within the margin. At most 5% "
        "of reports call one of two equals faster (Holm's method)."
    ),
    "Expected time to a success": (
        "Where runs failed: all seconds over the number of successes, the time until a success with the failed runs "
        "before it. It decides then, because the mean of the converged runs favors whoever gives up early."
    ),
    "One number for a GPU": (
        "The geometric mean of the ratios of the comparable benchmarks; its interval is for these benchmarks. That of "
        "external measurements is for further networks, because single ones were measured once."
    ),
    "95% confidence interval": (
        "Of the geometric mean: Student's t on logs, with a floor from the grid of evaluations. Of a ratio: Welch's. A "
        "single run has no interval, and repeats of a seed count once. docs/calibration.md has the simulated coverage."
    ),
    "Spread from epochs": (
        "The share of the epochs in the variance of log time-to-train, with Pitman's interval; the rest is time per "
        "epoch."
    ),
    "Kaplan-Meier median": (
        "The time by which half of all runs had reached the target. A failed run is censored at its end instead of "
        "being left out; one that diverged counts as never converging."
    ),
    "Olympic mean": (
        "MLPerf's score: the mean without the fastest and the slowest run. One failed run counts as the slowest; with "
        "two failed runs there is no result. Some rounds multiply the score by a factor that corrects for fast "
        "convergence; it is then called scaled."
    ),
    "External and throughput measurements": (
        "External measurements are published by others; each row of the data names its source, and nothing was rerun. "
        "Results of timetrial throughput are listed as a separate study: means over the runs of each setting."
    ),
}


@dataclass
class Detail:
    """A folded section; `blocks` are (kind, content) pairs, such as ("table", Table), in the templates' terms."""

    title: str
    anchor: str
    blocks: list[tuple[str, Any]] = field(default_factory=list)


def list_details(report: Report) -> list[Detail]:
    """Return the folded sections for which there is something to show."""
    details = []
    for kind, title in _FINDING_TITLES.items():
        if sentences := merge_findings(finding for finding in report.findings if finding.kind is kind):
            details.append(Detail(f"{title} ({len(sentences)})", title.lower(), [("list", sentences)]))
    details += _measurement_details(report) if report.measurements else []
    details += [_roofline_detail(report)] if report.rooflines else []
    details += [_published_detail(*item) for item in report.published.items()]
    if rows := inferred_rows(report.groups):
        sentences = [f"{row['group']}: {row['inferred']} ({row['runs']} of {row['of']} runs)" for row in rows]
        details.append(Detail(f"What the logs do not state ({len(rows)})", "inferred", [("list", sentences)]))
    return [*details, Detail("Methods", "methods", [("terms", _METHODS)])]


def merge_findings(findings: Iterable[Finding]) -> list[str]:
    """Return each message once, after all of its subjects."""
    by_message: dict[str, list[str]] = {}
    for finding in findings:
        by_message.setdefault(finding.message, []).append(finding.subject)
    sentences = []
    for message, subjects in by_message.items():
        names = [f"{name} ({times} times)" if times > 1 else name for name, times in Counter(subjects).items()]
        sentences.append(f"{'; '.join(names)}: {message}")
    return sentences


def inferred_rows(groups: Iterable[RunGroup]) -> list[dict[str, Any]]:
    """Return a row for everything that had to be inferred, by run group."""
    return [
        {"group": group.title, "inferred": sentence, "runs": times, "of": len(group.runs)}
        for group in groups
        for sentence, times in Counter(sentence for run in group.runs for sentence in run.inferred).items()
    ]


def scaling_rows(scalings: Iterable[Scaling]) -> list[dict[str, Any]]:
    """Return a row for every number of GPUs of every scaling."""
    return [
        {
            "title": scaling.title,
            "source": scaling.source,
            "basis": scaling.basis,
            "num_accelerators": count,
            "speedup": speedup,
            "efficiency": efficiency.estimate,
            "efficiency_low": efficiency.low if efficiency.is_bounded else None,
            "efficiency_high": efficiency.high if efficiency.is_bounded else None,
            "super_linear": is_super_linear,
        }
        for scaling in scalings
        for count, speedup, efficiency, is_super_linear in zip(
            scaling.counts, scaling.speedup, scaling.efficiency, scaling.super_linear, strict=True
        )
    ]


def _published_detail(benchmark: str, entries: Sequence[PublishedEntry]) -> Detail:
    name, rows = f"published-{benchmark}", [entry.cells() for entry in entries]
    columns, data = [title.capitalize() for title in TITLES], [asdict(entry) for entry in entries]
    table = Table(name, LEGEND, columns, rows, data, TEXT_TITLES)
    title = f"Published MLPerf results of {benchmark} ({len(entries)})"
    return Detail(title, f"{name}-details", [("table", table)])


def _roofline_detail(report: Report) -> Detail:
    detail = Detail("Rooflines", "rooflines", [("text", roofline_plots.EXPLANATION)])
    for number, roofline in enumerate(report.rooflines, start=1):
        name = f"roofline-{number}"
        detail.blocks.append(("plots", [roofline_plots.plot_roofline(name, roofline)]))
        detail.blocks.append(("table", roofline_plots.peaks_table(f"{name}-peaks", roofline)))
        if roofline.points:
            detail.blocks.append(("table", roofline_plots.workloads_table(f"{name}-workloads", roofline)))
        if roofline.fastest_rows:
            detail.blocks.append(("table", roofline_plots.microbenchmarks_table(f"{name}-microbenchmarks", roofline)))
    return detail


def _measurement_details(report: Report) -> list[Detail]:
    """Return a section for each study, with its table and scaling, and one for the fits of speed to peaks."""
    by_study: dict[str, list[ExternalMeasurement]] = {}
    for measurement in report.measurements:
        by_study.setdefault(measurement.study, []).append(measurement)
    details = []
    for number, (study, measurements) in enumerate(by_study.items(), start=1):
        by_workload: dict[str, list[Scaling]] = {}
        for scaling in report.scalings:
            if scaling.source == study:
                by_workload.setdefault(scaling.workload, []).append(scaling)
        plots = [
            plot_scaling(f"measurements-{number}-scaling-{position}", same)
            for position, same in enumerate(by_workload.values(), start=1)
        ]
        blocks: list[tuple[str, Any]] = [("table", _measurement_table(f"measurements-{number}", measurements))]
        blocks.append(("plots", _title_plots([plot for plot in plots if plot], by_workload)))
        details.append(Detail(f"Measurements: {study}", f"measurements-{number}-details", blocks))
    if report.peak_fits:
        fits = [plot_peak_fit(f"peak-fit-{number}", fit) for number, fit in enumerate(report.peak_fits, start=1)]
        details.append(Detail("Speed by peak", "peak-fits", [("plots", fits)]))
    return details


def _title_plots(plots: Sequence[Plot], names: Iterable[str]) -> list[Plot]:
    return [
        Plot(plot.name, f"{plot.title}, {name}", plot.caption, plot.svg, plot.legend)
        for plot, name in zip(plots, names, strict=True)
    ]


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
        f"{measurement.num_accelerators} × {measurement.accelerator}",
        measurement.precision,
        measurement.interconnect,
        measurement.metric.replace("_", " "),
        ", ".join(part for part in (baseline, measurement.note) if part),
        str(measurement.batch) if measurement.batch else "",
        measurement.outcome if measurement.value is None else f"{measurement.value:,.6g}",
    ]

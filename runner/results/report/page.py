"""The report page in HTML and Markdown, with CSV files of its tables, runs, evaluations and findings."""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .... import __version__
from ...core.atomic_files import write_atomically
from ...core.formatting import slug
from ..analysis.ranking import list_progress
from . import csv_tables
from .benchmark_section import BenchmarkSection, benchmark_section
from .build import Report
from .comparison_panel import comparison_panel
from .details import Detail, inferred_rows, list_details, scaling_rows
from .measurement_panel import measurement_panels
from .owned_files import OwnedFiles
from .page_text import count, escape_markdown
from .panels import Panel
from .ranking_panel import progress_panel, ranking_panel
from .study_panel import study_panel
from .tables import MAX_ROWS, Table
from .templates import load_template

DISCLAIMER = "Results are informational and not verified by MLCommons."


def write_page(report: Report, folder: Path, baseline: str = "") -> Path:
    """Write csv/, report.md and finally report.html to `folder`, and return the path of report.html.

    Files of an earlier report are replaced. Raises `ConfigurationError` if another file is in the way.
    """
    owned = OwnedFiles(folder)
    anchors = _anchors(group.workload for group in report.groups)
    run_anchors, panels, sections = _run_anchors(report), [], []
    for number, lineup in enumerate(report.lineups, start=1):
        name = f"panel-{number}"
        rankings = {ranking.workload: ranking for ranking in report.rankings if lineup.is_ranked}
        ranked = [rankings[workload] for workload in lineup.workloads if workload in rankings]
        if ranked:
            panels.append(ranking_panel(name, lineup, ranked, report.systems, anchors))
        else:
            panels.append(
                comparison_panel(name, lineup, report, anchors) if lineup.pairs else study_panel(name, lineup)
            )
        sections.append(
            [
                benchmark_section(workload, anchors[workload], lineup, report, rankings.get(workload), run_anchors)
                for workload in lineup.workloads
            ]
        )
    if progress := list_progress(report.rankings):
        panels.append(progress_panel("panel-progress", progress, report.systems))
    panels += measurement_panels(report, baseline)
    details = list_details(report)
    tables = list(_tables([section for same in sections for section in same], details))
    files = _write_csv_files(report, tables, owned)
    script = (Path(__file__).parent / "page_script.js.j2").read_text(encoding="utf-8").strip()
    context = {
        "title": "Time to train",
        "lead": _lead(report),
        "disclaimer": DISCLAIMER,
        "written": f"Written on {datetime.now(UTC):%Y-%m-%d} by timetrial {__version__}.",
        "panels": panels,
        "sections": sections,
        "details": details,
        "filters": _filters(panels, sections),
        "files": files,
        "is_single_run": len(report.runs) == 1,
        "max_rows": MAX_ROWS,
        "script": script,
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }
    write_atomically(owned.claim("report.md"), load_template("page.md.j2", escape_markdown).render(context))
    write_atomically(owned.claim("report.html"), load_template("page.html.j2").render(context))
    owned.remove_others()
    return folder / "report.html"


def _tables(sections: Iterable[BenchmarkSection], details: Iterable[Detail]) -> Iterator[Table]:
    for section in sections:
        yield from (table for table in (section.table, section.system_table, section.ratios) if table)
    for detail in details:
        yield from (content for kind, content in detail.blocks if kind == "table")


def _write_csv_files(report: Report, tables: Sequence[Table], owned: OwnedFiles) -> list[str]:
    """Write all data, and return the names of the files."""
    contents: dict[str, Sequence[dict[str, Any]]] = {
        "findings": [asdict(finding) for finding in report.findings],
        "inferred": inferred_rows(report.groups),
        "evaluations": list(_evaluation_rows(report)),
        "scaling": scaling_rows(report.scalings),
    }
    contents |= {table.name: [dict(row) for row in table.data] for table in tables}
    contents = {name: rows for name, rows in contents.items() if rows}
    for name, rows in contents.items():
        csv_tables.write_csv(owned.claim(f"csv/{name}.csv"), rows)
    names = list(contents)
    if report.runs:
        csv_tables.write_runs(owned.claim("csv/runs.csv"), report.runs)
        names.append("runs")
    return sorted(set(names) - {table.name for table in tables})


def _evaluation_rows(report: Report) -> Iterator[dict[str, Any]]:
    for group in report.groups:
        for run in group.runs:
            for evaluation in run.evaluations:
                yield {
                    "group": group.title,
                    "run": run.path.as_posix(),
                    "seconds": round(evaluation.seconds, 3),
                    "progress": evaluation.progress,
                    "quality": csv_tables.format_quality(evaluation.quality),
                    "reached": run.success,
                }


def _filters(panels: Sequence[Panel], sections: Sequence[Sequence[BenchmarkSection]]) -> dict[str, list[str]]:
    """Return the choices of each filter; a filter of one choice is left out."""
    flat = [section for same in sections for section in same]
    choices = {
        "round": {section.round for section in flat},
        "scale": {section.scale for section in flat},
        "gpu": {row.gpu for panel in panels for row in panel.rows},
    }
    known = {name: sorted(value for value in values if value) for name, values in choices.items()}
    return {name: values for name, values in known.items() if len(values) > 1}


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


def _run_anchors(report: Report) -> dict[str, str]:
    """Return the anchor of each run group by its title, and of each run by the path of its log."""
    anchors = {group.title: f"group-{number}" for number, group in enumerate(report.groups, start=1)}
    runs = (run for group in report.groups for run in group.runs)
    return anchors | {str(run.source): f"run-{number}" for number, run in enumerate(runs, start=1)}


def _anchors(workloads: Iterable[str]) -> dict[str, str]:
    """Return a unique anchor for each workload, whatever characters its name contains."""
    anchors: dict[str, str] = {}
    for workload in dict.fromkeys(workloads):
        anchor = base = "work-" + slug(workload).replace(".", "-")
        while anchor in anchors.values():
            anchor = f"{base}-{sum(name.startswith(base) for name in anchors.values()) + 1}"
        anchors[workload] = anchor
    return anchors

"""A report as the object that `timetrial report --json` prints."""

from dataclasses import asdict
from typing import Any

from ..analysis.intervals import bounds_as_json
from ..analysis.scores import GpuScore
from .build import Report
from .comparison_json import to_json
from .study_json import groups_to_json


def report_to_json(report: Report) -> dict[str, Any]:
    """Return groups as `study --json` prints them, comparisons as `compare --json` does, measurements and scores."""
    return {
        "groups": groups_to_json(report.groups, report.rankings),
        "comparisons": [to_json(comparison) for comparison in report.comparisons],
        "measurements": [asdict(measurement) for measurement in report.measurements],
        "scores": [_score_to_json(score) for score in report.scores],
        "findings": [asdict(finding) for finding in report.findings],
    }


def _score_to_json(score: GpuScore) -> dict[str, Any]:
    return {
        "baseline": score.baseline,
        "other": score.other,
        "workloads": score.workloads,
        "left_out": score.left_out,
        "speed": bounds_as_json(score.speed, "ratio"),
        "speed_elsewhere": bounds_as_json(score.speed_elsewhere, "ratio"),
        "machines": score.machines,
    }

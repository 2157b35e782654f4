"""Comparisons as the objects that `timetrial compare --json` prints."""

from functools import singledispatch
from typing import Any

from ..analysis.comparison import Comparison
from ..analysis.external_comparison import ExternalComparison, SpeedRow
from ..analysis.intervals import UNKNOWN, bounds_as_json
from ..analysis.throughput_comparison import ThroughputComparison
from ..analysis.verdicts import Verdict
from . import comparison_text, speed_text


@singledispatch
def to_json(comparison: Any) -> dict[str, Any]:
    """Return a comparison of run groups, of throughput groups or of external systems."""
    raise TypeError(type(comparison).__name__)


@to_json.register
def _(comparison: Comparison) -> dict[str, Any]:
    sides = {"baseline": comparison.baseline, "other": comparison.other}
    return {
        **{name: group.title for name, group in sides.items()},
        "verdict": comparison.verdict.value,
        **bounds_as_json(comparison.time, "ratio"),
        "level": comparison.levels.difference,
        "basis": comparison.basis.value,
        "distorted_by": comparison.distorting.cause if comparison.distorting else None,
        "epochs": bounds_as_json(comparison.epochs, "ratio"),
        "seconds_per_epoch": bounds_as_json(comparison.seconds_per_epoch, "ratio"),
        "epochs_state": comparison_text.epochs_state(comparison),
        "paired": bounds_as_json(comparison.paired or UNKNOWN, "ratio"),
        "correlation": bounds_as_json(comparison.correlation or UNKNOWN, "value"),
        "runs": {name: len(group.runs) for name, group in sides.items()},
        "failures": {name: group.num_failed for name, group in sides.items()},
        "machines": comparison.machines.value,
        "reasons": comparison_text.reasons(comparison),
        "differences": comparison_text.differences(comparison),
    }


@to_json.register
def _(comparison: ThroughputComparison) -> dict[str, Any]:
    sides = {"baseline": comparison.baseline, "other": comparison.other}
    is_unsure = comparison.verdict is Verdict.CANNOT_TELL
    return {
        **{name: group.title for name, group in sides.items()},
        "verdict": comparison.verdict.value,
        **bounds_as_json(comparison.interval, "ratio"),
        "level": comparison.levels.difference,
        "basis": "samples per second",
        "runs": {name: len(group.results) for name, group in sides.items()},
        "failures": {name: group.out_of_memory for name, group in sides.items()},
        "distorted_by": comparison.distorting.cause if comparison.distorting else None,
        "reasons": [
            *([speed_text.throughput_phrase(comparison)] if is_unsure else []),
            *speed_text.throughput_reasons(comparison),
        ],
        "differences": speed_text.setting_differences(comparison),
    }


@to_json.register
def _(comparison: ExternalComparison) -> dict[str, Any]:
    is_unsure = comparison.verdict is Verdict.CANNOT_TELL
    return {
        "baseline": comparison.baseline.title,
        "other": comparison.other.title,
        "verdict": comparison.verdict.value,
        **bounds_as_json(comparison.interval, "ratio"),
        "level": comparison.levels.difference,
        "basis": "published speed",
        "measurements": [_row_to_json(row) for row in comparison.rows],
        "reasons": [speed_text.external_summary(comparison)] if is_unsure else [],
        "differences": [],
    }


def _row_to_json(row: SpeedRow) -> dict[str, Any]:
    fields = ("workload", "task", "setting", "metric", "baseline", "other", "ratio")
    return {name: getattr(row, name) for name in fields}

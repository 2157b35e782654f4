"""A run group as the object that `timetrial study --json` prints."""

from collections.abc import Iterable
from typing import Any

from ...record.published_results import compare_with_published
from ..analysis import planning, samples
from ..analysis.groups import RunGroup
from ..analysis.intervals import Sample, bounds_as_json
from ..analysis.ranking import Ranking
from .ranking_panel import ranking_rows


def groups_to_json(groups: Iterable[RunGroup], rankings: Iterable[Ranking]) -> list[dict[str, Any]]:
    """Return an object per group; `ranking` holds its rank and figures in its round, null where none is ranked."""
    ranks = {row.pop("group"): row for ranking in rankings for row in ranking_rows(ranking)}
    return [group_to_json(group) | {"ranking": ranks.get(group.title)} for group in groups]


def group_to_json(group: RunGroup) -> dict[str, Any]:
    """Return counts, intervals and plans of a group; times are in seconds, and null is what is unknown."""
    outcomes, horizon, score = group.outcomes, group.horizon, group.score_interval
    return {
        "group": group.title,
        "round": group.round,
        "benchmark": group.benchmark,
        "submitter": group.submitter,
        "system": group.system,
        "setting": group.setting,
        "accelerators": group.accelerators,
        "runs": len(group.runs),
        "independent_runs": len(group.time_sample.values),
        "failures": group.num_failed,
        "time_to_train": bounds_as_json(group.mean_minutes.scaled(60), "estimate"),
        "olympic_mean": bounds_as_json(score.scaled(60), "estimate") if score else None,
        "progress_unit": group.progress_unit,
        "epochs": bounds_as_json(group.mean_epochs, "estimate"),
        "seconds_per_epoch": bounds_as_json(group.mean_seconds_per_epoch, "estimate"),
        "success_rate": bounds_as_json(outcomes.success_rate(), "estimate"),
        "expected_time": bounds_as_json(outcomes.expected_time(), "estimate"),
        "restricted_mean": {
            "horizon": horizon,
            **bounds_as_json(outcomes.restricted_mean(horizon), "estimate"),
        },
        "runs_needed": {f"{share:g}": _plan(group.time_sample, share) for share in (0.05, 0.1)},
        "published": compare_with_published(record) if (record := group.runs[0].run_record) else [],
        "reasons": samples.describe_dependence(group.title, group.converged_runs),
    }


def _plan(pilot: Sample, difference: float) -> list[int] | None:
    needed = planning.runs_needed(pilot, difference)
    return [needed.low, needed.high] if needed else None

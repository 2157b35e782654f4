"""A run group as the object that `timetrial study --json` prints."""

import math
from typing import Any

from ..analysis import planning, samples, stats
from ..analysis.groups import RunGroup
from ..analysis.intervals import Interval, Sample


def group_to_json(group: RunGroup) -> dict[str, Any]:
    """Return counts, intervals and plans of a group; times are in seconds, and null is what is unknown."""
    outcomes = group.outcomes
    score = stats.olympic_interval(
        [60 * minutes for minutes in group.minutes], group.num_failed, floor=group.epoch_floor
    )
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
        "time_to_train": _interval(group.mean_minutes.scaled(60)),
        "olympic_mean": _interval(score.scaled(group.scaling_factor or 1.0)) if score else None,
        "progress_unit": group.progress_unit,
        "epochs": _interval(group.mean_epochs),
        "seconds_per_epoch": _interval(group.mean_seconds_per_epoch),
        "success_rate": _interval(outcomes.success_rate()),
        "expected_time": _interval(outcomes.expected_time()),
        "restricted_mean": {"horizon": group.horizon, **_interval(outcomes.restricted_mean(group.horizon))},
        "runs_needed": {f"{share:g}": _plan(group.time_sample, share) for share in (0.05, 0.1)},
        "reasons": samples.describe_dependence(group.title, group.converged_runs),
    }


def _plan(pilot: Sample, difference: float) -> list[int] | None:
    needed = planning.runs_needed(pilot, difference)
    return [needed.low, needed.high] if needed else None


def _interval(interval: Interval) -> dict[str, float | None]:
    values = {"estimate": interval.estimate, "low": interval.low, "high": interval.high}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}

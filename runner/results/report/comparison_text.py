"""The verdict of a comparison of run groups in words, and what the reader must know to trust it."""

import math

from ..analysis import group_differences, run_order, samples
from ..analysis.acceptance import describe_acceptance
from ..analysis.comparison import Basis, Comparison, EpochsState, Machines
from ..analysis.distortion import Distortion
from ..analysis.group_differences import WorkloadPart
from ..analysis.intervals import LEVEL, Interval
from ..analysis.verdicts import Verdict


def title(comparison: Comparison) -> str:
    """Return the names of the groups."""
    return f"{comparison.other.title} against {comparison.baseline.title}"


def summary(comparison: Comparison) -> str:
    """Return names and verdict."""
    return f"{title(comparison)}: {phrase(comparison)}."


def phrase(comparison: Comparison) -> str:
    """Return the verdict with its interval."""
    time, level = comparison.time, comparison.levels.difference
    where = "" if comparison.machines is Machines.SAMPLED else f", {comparison.machines}"
    by = f"by {comparison.basis}{where}"
    if comparison.verdict is Verdict.NOT_COMPARABLE:
        unit, pace = comparison.baseline.progress_unit.removesuffix("s"), comparison.seconds_per_epoch
        by_pace = f"; seconds per {unit}{where}: {_format_ratio(pace)}" if pace.n else ""
        return "not comparable by time-to-train" + by_pace
    if not time.is_bounded:
        return f"cannot tell which is faster{where}"
    if comparison.distorting:
        return f"cannot tell which is faster {by}: {comparison.distorting.cause} ({_format_ratio(time, level)})"
    if comparison.verdict is Verdict.EQUAL:
        return f"equal within {comparison.margin:.0%} {by} ({_format_ratio(time, level)})"
    if comparison.verdict is Verdict.CANNOT_TELL:
        return f"cannot tell which is faster {by} ({_format_ratio(time, level)})"
    times = time if comparison.verdict is Verdict.FASTER else time.inverse
    return f"{times.estimate:.4g} times {comparison.verdict} ({_format_bounds(times, level)}) {by}"


def epochs_state(comparison: Comparison) -> str:
    """Return what is known of the epochs, with the margin within which they are equal."""
    margin = f" within {comparison.margin:.0%}" if comparison.epochs_state is EpochsState.SHOWN_EQUAL else ""
    return f"{comparison.epochs_state}{margin}"


def differences(comparison: Comparison) -> list[str]:
    """Return the differences of the groups other than the GPU, the most important first."""
    texts = []
    for name, *values in group_differences.list_differences(comparison.baseline, comparison.other):
        first, second = ("not stated" if value in (None, "") else value for value in values)
        texts.append(f"{name}: {first} vs. {second}")
    return texts


def reasons(comparison: Comparison) -> list[str]:
    """Return what the reader must know to trust the verdict, the most important first."""
    sides = comparison.baseline, comparison.other
    is_comparable = comparison.verdict is not Verdict.NOT_COMPARABLE
    texts = [] if is_comparable else [_describe_obstacle(comparison)]
    for group in sides:
        if not group.converged_runs:
            longest = max(run.observed for run in group.runs) / 60
            texts.append(f"no run of {group.title} reached its target: it takes > {longest:.3g} min")
        elif group.num_failed:
            texts.append(f"{group.num_failed} of {len(group.runs)} runs of {group.title} failed")
    texts += describe_distortion(comparison.distorting)
    texts += _describe_failures(comparison)
    if is_comparable and all(group.converged_runs for group in sides):
        texts += _describe_luck(comparison)
    texts += [finding.message for finding in run_order.check(sides, [])]
    for group in sides:
        texts += samples.describe_dependence(group.title, group.converged_runs)
        if flags := sorted({flag for run in group.runs for flag in run.flags}):
            texts.append(f"validity flags of {group.title}: {', '.join(flags)}")
    records = {group.title: [run.run_record for run in group.runs if run.run_record is not None] for group in sides}
    return texts + describe_acceptance({title: [each.accepted for each in same] for title, same in records.items()})


def _describe_obstacle(comparison: Comparison) -> str:
    """Return why the times of the groups cannot be compared."""
    unit = comparison.baseline.progress_unit
    if difference := group_differences.workload_difference(comparison.baseline, comparison.other):
        part, first, second = difference
        if part is WorkloadPart.MODEL:
            return f"{first} and {second} are different models"
        return f"their {part}s differ ({first} and {second})"
    return (
        f"their recipes differ ({_recipe_differences(comparison)}) and their {unit} are not shown equal "
        f"({_mean_epochs(comparison)}), so time-to-train compares recipes: compare the time per {unit[:-1]}"
    )


def describe_distortion(distortion: Distortion | None) -> list[str]:
    """Return how far a ratio may be off because of a distortion; nothing without one."""
    if distortion is None:
        return []
    if not all(map(math.isfinite, (distortion.down, distortion.up))):
        return [f"{distortion.cause}: nothing bounds what that costs, so repeat these runs undisturbed"]
    by = f"-{-math.expm1(-distortion.down):.1%} to +{math.expm1(distortion.up):.1%}"
    return [f"{distortion.cause}: without it the ratio may be off by {by}, so repeat these runs, the sides in turn"]


def _describe_failures(comparison: Comparison) -> list[str]:
    """Return what is known of the speed alone where failed runs decide and leave it open."""
    if comparison.basis is not Basis.EXPECTED_TIME or comparison.verdict is not Verdict.CANNOT_TELL:
        return []
    converged = comparison.time_to_train
    return [f"of the converged runs alone, time-to-train has the {_format_ratio(converged)}"] if converged.n else []


def _describe_luck(comparison: Comparison) -> list[str]:
    if comparison.has_few_runs:
        recipes = _recipe_differences(comparison)
        recipes = f"; their recipes differ ({recipes})" if recipes else ""
        few = "fewer than three converged runs with seeds of their own on a side cannot tell luck from speed"
        return [f"{few}: repeat both with other seeds{recipes}"]
    if comparison.epochs_state is EpochsState.SHOWN_EQUAL:
        return []
    unit = comparison.baseline.progress_unit
    return [f"their {unit} are not shown equal within {comparison.margin:.0%} ({_mean_epochs(comparison)})"]


def _recipe_differences(comparison: Comparison) -> str:
    return ", ".join(group_differences.list_recipe_differences(comparison.baseline, comparison.other))


def _mean_epochs(comparison: Comparison) -> str:
    groups = comparison.baseline, comparison.other
    means = [f"{group.mean_epochs.estimate:.3g}" if group.epochs else "unknown" for group in groups]
    return f"{' vs. '.join(means)} {comparison.baseline.progress_unit}"


def _format_bounds(interval: Interval, level: float = LEVEL) -> str:
    return f"{level * 100:.3g}% CI: {interval.low:.4g} to {interval.high:.4g}"


def _format_ratio(interval: Interval, level: float = LEVEL) -> str:
    bounds = f", {_format_bounds(interval, level)}" if interval.is_bounded else ", no interval"
    return f"ratio {interval.estimate:.4g}{bounds}"

"""Compare two run groups: time-to-train as epochs x time per epoch x overhead, and a verdict.

Overhead is the total time over the training time. The epochs reflect recipe and seed variance; the time per epoch
reflects the speed of hardware and software.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..parse.runs import Run
from . import stats
from .groups import RunGroup
from .stats import Interval

ALPHA = 0.05
_NOISY = 0.05  # coefficient of variation of the epochs above which time-to-train of different recipes is not compared
# Hyperparameters that do not describe the recipe.
_IGNORED = ("seed", "opt_learning_rate_decay_steps")
_SETTINGS: tuple[tuple[str, Callable[[RunGroup], object]], ...] = (
    ("model", lambda group: group.model),
    ("round", lambda group: group.round),
    ("target", lambda group: _format_target(group.runs[0].target)),
    ("division", lambda group: group.runs[0].division),
    ("number of accelerators", lambda group: group.runs[0].num_accelerators),
    ("global batch size", lambda group: _format_batch(group.runs[0])),
    ("precision", lambda group: group.runs[0].precision),
    ("peer-to-peer", lambda group: "off" if group.runs[0].execution.get("peer_to_peer") is False else "default"),
    ("software", lambda group: group.runs[0].software),
    ("runs", lambda group: len(group.runs)),
    ("failed runs", lambda group: group.num_failed),
)


@dataclass(frozen=True)
class Comparison:
    """Two groups and the ratios of their times and epochs, first over second: below 1 means that `first` is faster.

    `pooled_time_to_train` is the ratio with the epochs of both groups pooled, known only if both have the same recipe
    (iso-convergence). `banner` says why their time-to-train cannot be compared; it is empty if it can be.
    """

    first: RunGroup
    second: RunGroup
    time_to_train: Interval
    epochs: Interval
    time_per_epoch: Interval
    overhead: Interval
    pooled_time_to_train: Interval | None
    p_epochs: float
    differences: list[str]
    banner: str
    verdict: str


def compare(first: RunGroup, second: RunGroup) -> Comparison:
    """Return the comparison of two groups; the ratios are computed even if the groups are not comparable."""
    time_to_train = stats.ratio_of_means(first.minutes, second.minutes)
    epochs = stats.ratio_of_means(first.epochs, second.epochs)
    time_per_epoch = stats.ratio_of_means(first.train_seconds_per_epoch, second.train_seconds_per_epoch)
    overhead = stats.ratio_of_means(_overheads(first), _overheads(second))
    same_recipe = not _workload_difference(first, second) and not _recipe_differs(first, second)
    pooled = _multiply(time_per_epoch, overhead) if same_recipe else None
    p_epochs = stats.permutation_p_value(first.epochs, second.epochs)
    banner = _incomparable_reason(first, second, same_recipe, p_epochs, epochs)
    return Comparison(
        first=first,
        second=second,
        time_to_train=time_to_train,
        epochs=epochs,
        time_per_epoch=time_per_epoch,
        overhead=overhead,
        pooled_time_to_train=pooled,
        p_epochs=p_epochs,
        differences=list_differences(first, second),
        banner=banner,
        verdict=_verdict(first, second, time_to_train, time_per_epoch, pooled, banner),
    )


def list_differences(first: RunGroup, second: RunGroup) -> list[str]:
    """Return in what two groups differ apart from the accelerator, the most important first."""
    differences = []
    for name, value_of in _SETTINGS:
        values = value_of(first), value_of(second)
        if values[0] != values[1]:
            differences.append(_format_difference(name, *values))
    hyperparameters = first.runs[0].hyperparameters, second.runs[0].hyperparameters
    for key in sorted(hyperparameters[0].keys() | hyperparameters[1].keys()):
        values = hyperparameters[0].get(key), hyperparameters[1].get(key)
        if key not in _IGNORED and values[0] != values[1]:
            differences.append(_format_difference(key, *values))
    flags = [sorted({flag for run in group.runs for flag in run.flags}) for group in (first, second)]
    if flags[0] != flags[1]:
        differences.append(f"validity flags: {', '.join(flags[0]) or 'none'} vs. {', '.join(flags[1]) or 'none'}")
    return differences


def _format_difference(name: str, first: object, second: object) -> str:
    texts = ["not stated" if value in (None, "") else value for value in (first, second)]
    return f"{name}: {texts[0]} vs. {texts[1]}"


def describe_ratio(ratio: Interval, context: str = "") -> str:
    """Return a ratio of times in words: "1.23 times faster (95% CI: 1.20 to 1.26)", or "no significant difference"."""
    if not math.isfinite(ratio.estimate):
        return "not known"
    if not math.isfinite(ratio.low):
        factor = ratio.estimate if ratio.estimate >= 1 else 1 / ratio.estimate
        direction = "slower" if ratio.estimate >= 1 else "faster"
        return f"{factor:.3g} times {direction}{context}, without a confidence interval (single runs)"
    if ratio.low <= 1 <= ratio.high:
        interval = f"ratio {ratio.estimate:.3f}, 95% CI: {ratio.low:.3f} to {ratio.high:.3f}"
        return f"no significant difference{context} ({interval})"
    if ratio.estimate > 1:
        return f"{ratio.estimate:.3g} times slower{context} (95% CI: {ratio.low:.3g} to {ratio.high:.3g})"
    return f"{1 / ratio.estimate:.3g} times faster{context} (95% CI: {1 / ratio.high:.3g} to {1 / ratio.low:.3g})"


def _incomparable_reason(
    first: RunGroup, second: RunGroup, same_recipe: bool, p_epochs: float, epochs: Interval
) -> str:
    """Return why the time-to-train of two groups cannot be compared; empty if it can be."""
    if reason := _workload_difference(first, second):
        return f"These groups cannot be compared: {reason}."
    intro = "These groups cannot be compared by time-to-train"
    if not first.converged_runs or not second.converged_runs:
        group = second if first.converged_runs else first
        return f"{intro}: {group.title} has no run that reached its target."
    if same_recipe:
        return ""
    if not epochs.n or not math.isfinite(epochs.estimate):
        return f"{intro}: their epochs to converge are not known."
    means = f"{_mean(first.epochs):.3g} vs. {_mean(second.epochs):.3g} epochs"
    is_single = not math.isfinite(epochs.low)
    if p_epochs < ALPHA or (is_single and abs(math.log(epochs.estimate)) > _NOISY):
        return (
            f"{intro}: they converged in {means}, which is due to the recipe and not to the hardware; "
            "compare the time per epoch."
        )
    variation = max(stats.coefficient_of_variation(group.epochs) for group in (first, second))
    if variation > _NOISY:
        is_stated = first.runs[0].global_batch_size and second.runs[0].global_batch_size
        recipes = "their recipes differ" if is_stated else "whether their recipes are the same is not stated"
        return (
            f"{intro}: {recipes}, and their epochs vary by {variation:.0%} from run to run ({means}); "
            "compare the time per epoch."
        )
    return ""


def _verdict(
    first: RunGroup,
    second: RunGroup,
    time_to_train: Interval,
    time_per_epoch: Interval,
    pooled: Interval | None,
    banner: str,
) -> str:
    title = f"{first.title} vs. {second.title}"
    if _workload_difference(first, second):
        return f"{title}: the ratios compare different workloads."
    if banner:
        return f"{title}: {describe_ratio(time_per_epoch, ' by time per epoch')}."
    if pooled is not None:
        return (
            f"{title}: {describe_ratio(pooled, ' by time-to-train with pooled epochs')}. Both use the same recipe, so "
            f"a difference in epochs is seed variance. Measured time-to-train: {describe_ratio(time_to_train)}."
        )
    by_epoch = describe_ratio(time_per_epoch)
    return f"{title}: {describe_ratio(time_to_train, ' by time-to-train')}; by time per epoch {by_epoch}."


def _workload_difference(first: RunGroup, second: RunGroup) -> str:
    if first.model != second.model:
        return f"{first.model} and {second.model} are different models"
    targets = _format_target(first.runs[0].target), _format_target(second.runs[0].target)
    if targets[0] != targets[1]:
        return f"their targets differ ({targets[0]} and {targets[1]})"
    return ""


def _recipe_differs(first: RunGroup, second: RunGroup) -> bool:
    """Return False only if both groups state batch size and hyperparameters, and these are the same."""
    runs = first.runs[0], second.runs[0]
    if runs[0].global_batch_size is None or _format_batch(runs[0]) != _format_batch(runs[1]):
        return True
    keys = (runs[0].hyperparameters.keys() | runs[1].hyperparameters.keys()) - set(_IGNORED)
    keys -= {"gradient_accumulation_steps"}  # does not change the gradient
    return not keys or any(runs[0].hyperparameters.get(key) != runs[1].hyperparameters.get(key) for key in keys)


def _overheads(group: RunGroup) -> list[float]:
    return [(run.duration or 0.0) / run.train_seconds for run in group.converged_runs if run.train_seconds]


def _multiply(first: Interval, second: Interval) -> Interval:
    """Return the product of two independent ratios: half-widths on the log scale add in quadrature (first order)."""
    estimate = first.estimate * second.estimate
    widths = [
        (math.log(ratio.low / ratio.estimate), math.log(ratio.high / ratio.estimate)) for ratio in (first, second)
    ]
    low, high = (math.hypot(*(width[side] for width in widths)) for side in (0, 1))
    return Interval(estimate, estimate * math.exp(-low), estimate * math.exp(high), min(first.n, second.n))


def _format_batch(run: Run) -> str:
    return f"{run.global_batch_size} {run.batch_unit}" if run.global_batch_size else ""


def _format_target(target: object) -> str:
    return ", ".join(f"{value:g}" for value in target.values()) if isinstance(target, dict) else str(target)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

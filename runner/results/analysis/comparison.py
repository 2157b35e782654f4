"""Two cells side by side: time-to-train split into epochs, time per epoch and overhead, and a verdict in words.

Per run, time-to-train = epochs x training seconds per epoch x overhead, where overhead is all of the time over the
training time. Luck sits in the first factor, the card in the second.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..parse.runs import Run
from . import stats
from .groups import Cell
from .stats import Interval

ALPHA = 0.05
_NOISY = 0.05  # a coefficient of variation of the epochs from which a few runs do not tell cards apart
# Facts of a run that tell nothing of how it was trained.
_UNIMPORTANT = ("seed", "opt_learning_rate_decay_steps")


@dataclass(frozen=True)
class Comparison:
    """Ratios are `one` over `other`, in time: below 1 means that `one` is faster.

    `expected` is the ratio of time-to-train with the epochs of both cells pooled; only under iso-convergence.
    """

    one: Cell
    other: Cell
    time: Interval
    epochs: Interval
    per_epoch: Interval
    overhead: Interval
    expected: Interval | None
    p_epochs: float
    differences: list[str]
    banner: str
    verdict: str


def compare(one: Cell, other: Cell) -> Comparison:
    """Compares two cells; whatever the verdict, the numbers are there."""
    time = stats.ratio(one.minutes, other.minutes)
    epochs = stats.ratio(one.epochs, other.epochs)
    per_epoch = stats.ratio(one.train_seconds_per_epoch, other.train_seconds_per_epoch)
    overhead = stats.ratio(_overheads(one), _overheads(other))
    differences = differences_of(one, other)
    iso = not _work_differs(one, other) and not _recipe_differs(one, other)
    expected = _product(per_epoch, overhead) if iso else None
    p_epochs = stats.permutation_p(one.epochs, other.epochs)
    banner = _banner(one, other, iso, p_epochs, epochs)
    verdict = _verdict(one, other, time, per_epoch, expected, banner)
    return Comparison(one, other, time, epochs, per_epoch, overhead, expected, p_epochs, differences, banner, verdict)


def differences_of(one: Cell, other: Cell) -> list[str]:
    """In what the two cells differ apart from the card, in words, the weightiest first."""
    found = []
    for what, value in (
        ("model", lambda cell: cell.model),
        ("round", lambda cell: cell.round),
        ("target", lambda cell: _text(cell.runs[0].target)),
        ("division", lambda cell: cell.runs[0].division),
        ("number of accelerators", lambda cell: cell.runs[0].num_accelerators),
        ("global batch", lambda cell: _batch(cell.runs[0])),
        ("precision", lambda cell: cell.runs[0].precision),
        ("peer-to-peer", lambda cell: "off" if cell.runs[0].stack.get("peer_to_peer") is False else "as usual"),
        ("software", lambda cell: cell.runs[0].software),
        ("runs", lambda cell: len(cell.runs)),
        ("failed runs", lambda cell: cell.failed),
    ):
        here, there = value(one), value(other)
        if here != there:
            found.append(_difference(what, here, there))
    for key in sorted(one.runs[0].hyperparameters.keys() | other.runs[0].hyperparameters.keys()):
        here, there = (cell.runs[0].hyperparameters.get(key) for cell in (one, other))
        if key not in _UNIMPORTANT and here != there:
            found.append(_difference(key, here, there))
    flags = [sorted({flag for run in cell.runs for flag in run.flags}) for cell in (one, other)]
    if flags[0] != flags[1]:
        found.append(f"validity: {', '.join(flags[0]) or 'clean'} against {', '.join(flags[1]) or 'clean'}")
    return found


def _difference(what: str, here: object, there: object) -> str:
    told = ["not stated" if value in (None, "") else value for value in (here, there)]
    return f"{what}: {told[0]} against {told[1]}"


def faster(ratio: Interval, what: str = "") -> str:
    """A ratio of times as a phrase: "1.23 times faster (95%: 1.20 to 1.26)", or that none can be told."""
    if not math.isfinite(ratio.estimate):
        return "not known"
    if not math.isfinite(ratio.low):
        factor = ratio.estimate if ratio.estimate >= 1 else 1 / ratio.estimate
        word = "slower" if ratio.estimate >= 1 else "faster"
        return f"{factor:.3g} times {word}{what}, without an interval: single runs carry none"
    if ratio.low <= 1 <= ratio.high:
        return f"no difference{what} at 95% (ratio {ratio.estimate:.3f}, {ratio.low:.3f} to {ratio.high:.3f})"
    if ratio.estimate > 1:
        return f"{ratio.estimate:.3g} times slower{what} (95%: {ratio.low:.3g} to {ratio.high:.3g})"
    return f"{1 / ratio.estimate:.3g} times faster{what} (95%: {1 / ratio.high:.3g} to {1 / ratio.low:.3g})"


def _banner(one: Cell, other: Cell, iso: bool, p_epochs: float, epochs: Interval) -> str:
    """Why time-to-train does not compare these two; empty where it does."""
    if reason := _work_differs(one, other):
        return f"These two cannot be compared at all: {reason}."
    if not one.converged or not other.converged:
        lacking = one.title if not one.converged else other.title
        return f"These two cannot be compared by time-to-train: {lacking} has no run that reached its target."
    if iso:
        return ""
    if not epochs.n or not math.isfinite(epochs.estimate):
        return "These two cannot be compared by time-to-train: the epochs that they needed are not known."
    told = f"{_mean(one.epochs):.3g} epochs against {_mean(other.epochs):.3g}"
    single = not math.isfinite(epochs.low)
    if p_epochs < ALPHA or (single and abs(math.log(epochs.estimate)) > _NOISY):
        return (
            f"These two cannot be compared by time-to-train: they needed {told}, which is the recipe's doing and not "
            "the card's; time per epoch is what can be compared."
        )
    noise = max(stats.spread(one.epochs), stats.spread(other.epochs))
    if noise > _NOISY:
        stated = one.runs[0].global_batch_size and other.runs[0].global_batch_size
        recipes = "their recipes differ" if stated else "that they train by one recipe is not stated"
        return (
            f"These two cannot be compared by time-to-train: {recipes} and the epochs vary by {noise:.0%} "
            f"from run to run ({told}); time per epoch is what can be compared."
        )
    return ""


def _verdict(
    one: Cell, other: Cell, time: Interval, per_epoch: Interval, expected: Interval | None, banner: str
) -> str:
    name = f"{one.title} against {other.title}"
    if _work_differs(one, other):
        return f"{name}: the ratios are those of different work."
    if banner:
        return f"{name}: {faster(per_epoch, ' by time per epoch')}."
    if expected is not None:
        return (
            f"{name}: {faster(expected, ' to the target, with epochs pooled')}; the same recipe on both, so "
            f"different epochs are luck. As measured: {faster(time)}."
        )
    return f"{name}: {faster(time, ' to the target')}; by time per epoch {faster(per_epoch)}."


def _work_differs(one: Cell, other: Cell) -> str:
    if one.model != other.model:
        return f"{one.model} and {other.model} are different models"
    target, its = one.runs[0].target, other.runs[0].target
    if _text(target) != _text(its):
        return f"their targets differ ({_text(target)} and {_text(its)})"
    return ""


def _recipe_differs(one: Cell, other: Cell) -> bool:
    """True unless both train by one recipe: the same batch, the same hyperparameters, stated on both sides."""
    mine, theirs = one.runs[0], other.runs[0]
    if mine.global_batch_size is None or _batch(mine) != _batch(theirs):
        return True
    keys = (mine.hyperparameters.keys() | theirs.hyperparameters.keys()) - set(_UNIMPORTANT)
    keys -= {"gradient_accumulation_steps"}  # how a batch is cut changes no epoch
    return not keys or any(mine.hyperparameters.get(key) != theirs.hyperparameters.get(key) for key in keys)


def _overheads(cell: Cell) -> list[float]:
    return [(run.duration or 0.0) / run.train_seconds for run in cell.converged if run.train_seconds]


def _product(one: Interval, other: Interval) -> Interval:
    """Interval of a product of two independent ratios: relative half-widths add in squares (first order)."""
    estimate = one.estimate * other.estimate
    spans = [(math.log(part.low / part.estimate), math.log(part.high / part.estimate)) for part in (one, other)]
    low, high = (math.hypot(*(span[side] for span in spans)) for side in (0, 1))
    return Interval(estimate, estimate * math.exp(-low), estimate * math.exp(high), min(one.n, other.n))


def _batch(run: Run) -> str:
    return f"{run.global_batch_size} {run.batch_unit}" if run.global_batch_size else ""


def _text(target: object) -> str:
    return ", ".join(f"{value:g}" for value in target.values()) if isinstance(target, dict) else str(target)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

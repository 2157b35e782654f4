"""What the ratio of two sides shows: which is faster, and at which confidence levels several pairs are judged."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from .intervals import LEVEL, Ratio, is_equal_within

ALPHA = 1 - LEVEL
MARGIN = 0.05
"""Relative difference up to which groups are called equal, unless a user sets another."""


class Verdict(StrEnum):
    """What is known of the other side against the baseline."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUAL = "equal"
    CANNOT_TELL = "cannot tell"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Levels:
    """Confidence levels at which a ratio is decided among others: that it differs from 1, and that it is equal."""

    difference: float = LEVEL
    equivalence: float = LEVEL


ALONE = Levels()
"""The levels of a ratio that is decided alone."""
MIN_RUNS = 3
"""Independent runs a side for a verdict: two find a difference of 10% in one study of seven at a spread of 4%."""


def decide(ratio: Ratio, margin: float = MARGIN, levels: Levels = ALONE) -> Verdict:
    """Return the verdict of a ratio, baseline over other."""
    interval = ratio.interval(levels.difference)
    if ratio.n < MIN_RUNS or not interval.is_bounded:
        return Verdict.CANNOT_TELL
    if is_equal_within(ratio, margin, 1 - levels.equivalence):
        return Verdict.EQUAL
    if interval.low <= 1 <= interval.high:
        return Verdict.CANNOT_TELL
    return Verdict.FASTER if interval.low > 1 else Verdict.SLOWER


def family_levels(ratios: Sequence[Ratio | None], margin: float = MARGIN) -> list[Levels]:
    """Return the levels at which several ratios are decided; None stands for one that is not comparable.

    At most 5% of such families have a "faster" or "slower" between equals, and at most 5% an "equal" between sides
    that differ by more than the margin (Holm 1979, for each of the two).
    """
    tested = [ratio if ratio is not None and ratio.n >= MIN_RUNS else None for ratio in ratios]
    differences = holm_levels([ratio.p_value if ratio else math.nan for ratio in tested])
    equivalences = holm_levels([ratio.equivalence_p_value(margin) if ratio else math.nan for ratio in tested])
    return list(map(Levels, differences, equivalences))


def holm_levels(p_values: Sequence[float]) -> list[float]:
    """Return the confidence level at which each hypothesis is decided; NaN stands for one that is not tested."""
    tested = sorted((p, index) for index, p in enumerate(p_values) if math.isfinite(p))
    levels = [LEVEL] * len(p_values)
    alpha = ALPHA
    for step, (p, index) in enumerate(tested):
        alpha = ALPHA / (len(tested) - step)
        if p > alpha:
            for _, rest in tested[step:]:
                levels[rest] = 1 - alpha
            break
        levels[index] = 1 - alpha
    return levels

"""What the ratio of two sides shows: which is faster, and at which confidence levels several pairs are judged."""

import math
from collections.abc import Sequence
from enum import StrEnum

from .intervals import LEVEL, Interval, Ratio, is_equal_within

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


def decide(ratio: Ratio, interval: Interval, margin: float = MARGIN) -> Verdict:
    """Return the verdict of a ratio, baseline over other, whose interval at the level of the test is `interval`."""
    if not interval.is_bounded:
        return Verdict.CANNOT_TELL
    if is_equal_within(ratio, margin):
        return Verdict.EQUAL
    if interval.low <= 1 <= interval.high:
        return Verdict.CANNOT_TELL
    return Verdict.FASTER if interval.low > 1 else Verdict.SLOWER


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

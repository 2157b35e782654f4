"""Spans of time."""

import math
from collections.abc import Iterable

Span = tuple[float, float]
"""Begin and end, of one clock."""


def union_length(spans: Iterable[Span]) -> float:
    """Return the time in which at least one of the spans lasts."""
    length, covered = 0.0, -math.inf
    for begin, end in sorted(spans):
        length += max(0.0, end - max(begin, covered))
        covered = max(covered, end)
    return length

"""Find the values of a sample that are too low for luck, at a level that holds for the whole sample."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

MIN_VALUES = 3
_MAX_SHARE = 5  # at most one value in so many is looked at: more slow nodes than that are the normal case
# Several tests on one sample exceed the level of each a little in samples of less than 25; by simulation
# (scripts/measure/accept_cluster.py), 0.04 keeps the whole below 0.05.
_ALPHA = 0.04


def find_low_outliers(values: Sequence[float], num_samples: int = 1) -> list[int]:
    """Return the indices of positive values that are lower than the others, the lowest first.

    This is the generalized extreme Studentized deviate test (Rosner 1983) on the logs, one-sided: it removes the lowest
    value again and again, compares its distance from the mean of what is left with the critical value of Grubbs (1969),
    and keeps the largest number of values whose last one exceeds it, so that several slow values do not hide each
    other. At most 5% of normal samples have an outlier; with `num_samples` tested together, at most 5% of all of those
    have one anywhere (Bonferroni). More samples with heavy tails have one. Empty for fewer than three values.
    """
    if len(values) < MIN_VALUES:
        return []
    logs = np.log(np.asarray(values, dtype=np.float64))
    logs -= np.median(logs)  # sums of squares stay exact
    order, found = np.argsort(logs, kind="stable"), 0
    from_high = logs[order[::-1]]
    sums, squares = np.cumsum(from_high), np.cumsum(from_high**2)
    for removed in range(max(1, len(values) // _MAX_SHARE)):
        n = len(values) - removed
        mean = sums[n - 1] / n
        variance = max((squares[n - 1] - n * mean**2) / (n - 1), 0.0)
        distance = mean - from_high[n - 1]
        if distance > critical_distance(n, _ALPHA / num_samples) * math.sqrt(variance):
            found = removed + 1
    return [int(index) for index in order[:found]]


def critical_distance(n: int, alpha: float) -> float:
    """Return how far, in standard deviations, the lowest of n normal values is below their mean with chance `alpha`.

    By Student's t at the Bonferroni level alpha / n (Grubbs 1969; exact up to the union bound).
    """
    t = float(stdtrit(n - 2, 1 - alpha / n))
    return (n - 1) * t / math.sqrt((n - 2 + t**2) * n)

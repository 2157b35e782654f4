"""Variance components: how much of the spread of a time comes from the seed, the machine, the number of GPUs."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import fdtri, stdtrit

from .intervals import LEVEL, UNKNOWN, Array, Interval, Sample

_MIN_RUNS = 4  # for a share of the epochs
_MAX_WIDTH = 0.5  # of the interval of a share
_DRAWS = 10_000


@dataclass(frozen=True)
class VarianceShare:
    """The share of a factor in the variance of the log values at equal levels of `within`, with its 95% interval."""

    factor: str
    share: Interval
    within: tuple[str, ...] = ()


def variance_shares(values: Sequence[float], factors: Mapping[str, Sequence[Hashable]]) -> list[VarianceShare]:
    """Return the share of each crossed random factor in the variance of log(values); data may be unbalanced.

    The components are Henderson's method III (Searle, Casella, McCulloch 1992): the sum of squares of a factor,
    adjusted for all others, is equated with its expectation. Intervals are generalized ones (Weerahandi 1993): every
    mean square is drawn by its chi-squared distribution, those of the other factors too. Factors with one level or
    without replication are left out, and so are those of which the design says too little, whatever the values: a share
    of one half would have an interval wider than `_MAX_WIDTH`. Where other factors determine one, as machines do their
    GPU, shares are those at equal levels of it. No factor is left if the residual has no degrees of freedom.
    """
    y = np.log(np.asarray(values, dtype=np.float64))
    designs = {name: _indicator_matrix(levels) for name, levels in factors.items() if _is_replicated(levels)}
    intercept = np.ones((len(y), 1))
    (residuals,), rank = _residuals(np.hstack([intercept, *designs.values()]), y)
    residual_dof = len(y) - rank
    residual = float(residuals @ residuals) if residual_dof > 0 else 0.0
    if residual <= 1e-24 * float(y @ y):  # nothing varies but the rounding
        return []
    draws = np.random.default_rng(0)
    # The first entry of each array is the estimate, the others are draws.
    noise = residual / np.append(residual_dof, draws.chisquare(residual_dof, _DRAWS))
    components: dict[str, Array] = {}
    shown, determined = [], []
    for name, design in designs.items():
        others = [other for key, other in designs.items() if key != name]
        (without, *columns), reduced_rank = _residuals(np.hstack([intercept, *others]), np.column_stack([y, design]))
        dof, weight = rank - reduced_rank, float(sum(column @ column for column in columns))
        if dof == 0:
            determined.append(name)
        elif weight > 1e-9:
            mean_square = (float(without @ without) - residual) / np.append(dof, draws.chisquare(dof, _DRAWS))
            components[name] = np.maximum(mean_square - noise, 0.0) * dof / weight
            shown += [name] * (_width_at_half(dof, residual_dof, weight / dof) <= _MAX_WIDTH)
    total = noise + sum(components.values())
    shares = []
    for name in shown:
        share = components[name] / total
        low, high = (float(bound) for bound in np.quantile(share[1:], ((1 - LEVEL) / 2, (1 + LEVEL) / 2)))
        interval = Interval(float(share[0]), low, high, len(set(factors[name])))
        shares.append(VarianceShare(name, interval, tuple(determined)))
    return shares


def _width_at_half(dof: int, residual_dof: int, runs_per_level: float) -> float:
    """Return the width of the interval of a share of one half, by Wald's (1947) F ratio of factor and residual."""
    bounds = (float(fdtri(dof, residual_dof, tail)) for tail in ((1 + LEVEL) / 2, (1 - LEVEL) / 2))
    low, high = (max(0.0, (1 + runs_per_level) / bound - 1) / runs_per_level for bound in bounds)
    return high / (1 + high) - low / (1 + low)


def epoch_share(epochs: Sample, pace: Sample) -> Interval:
    """Return the share of the epochs in the spread of the times: var(log epochs) / (var(log epochs) + var(log pace)).

    Each run has one value in both samples. The interval is Pitman's (1939) for the ratio of two correlated variances.
    `UNKNOWN` for fewer than four runs, or if all took the same epochs.
    """
    n = len(epochs.values)
    if n < _MIN_RUNS or n != len(pace.values):
        return UNKNOWN
    variances = [float(sample.logs.var(ddof=1)) for sample in (epochs, pace)]
    if not variances[0]:
        return UNKNOWN  # the grid of evaluations hides how the epochs vary
    if not variances[1]:
        return Interval(1.0, math.nan, math.nan, n)
    ratio, r = variances[0] / variances[1], float(np.corrcoef(epochs.logs, pace.logs)[0, 1])
    k = 1 + 2 * (1 - r * r) * float(stdtrit(n - 2, (1 + LEVEL) / 2)) ** 2 / (n - 2)
    factor = k + math.sqrt(k * k - 1)
    share, low, high = (value / (1 + value) for value in (ratio, ratio / factor, ratio * factor))
    return Interval(share, low, high, n)


def _is_replicated(levels: Sequence[Hashable]) -> bool:
    """Return True for at least two levels, some of which have several values."""
    return 1 < len(set(levels)) < len(levels)


def _indicator_matrix(levels: Sequence[Hashable]) -> Array:
    """Return the indicator columns (values, levels) of a factor."""
    names = list(dict.fromkeys(levels))
    return np.array([[float(level == name) for name in names] for level in levels])


def _residuals(design: Array, values: Array) -> tuple[Array, int]:
    """Return the residuals of each column of `values` (runs,) or (runs, columns) on `design`, and its rank."""
    solution, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    return np.atleast_2d((values - design @ solution).T), int(rank)

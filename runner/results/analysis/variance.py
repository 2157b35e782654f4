"""Variance components: how much of the spread of a time comes from the seed, the machine, the number of GPUs."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import fdtri, stdtrit

from .intervals import LEVEL, UNKNOWN, Array, Interval, Sample

_MIN_RUNS = 4  # for a share of the epochs


@dataclass(frozen=True)
class VarianceShare:
    """The share of a factor in the variance of the log values, with its 95% interval."""

    factor: str
    share: Interval


def variance_shares(values: Sequence[float], factors: Mapping[str, Sequence[Hashable]]) -> list[VarianceShare]:
    """Return the share of each crossed random factor in the variance of log(values); data may be unbalanced.

    The components are Henderson's method III (Searle, Casella, McCulloch 1992): the sum of squares of a factor,
    adjusted for all others, is equated with its expectation. Intervals are Wald's (1947), by the F ratio of factor and
    residual; the other components are taken as estimated. Factors with one level, without replication, or that other
    factors determine are left out; no factor is left if the residual has no degrees of freedom.
    """
    y = np.log(np.asarray(values, dtype=np.float64))
    designs = {name: _indicator_matrix(levels) for name, levels in factors.items() if _is_replicated(levels)}
    intercept = np.ones((len(y), 1))
    full, rank = _residual_maker(np.hstack([intercept, *designs.values()]))
    residual_dof = len(y) - rank
    residual = float(y @ full @ y) / residual_dof if residual_dof > 0 else 0.0
    if residual <= 0:
        return []
    ratios: dict[str, Interval] = {}  # of the component of a factor over that of the residual
    for name, design in designs.items():
        others = [other for key, other in designs.items() if key != name]
        reduced, reduced_rank = _residual_maker(np.hstack([intercept, *others]))
        dof, weight = rank - reduced_rank, float(np.trace(design.T @ reduced @ design))
        if dof > 0 and weight > 1e-9:
            f_ratio = float(y @ (reduced - full) @ y) / dof / residual
            bounds = (float(fdtri(dof, residual_dof, tail)) for tail in (0.975, 0.025))
            low, high = (max(0.0, f_ratio / bound - 1) * dof / weight for bound in bounds)
            ratios[name] = Interval(max(0.0, f_ratio - 1) * dof / weight, low, high, dof + 1)
    total = 1 + sum(ratio.estimate for ratio in ratios.values())
    return [VarianceShare(name, _shares(ratio, total - ratio.estimate)) for name, ratio in ratios.items()]


def epoch_share(epochs: Sample, pace: Sample) -> Interval:
    """Return the share of the epochs in the spread of the times: var(log epochs) / (var(log epochs) + var(log pace)).

    Each run has one value in both samples. The interval is Pitman's (1939) for the ratio of two correlated variances.
    `UNKNOWN` for fewer than four runs, or if nothing varies.
    """
    n = len(epochs.values)
    if n < _MIN_RUNS or n != len(pace.values):
        return UNKNOWN
    variances = [float(sample.logs.var(ddof=1)) for sample in (epochs, pace)]
    if not all(variances):
        return Interval(variances[0] / sum(variances), math.nan, math.nan, n) if any(variances) else UNKNOWN
    ratio, r = variances[0] / variances[1], float(np.corrcoef(epochs.logs, pace.logs)[0, 1])
    k = 1 + 2 * (1 - r * r) * float(stdtrit(n - 2, (1 + LEVEL) / 2)) ** 2 / (n - 2)
    factor = k + math.sqrt(k * k - 1)
    return _shares(Interval(ratio, ratio / factor, ratio * factor, n), 1.0)


def _shares(ratio: Interval, rest: float) -> Interval:
    """Return the shares of a component in the total, from its ratio to the residual."""
    return Interval(_share(ratio.estimate, rest), _share(ratio.low, rest), _share(ratio.high, rest), ratio.n)


def _share(part: float, rest: float) -> float:
    return part / (part + rest) if math.isfinite(part) else 1.0


def _is_replicated(levels: Sequence[Hashable]) -> bool:
    """Return True for at least two levels, some of which have several values."""
    return 1 < len(set(levels)) < len(levels)


def _indicator_matrix(levels: Sequence[Hashable]) -> Array:
    """Return the indicator columns (values, levels) of a factor."""
    names = list(dict.fromkeys(levels))
    return np.array([[float(level == name) for name in names] for level in levels])


def _residual_maker(design: Array) -> tuple[Array, int]:
    """Return the matrix that projects a vector onto the residuals of `design`, and the rank of `design`."""
    rank = int(np.linalg.matrix_rank(design))
    return np.eye(len(design)) - design @ np.linalg.pinv(design), rank

"""Statistics of small and skewed samples: scores, confidence intervals, censored runs, sample sizes."""

import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import scipy  # `scipy.stats` is imported on first use, so that it does not delay a run
from numpy.typing import NDArray

Array = NDArray[np.float64]
_RESAMPLES = 4999
_MAX_EXACT_PERMUTATIONS = 20_000


@dataclass(frozen=True)
class Interval:
    """An estimate from `n` values with its interval; `low` and `high` are NaN where n is too small for one."""

    estimate: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class SurvivalCurve:
    """Fraction `reached` of the runs that are at their target by `times`, with its 95% band; one entry per time.

    `low` and `high` are NaN where no run or every run has reached the target. `median` is None if less than half have.
    """

    times: Array
    reached: Array
    low: Array
    high: Array
    median: float | None


@dataclass(frozen=True)
class LinearFit:
    """Fit of y = slope * x with R² about zero (uncentered) and about the mean (centered); NaN for constant y."""

    slope: float
    r2_uncentered: float
    r2_centered: float
    residuals: Array
    x: Array

    @property
    def n(self) -> int:
        """Number of points."""
        return len(self.x)

    def predict(self, x: float, level: float = 0.95) -> Interval:
        """Return the prediction interval of a new observation at `x`.

        Student's t with n - 1 degrees of freedom (Draper and Smith, regression through the origin).
        """
        estimate = self.slope * x
        if self.n < 2:
            return Interval(estimate, math.nan, math.nan, self.n)
        variance = float(self.residuals @ self.residuals) / (self.n - 1)
        half_width = scipy.stats.t.ppf((1 + level) / 2, self.n - 1) * math.sqrt(
            variance * (1 + x * x / float(self.x @ self.x))
        )
        return Interval(estimate, estimate - half_width, estimate + half_width, self.n)


def olympic_mean(values: Sequence[float], failed: int = 0) -> float | None:
    """Return MLPerf's score: the mean without the fastest and the slowest run; one failed run counts as the slowest.

    None with two or more failed runs, or with fewer than three runs.
    """
    if failed > 1 or len(values) + failed < 3:
        return None
    ordered = sorted(values)
    return float(np.mean(ordered[1:] if failed else ordered[1:-1]))


def first_converged(
    seconds: Sequence[float], converged: Sequence[bool], starts: Sequence[float | None], count: int = 50
) -> list[int]:
    """Return the indices of the first `count` converged runs by start time: MLPerf v0.5's rule for NCF's 100 runs.

    Runs with equal start times keep their order; those with unknown ones (None, NaN) come last, in their order.
    """
    times = [math.inf if start is None or math.isnan(start) else start for start in starts]
    order = sorted(range(len(seconds)), key=times.__getitem__)
    return [index for index in order if converged[index]][:count]


def confidence_interval(
    values: Sequence[float], statistic: Callable[..., object] = np.mean, level: float = 0.95, seed: int = 0
) -> Interval:
    """Return the confidence interval of a statistic: BCa bootstrap (Efron 1987), percentiles where BCa is undefined.

    The mean of two to four values gets a t interval on the log scale (on the linear scale if a value is not positive),
    because the bootstrap interval of so few values is too narrow. Equal values give an interval of zero width.
    """
    data = np.asarray(values, dtype=np.float64)
    n = len(data)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    estimate = float(statistic(data))  # type: ignore[arg-type]
    if n == 1:
        return Interval(estimate, math.nan, math.nan, 1)
    if _is_constant(data):
        return Interval(estimate, estimate, estimate, n)
    if n < 5 and statistic is np.mean:
        return _t_interval(data, estimate, level)
    return Interval(estimate, *_bootstrap((data,), statistic, level, seed), n)


def ratio_of_means(
    numerator: Sequence[float], denominator: Sequence[float], level: float = 0.95, seed: int = 0
) -> Interval:
    """Return the ratio of the means of two independent samples of positive values; `n` is that of the smaller one.

    BCa bootstrap of both samples; Welch's t interval on the log scale if a sample has fewer than five values, because
    the BCa interval of three values contains the true ratio in 81% of simulated lognormal samples instead of 95%.
    The bounds are NaN if a sample has a single value.
    """
    above, below = (np.asarray(values, dtype=np.float64) for values in (numerator, denominator))
    n = min(len(above), len(below))
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    estimate = float(above.mean() / below.mean())
    if n == 1:
        return Interval(estimate, math.nan, math.nan, 1)
    if _is_constant(above) and _is_constant(below):
        return Interval(estimate, estimate, estimate, n)
    if n < 5:
        return _welch_interval(above, below, estimate, level)

    def ratio(first: Array, second: Array, axis: int = -1) -> Array:
        return np.asarray(first.mean(axis=axis) / second.mean(axis=axis))

    return Interval(estimate, *_bootstrap((above, below), ratio, level, seed), n)


def permutation_p_value(first: Sequence[float], second: Sequence[float], seed: int = 0) -> float:
    """Return p of the two-sided permutation test of the difference of means.

    Exact up to 20,000 permutations, else from 9999 random ones. NaN if a sample is empty or both have one value.
    """
    n = len(first)
    pooled = np.concatenate([np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)])
    if n == 0 or n == len(pooled) or len(pooled) == 2:
        return math.nan
    total, rest = pooled.sum(), len(pooled) - n

    def difference(sums: Array) -> Array:
        return np.abs(sums / n - (total - sums) / rest)

    observed = float(difference(np.asarray(pooled[:n].sum())))
    threshold = observed - 1e-12 * float(np.abs(pooled).max())  # sums in another order differ in their last digits
    if math.comb(len(pooled), n) <= _MAX_EXACT_PERMUTATIONS:
        sums = np.array([pooled[list(chosen)].sum() for chosen in combinations(range(len(pooled)), n)])
        return float((difference(sums) >= threshold).mean())
    generator = np.random.default_rng(seed)
    sums = generator.permuted(np.tile(pooled, (9999, 1)), axis=1)[:, :n].sum(axis=1)
    return float(((difference(sums) >= threshold).sum() + 1) / 10_000)


def kaplan_meier(times: Sequence[float], converged: Sequence[bool]) -> SurvivalCurve:
    """Return the fraction of runs that reached the target by a time (Kaplan and Meier 1958).

    Runs that did not converge are censored at their time. The 95% band is Greenwood's on the log-log scale. `times`
    may be in any unit.
    """
    if not len(times):
        empty = np.empty(0)
        return SurvivalCurve(empty, empty, empty, empty, None)
    uncensored = [time for time, flag in zip(times, converged, strict=True) if flag]
    censored = [time for time, flag in zip(times, converged, strict=True) if not flag]
    curve = scipy.stats.ecdf(scipy.stats.CensoredData(uncensored=uncensored, right=censored))
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where the band is NaN
        band = curve.cdf.confidence_interval(method="log-log")
    quantiles, reached = np.asarray(curve.cdf.quantiles, dtype=np.float64), np.asarray(curve.cdf.probabilities)
    low, high = (np.asarray(side.probabilities) for side in (band.low, band.high))
    after_median = quantiles[reached >= 0.5 - 1e-12]
    return SurvivalCurve(quantiles, reached, low, high, float(after_median[0]) if after_median.size else None)


def runs_needed(values: Sequence[float], difference: float, power: float = 0.8, alpha: float = 0.05) -> int | None:
    """Return the runs per group at which a two-sided t test on the log scale detects `difference` with `power`.

    The standard deviation is that of log(values), the distribution the noncentral t (Cohen 1988); at least 2 runs.
    `difference` is relative (0.05 is 5%, above -1). None for fewer than two values or a difference of 0.
    """
    if len(values) < 2 or difference == 0:
        return None
    deviation = float(np.log(np.asarray(values, dtype=np.float64)).std(ddof=1))
    if deviation < 1e-12:
        return 2
    effect_size = math.log1p(difference) / deviation

    def power_of(n: int) -> float:
        # A squared noncentral t is a noncentral F; scipy's noncentral t is NaN in its far tail.
        dof, noncentrality = 2 * n - 2, effect_size * math.sqrt(n / 2)
        critical = scipy.stats.f.ppf(1 - alpha, 1, dof)
        return float(scipy.stats.ncf.sf(critical, 1, dof, noncentrality * noncentrality))

    low, high = 1, 2
    while power_of(high) < power:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(middle) >= power else (middle, high)
    return high


def coefficient_of_variation(values: Sequence[float]) -> float:
    """Return the sample standard deviation over the mean; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    return float(np.std(values, ddof=1) / np.mean(values))


def variance_components(values: Sequence[float], factors: Mapping[str, Sequence[Hashable]]) -> dict[str, float]:
    """Return the variance of log(values) by crossed random factor, and the "residual"; data may be unbalanced.

    Henderson's method III (Searle, Casella, McCulloch 1992) equates the sum of squares of each factor, adjusted for
    all others, with its expectation. Negative estimates and factors with one level give 0. NaN marks what the data
    cannot identify: a factor that others determine, a residual without degrees of freedom.
    """
    y = np.log(np.asarray(values, dtype=np.float64))
    designs = {name: _indicator_matrix(levels) for name, levels in factors.items()}
    designs = {name: design for name, design in designs.items() if design.shape[1] > 1}
    intercept = np.ones((len(y), 1))
    full, rank = _residual_maker(np.hstack([intercept, *designs.values()]))
    dof = len(y) - rank
    residual = float(y @ full @ y) / dof if dof > 0 else math.nan
    components = dict.fromkeys(factors, 0.0)
    for name, design in designs.items():
        others = [other for key, other in designs.items() if key != name]
        reduced, reduced_rank = _residual_maker(np.hstack([intercept, *others]))
        sum_of_squares = float(y @ (reduced - full) @ y)
        weight = float(np.trace(design.T @ reduced @ design))
        variance = (sum_of_squares - (rank - reduced_rank) * residual) / weight if weight > 1e-9 else math.nan
        components[name] = float(np.maximum(0.0, variance))  # unlike max(), it keeps NaN
    return components | {"residual": residual}


def median_window(values: Sequence[float], failed: Sequence[bool], n: int) -> tuple[int, float] | None:
    """Return start and score of the n consecutive runs whose score is the median over all windows (MLPerf v1.1).

    Of an even number of windows the slower middle one counts, so that nobody gains; windows without a score are the
    slowest. None if the median window has no score.
    """
    scores = []
    for start in range(len(values) - n + 1):
        window = range(start, start + n)
        successful = [values[index] for index in window if not failed[index]]
        score = olympic_mean(successful, n - len(successful))
        scores.append((math.inf if score is None else score, start))
    if not scores:
        return None
    score, start = sorted(scores)[len(scores) // 2]
    return (start, score) if math.isfinite(score) else None


def fit_through_origin(x: Sequence[float] | Array, y: Sequence[float] | Array) -> LinearFit:
    """Return the least-squares fit of y = slope * x, with R² after Kvålseth (1985); ValueError if every x is 0."""
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if not xs.any():
        raise ValueError("A line through the origin needs a point with x other than 0.")
    slope = float(xs @ ys / (xs @ xs))
    residuals = ys - slope * xs
    squared_error, centered = float(residuals @ residuals), ys - ys.mean()

    def r2(total: float) -> float:
        return 1 - squared_error / total if total else math.nan

    return LinearFit(slope, r2(float(ys @ ys)), r2(float(centered @ centered)), residuals, xs)


def _is_constant(data: Array) -> bool:
    """Return True if all values are equal up to rounding."""
    return bool(np.ptp(data) <= 1e-12 * np.abs(data).max())


def _bootstrap(
    samples: tuple[Array, ...], statistic: Callable[..., object], level: float, seed: int
) -> tuple[float, float]:
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.stats.DegenerateDataWarning)  # percentiles are used then
        result = scipy.stats.bootstrap(
            samples, statistic, confidence_level=level, n_resamples=_RESAMPLES, rng=np.random.default_rng(seed)
        )
    low, high = result.confidence_interval
    if not (math.isfinite(low) and math.isfinite(high)):
        low, high = np.quantile(result.bootstrap_distribution, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _t_interval(data: Array, estimate: float, level: float) -> Interval:
    critical = scipy.stats.t.ppf((1 + level) / 2, len(data) - 1)
    if (data <= 0).any():
        half_width = float(critical * scipy.stats.sem(data))
        return Interval(estimate, estimate - half_width, estimate + half_width, len(data))
    half_width = float(critical * scipy.stats.sem(np.log(data)))
    return Interval(estimate, estimate * math.exp(-half_width), estimate * math.exp(half_width), len(data))


def _welch_interval(above: Array, below: Array, estimate: float, level: float) -> Interval:
    samples = (above, below)
    errors = [float(np.log(data).var(ddof=1)) / len(data) for data in samples]
    dof = sum(errors) ** 2 / sum(error**2 / (len(data) - 1) for error, data in zip(errors, samples, strict=True))
    half_width = float(scipy.stats.t.ppf((1 + level) / 2, dof)) * math.sqrt(sum(errors))
    n = min(len(above), len(below))
    return Interval(estimate, estimate * math.exp(-half_width), estimate * math.exp(half_width), n)


def _indicator_matrix(levels: Sequence[Hashable]) -> Array:
    """Return the indicator columns (runs, levels) of a factor."""
    names = list(dict.fromkeys(levels))
    return np.array([[float(level == name) for name in names] for level in levels])


def _residual_maker(design: Array) -> tuple[Array, int]:
    """Return the matrix that projects a vector onto the residuals of `design`, and the rank of `design`."""
    rank = int(np.linalg.matrix_rank(design))
    return np.eye(len(design)) - design @ np.linalg.pinv(design), rank

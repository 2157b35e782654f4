"""Statistics of few and skewed numbers: scores, intervals, censored sets, and how many runs a question needs."""

import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import scipy  # `scipy.stats` loads when it is first used: no run waits for it
from numpy.typing import NDArray

Array = NDArray[np.float64]
_RESAMPLES = 4999
_EXACT = 20_000  # arrangements up to which a permutation test counts them all


@dataclass(frozen=True)
class Interval:
    """An estimate from `n` values; `low` and `high` are NaN where n is too small to say."""

    estimate: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Survival:
    """BatchSharding `reached` of runs at their target by `times` (each of length distinct times), with its 95% band.

    `low` and `high` are NaN where all or none have arrived: no band exists there. `median` is None below one half.
    """

    times: Array
    reached: Array
    low: Array
    high: Array
    median: float | None


@dataclass(frozen=True)
class Line:
    """y = slope * x. R2 is given against zero (uncentred) and against the mean (centred); NaN where y does not vary."""

    slope: float
    r2_uncentred: float
    r2_centred: float
    residuals: Array
    x: Array

    @property
    def n(self) -> int:
        """Points."""
        return len(self.x)

    def predict(self, x: float, level: float = 0.95) -> Interval:
        """Where a new observation at `x` lies (Draper and Smith, regression through the origin, t with n - 1)."""
        estimate = self.slope * x
        if self.n < 2:
            return Interval(estimate, math.nan, math.nan, self.n)
        variance = float(self.residuals @ self.residuals) / (self.n - 1)
        half = scipy.stats.t.ppf((1 + level) / 2, self.n - 1) * math.sqrt(
            variance * (1 + x * x / float(self.x @ self.x))
        )
        return Interval(estimate, estimate - half, estimate + half, self.n)


def olympic_mean(values: Sequence[float], failed: int = 0) -> float | None:
    """MLPerf's score: the mean without the fastest and the slowest; one failed run is the slowest (training rules).

    None with two failed runs or fewer than three runs in all.
    """
    if failed > 1 or len(values) + failed < 3:
        return None
    ordered = sorted(values)
    return float(np.mean(ordered[1:] if failed else ordered[1:-1]))


def first_converged(
    seconds: Sequence[float], converged: Sequence[bool], starts: Sequence[float | None], wanted: int = 50
) -> list[int]:
    """Places of the first `wanted` runs by start that converge: the rule of MLPerf v0.5 for NCF's 100 runs.

    Equal starts keep the order given; unknown ones (None, NaN) come last, in the order given.
    """
    begun = [math.inf if start is None or math.isnan(start) else start for start in starts]
    order = sorted(range(len(seconds)), key=begun.__getitem__)
    return [place for place in order if converged[place]][:wanted]


def interval(
    values: Sequence[float], statistic: Callable[..., object] = np.mean, level: float = 0.95, seed: int = 0
) -> Interval:
    """BCa bootstrap interval (Efron 1987), by percentiles where BCa does not exist; equal values have no width.

    For the mean of two to four values a t interval on the log scale (plain where one is not positive): a bootstrap of
    so few cannot reach far enough.
    """
    data = np.asarray(values, dtype=np.float64)
    n = len(data)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    estimate = float(statistic(data))  # type: ignore[arg-type]
    if n == 1:
        return Interval(estimate, math.nan, math.nan, 1)
    if _equal(data):
        return Interval(estimate, estimate, estimate, n)
    if n < 5 and statistic is np.mean:
        return _t_interval(data, estimate, level)
    return Interval(estimate, *_bootstrap((data,), statistic, level, seed), n)


def ratio(above: Sequence[float], below: Sequence[float], level: float = 0.95, seed: int = 0) -> Interval:
    """Ratio of the means of two independent samples of positive values; `n` is the smaller one's.

    BCa bootstrap of both; Welch's t on the log scale where one has fewer than five values, since of three values BCa
    holds the truth 81 times of 100 and not 95 (simulated, lognormal). NaN bounds where one is a single value.
    """
    one, other = (np.asarray(values, dtype=np.float64) for values in (above, below))
    n = min(len(one), len(other))
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    estimate = float(one.mean() / other.mean())
    if n == 1:
        return Interval(estimate, math.nan, math.nan, 1)
    if _equal(one) and _equal(other):
        return Interval(estimate, estimate, estimate, n)
    if n < 5:
        return _welch(one, other, estimate, level)

    def of_means(first: Array, second: Array, axis: int = -1) -> Array:
        return np.asarray(first.mean(axis=axis) / second.mean(axis=axis))

    return Interval(estimate, *_bootstrap((one, other), of_means, level, seed), n)


def permutation_p(one: Sequence[float], other: Sequence[float], seed: int = 0) -> float:
    """Two-sided permutation test of the difference of means: exact up to 20,000 arrangements, else 9999 random ones.

    NaN where a side is empty or both have one value.
    """
    n, both = len(one), np.concatenate([np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)])
    if n == 0 or n == len(both) or len(both) == 2:
        return math.nan
    total, rest = both.sum(), len(both) - n

    def difference(sums: Array) -> Array:
        return np.abs(sums / n - (total - sums) / rest)

    seen = float(difference(np.asarray(both[:n].sum())))
    within = seen - 1e-12 * float(np.abs(both).max())  # sums in another order differ in their last digits
    if math.comb(len(both), n) <= _EXACT:
        sums = np.array([both[list(chosen)].sum() for chosen in combinations(range(len(both)), n)])
        return float((difference(sums) >= within).mean())
    generator = np.random.default_rng(seed)
    draws = generator.permuted(np.tile(both, (9999, 1)), axis=1)[:, :n].sum(axis=1)
    return float(((difference(draws) >= within).sum() + 1) / 10_000)


def survival(seconds: Sequence[float], converged: Sequence[bool]) -> Survival:
    """BatchSharding that has reached the target by a time: Kaplan and Meier (1958), others censored at their `seconds`.

    The 95% band is Greenwood's on the log-log scale. Any unit of time will do.
    """
    if not len(seconds):
        empty = np.empty(0)
        return Survival(empty, empty, empty, empty, None)
    hit = [time for time, flag in zip(seconds, converged, strict=True) if flag]
    missed = [time for time, flag in zip(seconds, converged, strict=True) if not flag]
    curve = scipy.stats.ecdf(scipy.stats.CensoredData(uncensored=hit, right=missed))
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the docstring of Survival says it
        band = curve.cdf.confidence_interval(method="log-log")
    times, share = np.asarray(curve.cdf.quantiles, dtype=np.float64), np.asarray(curve.cdf.probabilities)
    low, high = (np.asarray(side.probabilities) for side in (band.low, band.high))
    half = times[share >= 0.5 - 1e-12]
    return Survival(times, share, low, high, float(half[0]) if half.size else None)


def runs_needed(values: Sequence[float], difference: float, power: float = 0.8, alpha: float = 0.05) -> int | None:
    """Runs a side until a two-sided t test on the log scale finds a relative `difference` with `power`.

    From the spread of log(values) and the noncentral t (Cohen 1988), at least 2. `difference` is relative (0.05 is 5%,
    above -1). None for fewer than two values, or for no difference: no number of runs finds that.
    """
    if len(values) < 2 or difference == 0:
        return None
    deviation = float(np.log(np.asarray(values, dtype=np.float64)).std(ddof=1))
    if deviation < 1e-12:
        return 2
    effect = math.log1p(difference) / deviation

    def power_of(n: int) -> float:
        # A squared noncentral t is a noncentral F; scipy's own noncentral t gives NaN in its far tail.
        freedom, shift = 2 * n - 2, effect * math.sqrt(n / 2)
        return float(scipy.stats.ncf.sf(scipy.stats.f.ppf(1 - alpha, 1, freedom), 1, freedom, shift * shift))

    low, high = 1, 2
    while power_of(high) < power:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(middle) >= power else (middle, high)
    return high


def spread(values: Sequence[float]) -> float:
    """Coefficient of variation: sample deviation over mean; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    return float(np.std(values, ddof=1) / np.mean(values))


def variance_components(values: Sequence[float], factors: Mapping[str, Sequence[Hashable]]) -> dict[str, float]:
    """Variance of log(values) due to each crossed random factor, and the "residual"; data may be unbalanced.

    Henderson's method III (Searle, Casella, McCulloch, 1992): sums of squares of each factor after all others, set
    equal to their expectations; negative estimates are 0. Factors of one level give 0; NaN is what the data cannot
    tell: a factor that others determine, a residual without degrees of freedom.
    """
    y = np.log(np.asarray(values, dtype=np.float64))
    designs = {name: _design(levels) for name, levels in factors.items()}
    used = {name: design for name, design in designs.items() if design.shape[1] > 1}
    ones = np.ones((len(y), 1))
    full, rank = _residual_maker(np.hstack([ones, *used.values()]))
    freedom = len(y) - rank
    residual = float(y @ full @ y) / freedom if freedom > 0 else math.nan
    found = dict.fromkeys(factors, 0.0)
    for name, design in used.items():
        others = [other for key, other in used.items() if key != name]
        without, rank_without = _residual_maker(np.hstack([ones, *others]))
        gain = float(y @ (without - full) @ y)
        weight = float(np.trace(design.T @ without @ design))
        estimate = (gain - (rank - rank_without) * residual) / weight if weight > 1e-9 else math.nan
        found[name] = float(np.maximum(0.0, estimate))  # unlike max(), it keeps a NaN
    return found | {"residual": residual}


def consecutive_median(values: Sequence[float], failed: Sequence[bool], n: int) -> tuple[int, float] | None:
    """MLPerf v1.1's rule for more than n runs: the n consecutive ones whose score is the median over all windows.

    Of an even number of windows the slower middle one, so that nobody gains; windows without a score are the slowest.
    Returns the first run's place and the score; None where the median window has none.
    """
    scores = []
    for start in range(len(values) - n + 1):
        window = range(start, start + n)
        good = [values[place] for place in window if not failed[place]]
        score = olympic_mean(good, n - len(good))
        scores.append((math.inf if score is None else score, start))
    if not scores:
        return None
    score, start = sorted(scores)[len(scores) // 2]
    return (start, score) if math.isfinite(score) else None


def through_origin(x: Sequence[float] | Array, y: Sequence[float] | Array) -> Line:
    """Least squares of y = slope * x; R2 after Kvalseth (1985). ValueError where no x is other than 0."""
    across, up = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if not across.any():
        raise ValueError("A line through the origin needs a point with x other than 0.")
    slope = float(across @ up / (across @ across))
    residuals = up - slope * across
    error, centred = float(residuals @ residuals), up - up.mean()

    def r2(total: float) -> float:
        return 1 - error / total if total else math.nan

    return Line(slope, r2(float(up @ up)), r2(float(centred @ centred)), residuals, across)


def _equal(data: Array) -> bool:
    """All one number but for rounding."""
    return bool(np.ptp(data) <= 1e-12 * np.abs(data).max())


def _bootstrap(
    samples: tuple[Array, ...], statistic: Callable[..., object], level: float, seed: int
) -> tuple[float, float]:
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.stats.DegenerateDataWarning)  # the percentiles below stand in
        found = scipy.stats.bootstrap(
            samples, statistic, confidence_level=level, n_resamples=_RESAMPLES, rng=np.random.default_rng(seed)
        )
    low, high = found.confidence_interval
    if not (math.isfinite(low) and math.isfinite(high)):
        low, high = np.quantile(found.bootstrap_distribution, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _t_interval(data: Array, estimate: float, level: float) -> Interval:
    if (data <= 0).any():
        half = float(scipy.stats.t.ppf((1 + level) / 2, len(data) - 1) * scipy.stats.sem(data))
        return Interval(estimate, estimate - half, estimate + half, len(data))
    half = float(scipy.stats.t.ppf((1 + level) / 2, len(data) - 1) * scipy.stats.sem(np.log(data)))
    return Interval(estimate, estimate * math.exp(-half), estimate * math.exp(half), len(data))


def _welch(one: Array, other: Array, estimate: float, level: float) -> Interval:
    errors = [float(np.log(data).var(ddof=1)) / len(data) for data in (one, other)]
    freedom = sum(errors) ** 2 / sum(
        error**2 / (len(data) - 1) for error, data in zip(errors, (one, other), strict=True)
    )
    half = float(scipy.stats.t.ppf((1 + level) / 2, freedom)) * math.sqrt(sum(errors))
    return Interval(estimate, estimate * math.exp(-half), estimate * math.exp(half), min(len(one), len(other)))


def _design(levels: Sequence[Hashable]) -> Array:
    """Indicator columns (runs, levels) of a factor."""
    names = list(dict.fromkeys(levels))
    return np.array([[float(level == name) for name in names] for level in levels])


def _residual_maker(design: Array) -> tuple[Array, int]:
    """The matrix that takes from a vector what `design` explains, and the rank of the design."""
    rank = int(np.linalg.matrix_rank(design))
    return np.eye(len(design)) - design @ np.linalg.pinv(design), rank

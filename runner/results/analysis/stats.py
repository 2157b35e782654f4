"""MLPerf's scores with their intervals, and the time by which runs reach their target."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # `scipy.stats` is imported on first use, so that it does not delay a command

from .intervals import Array, Interval, LogEstimate, Sample


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


def olympic_interval(values: Sequence[float], independent: Sample, failed: int = 0) -> Interval | None:
    """Return MLPerf's score of the times of converged runs with its interval; None where there is no score.

    `independent` has one value for the repeats of a seed, in any unit: the interval is Student's t on its logs with the
    standard error of their mean, which that of so lightly trimmed a mean hardly exceeds (docs/calibration.md). A failed
    run has no time and does not enter the error.
    """
    score, n = olympic_mean(values, failed), len(independent.values)
    return LogEstimate(math.log(score), independent.error, n - 1, n).interval() if score else None


def kaplan_meier(times: Sequence[float], converged: Sequence[bool]) -> SurvivalCurve:
    """Return the fraction of runs that reached the target by a time (Kaplan and Meier 1958).

    Runs that did not converge are censored at their time. The 95% band is Greenwood's on the log-log scale. `times`
    may be in any unit. Where the curve is level at one half the median is the middle of that step.
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
    return SurvivalCurve(quantiles, reached, low, high, _median(quantiles, reached))


def _median(times: Array, reached: Array) -> float | None:
    after = np.flatnonzero(reached >= 0.5 - 1e-12)
    if not after.size:
        return None
    first = int(after[0])
    later = np.flatnonzero(reached > reached[first])
    is_level = abs(reached[first] - 0.5) < 1e-12 and later.size
    return float(times[first] + times[later[0]]) / 2 if is_level else float(times[first])


def coefficient_of_variation(values: Sequence[float]) -> float:
    """Return the sample standard deviation over the mean; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    return float(np.std(values, ddof=1) / np.mean(values))


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

"""What other causes than the compared settings can have added to a ratio of times: disturbed runs, and drift."""

import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ...record import validity
from ..parse.runs import Run
from . import samples
from .intervals import LEVEL, Interval, Ratio
from .verdicts import Levels, decide

CAUSES = (validity.BUSY_HOST, validity.THROTTLED, validity.LOADER_BOUND)
"""Flags of disturbed runs."""


@dataclass(frozen=True)
class Distortion:
    """A cause, and how far the log of a ratio without it can lie below (`down`) and above (`up`) the measured one."""

    cause: str
    down: float
    up: float


@dataclass(frozen=True)
class DistortedRatio:
    """A ratio whose intervals allow for a distortion: what it shows holds in spite of it."""

    ratio: Ratio
    distortion: Distortion

    @property
    def n(self) -> int:
        """Independent runs on the side that has fewer."""
        return self.ratio.n

    @property
    def p_value(self) -> float:
        """That of the measured ratio."""
        return self.ratio.p_value

    def equivalence_p_value(self, margin: float) -> float:
        """Return that of the measured ratio."""
        return self.ratio.equivalence_p_value(margin)

    def interval(self, level: float = LEVEL) -> Interval:
        """Return the interval with the distortion added on both sides."""
        inner = self.ratio.interval(level)
        low, high = inner.low * math.exp(-self.distortion.down), inner.high * math.exp(self.distortion.up)
        return Interval(inner.estimate, low, high, inner.n)


def find_overturning(
    ratio: Ratio, distortions: Iterable[Distortion | None], margin: float, levels: Levels
) -> Distortion | None:
    """Return the first distortion in spite of which the verdict on a ratio does not hold; None if it always does."""
    verdict = decide(ratio, margin, levels)
    return next(
        (each for each in distortions if each and decide(DistortedRatio(ratio, each), margin, levels) is not verdict),
        None,
    )


def find_disturbance(baseline: Sequence[Run], other: Sequence[Run]) -> Distortion | None:
    """Return what busy hosts, throttling and waiting for batches can have added to the ratio baseline over other."""
    flags = [flag for run in (*baseline, *other) for flag in run.flags]
    return disturbance(flags, _lost_log(baseline), _lost_log(other), CAUSES)


def disturbance(flags: Iterable[str], down: float, up: float, causes: Sequence[str]) -> Distortion | None:
    """Return the distortion by those of `causes` that are among the flags of runs; None if there are none."""
    names = dict.fromkeys(flag for flag in flags if flag in causes)
    return Distortion(f"disturbed runs ({', '.join(names)})", down, up) if names else None


def lost_log(flags: Collection[str], share: float | None, causes: Sequence[str] = CAUSES) -> float:
    """Return by how much the log of a run's time can be too high, of which `share` was disturbed; None: unknown.

    A run would have taken at least its time less that share, so it is at most -log(1 - share).
    """
    if not any(flag in causes for flag in flags):
        return 0.0
    return -math.log1p(-share) if share is not None and share < 1 else math.inf


def _lost_log(runs: Sequence[Run]) -> float:
    """Return the mean over independent runs of what their repeats lost, as a ratio weighs them."""
    means = [statistics.fmean(map(_lost_by_run, repeats)) for repeats in samples.independent_runs(runs)]
    return statistics.fmean(means) if means else 0.0


def _lost_by_run(run: Run) -> float:
    return lost_log(run.flags, run.run_record.disturbed_share if run.run_record is not None else None)

"""What other causes than the compared settings can have added to a ratio of times: disturbed runs, and drift."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ...record import validity
from ..parse.runs import Run
from .intervals import LEVEL, Interval, Ratio

_FLAGS = (validity.BUSY_HOST, validity.THROTTLED, validity.LOADER_BOUND)


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


def find_disturbance(baseline: Sequence[Run], other: Sequence[Run]) -> Distortion | None:
    """Return what busy hosts, throttling and waiting for batches can have added to the ratio baseline over other.

    A run would have taken at least its time less the share that was disturbed, so the log of its time is too high by
    at most -log(1 - share). None if no run was disturbed.
    """
    names = dict.fromkeys(flag for run in (*baseline, *other) for flag in run.flags if flag in _FLAGS)
    if not names:
        return None
    return Distortion(f"disturbed runs ({', '.join(names)})", _lost_log(baseline), _lost_log(other))


def _lost_log(runs: Sequence[Run]) -> float:
    shares = [_disturbed_share(run) for run in runs]
    return statistics.fmean(-math.log1p(-share) if share < 1 else math.inf for share in shares) if shares else 0.0


def _disturbed_share(run: Run) -> float:
    if not any(flag in _FLAGS for flag in run.flags):
        return 0.0
    share = run.run_record.disturbed_share if run.run_record is not None else None
    return 1.0 if share is None else share

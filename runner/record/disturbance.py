"""How much of a run's time other causes than its own work can have taken: what its validity flags are worth."""

import statistics
from collections.abc import Collection

from . import validity
from .run_record import HostLoad
from .telemetry_samples import SamplesByDevice


def disturbed_share(
    flags: Collection[str],
    gpus: SamplesByDevice,
    host_load: HostLoad | None,
    *,
    data_wait_seconds: float,
    active_seconds: float | None,
) -> float:
    """Return the largest share of the time on the clock that the flags allow to be lost, from 0 to 1.

    A throttled run has lost at most the time in which its clocks were lowered, a loader-bound one the time that it
    waited for batches, and one on a busy host the time in which its GPUs were idle. Nothing bounds what a busy host
    costs a run on its processors, whose threads wait for the slowest of them: 1.
    """
    share = 0.0
    if validity.THROTTLED in flags:
        share += validity.throttled_fraction(gpus)
    idle = data_wait_seconds / active_seconds if validity.LOADER_BOUND in flags and active_seconds else 0.0
    if validity.BUSY_HOST in flags and host_load is not None:
        percents = [percent for rows in gpus.values() if (percent := validity.median_utilization(rows)) is not None]
        idle = max(idle, 1 - statistics.mean(percents) / 100 if percents else 1.0)
    return min(share + idle, 1.0)

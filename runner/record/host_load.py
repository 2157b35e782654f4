"""Use of the hosts' processors by the run and by other processes, from the samples of telemetry.csv."""

import itertools
from collections.abc import Iterable, Sequence

from .run_record import HostLoad
from .telemetry_samples import SamplesByDevice, TelemetrySample, counter_increase, spans_on_clock, total_seconds

_COLUMNS = {"usable_processors", "idle_cpu_seconds", "run_cpu_seconds"}
_MIN_SECONDS = 0.2  # counters advance in steps of 10 ms, 5% of this


def measure_host_load(hosts: SamplesByDevice) -> HostLoad | None:
    """Return the load of the host on which other processes used most of the processors; None if none was measured.

    What is left of the time of the usable processors, after that of the run and idle time, was used by other
    processes or taken by the hypervisor. Idle time counts all processors of the affinity: with a tighter CPU limit,
    other processes count only as far as they leave the run less than its limit.
    """
    loads = [load for rows in hosts.values() if (load := _measure(rows)) is not None]
    return max(loads, key=lambda load: load.other_processes, default=None)


def _measure(rows: Sequence[TelemetrySample]) -> HostLoad | None:
    complete = [row for row in rows if row.values.keys() >= _COLUMNS]
    num_before = sum(1 for _ in itertools.takewhile(lambda row: not row.phase, complete))
    on_clock = _shares(spans_on_clock(complete))
    before = _shares(itertools.pairwise(complete[: num_before + 1]))
    if on_clock is None:
        return None
    run, other_processes = on_clock
    return HostLoad(
        processors=complete[0].values["usable_processors"],
        run=run,
        other_processes=other_processes,
        other_processes_before=before and before[1],
    )


def _shares(spans: Iterable[tuple[TelemetrySample, TelemetrySample]]) -> tuple[float, float] | None:
    """Return the shares of the run and of other processes in the processor time of `spans`; None if they are short."""
    spans = list(spans)
    seconds = total_seconds(spans)
    if seconds < _MIN_SECONDS:
        return None
    available = seconds * spans[0][0].values["usable_processors"]
    run, idle = (
        sum(itertools.starmap(counter_increase(counter), spans)) / available
        for counter in ("run_cpu_seconds", "idle_cpu_seconds")
    )
    return min(run, 1.0), min(max(1 - run - idle, 0.0), 1.0)

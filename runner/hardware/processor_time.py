"""Processor time of a run's processes, and of the processors that the run may use."""

import contextlib
import os
from collections.abc import Collection

import psutil

# States of a processor in which it executes no process; some systems count only the first.
_IDLE_STATES = ("idle", "iowait", "irq", "softirq")


class ProcessTree:
    """A process and all its descendants; only processes that have started since the last call are looked up."""

    def __init__(self, root_pid: int) -> None:
        self._root_pid = root_pid
        self._members: dict[int, psutil.Process] = {}
        self._other_pids: set[int] = set()

    def cpu_seconds(self) -> float:
        """Return the processor time of all members so far, and of those that have ended and were waited for."""
        self._find_members(set(psutil.pids()))
        seconds = 0.0
        for member in self._members.values():
            with contextlib.suppress(psutil.Error):
                times = member.cpu_times()
                seconds += times.user + times.system + times.children_user + times.children_system
        return seconds

    def _find_members(self, pids: set[int]) -> None:
        self._members = {pid: member for pid, member in self._members.items() if pid in pids}
        self._other_pids &= pids
        started: dict[int, tuple[int, psutil.Process]] = {}
        for pid in pids - self._other_pids - self._members.keys():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                started[pid] = (process.ppid(), process)
        while children := [
            pid for pid, (parent, _) in started.items() if parent in self._members or pid == self._root_pid
        ]:
            self._members |= {pid: started.pop(pid)[1] for pid in children}
        self._other_pids |= started.keys()


def allowed_processors(pid: int) -> list[int]:
    """Return the numbers of the processors on which a process may run."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(pid))
    return list(range(os.cpu_count() or 1))


def idle_seconds(processors: Collection[int]) -> float | None:
    """Return the time since boot in which the `processors` executed no process; None if the system does not count it.

    Time that a hypervisor took from this machine is not idle.
    """
    times = psutil.cpu_times(percpu=True)
    chosen = [times[number] for number in processors if number < len(times)]
    if len(chosen) < len(processors) or not any(map(sum, chosen)):
        return None
    return sum(getattr(processor, state, 0.0) for processor in chosen for state in _IDLE_STATES)

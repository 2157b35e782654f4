"""The observer that notices when the time of a run is not that of its work: a clock was set, a process suspended."""

import signal
import threading
import time
from dataclasses import replace
from types import FrameType

from ..record.run_dir import RunDir
from ..record.run_record import ClockDeviation
from ..training.clock import now, wall_clock_lead
from ..training.events import Event, RunStarted, RunStopped


class ClockWatch:
    """The observer, on every rank, that compares the wall clock with the monotonic one at every event.

    A machine that is suspended stops the monotonic clock. A process that is suspended (SIGSTOP) receives SIGCONT when
    it continues; the time since its last event in which its main thread did not run was lost at most. Batch systems
    also send SIGCONT to processes that run, which lose nothing.

    `run_dir` is None on ranks other than 0, which write nothing. `lead` is the number of seconds by which the wall
    clock was ahead when the attempt began.
    """

    def __init__(self, run_dir: RunDir | None, lead: float = 0.0) -> None:
        self._run_dir = run_dir
        earlier = run_dir.record().clock if run_dir is not None else None
        self._earlier = earlier or ClockDeviation(0.0, 0.0)
        self._lead, self._lead_at_start = max(lead, self._earlier.lead_seconds, key=abs), 0.0
        self.suspended_seconds = 0.0
        self._is_running = False
        self._last_event, self._last_thread_time = 0.0, 0.0

    def __call__(self, event: Event) -> None:
        """Follow the run."""
        if isinstance(event, RunStarted):
            self._lead_at_start = wall_clock_lead()
            self._is_running = True
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGCONT, self._continued)
        if not self._is_running:
            return
        self._last_event, self._last_thread_time = now(), time.thread_time()
        lead = wall_clock_lead() - self._lead_at_start
        if abs(lead) > abs(self._lead) + 1:  # at once, because the attempt may be killed
            self._lead = lead
            self.write(self.suspended_seconds)
        if isinstance(event, RunStopped):
            self._is_running = False
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGCONT, signal.SIG_DFL)
            self.write(self.suspended_seconds)

    def write(self, suspended_seconds: float) -> None:
        """Write what was noticed to the run record, with the seconds of the rank that was suspended longest."""
        if self._run_dir is not None:
            clock = ClockDeviation(self._lead, self._earlier.suspended_seconds + suspended_seconds)
            self._run_dir.update(lambda record: replace(record, clock=clock))

    def _continued(self, number: int, frame: FrameType | None) -> None:
        if self._is_running:
            time_now, thread_time = now(), time.thread_time()
            self.suspended_seconds += max(time_now - self._last_event - (thread_time - self._last_thread_time), 0.0)
            self._last_event, self._last_thread_time = time_now, thread_time

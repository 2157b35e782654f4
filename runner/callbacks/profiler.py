"""The observer that traces a few training steps with PyTorch's profiler."""

from pathlib import Path

import torch
from torch.profiler import profile

from ..hardware import devices
from ..training.events import Event, RunStarted, RunStopped, StepEnded


class StepProfiler:
    """Trace the steps `first` to `last` of this attempt, counted from 1, into `path`, which Perfetto opens."""

    def __init__(self, path: Path, first: int, last: int, device: torch.device) -> None:
        self._path, self._first, self._last = path, first, last
        self._profiler = profile(activities=devices.profiler_activities(device), record_shapes=True)
        self._steps, self._is_tracing = 0, False

    def __call__(self, event: Event) -> None:
        """Start before the first step and write the trace after the last, or when the run stops."""
        match event:
            case RunStarted():
                self._start_before(1)
            case StepEnded():
                self._steps += 1
                if self._steps == self._last:
                    self._write()
                self._start_before(self._steps + 1)
            case RunStopped():
                self._write()

    def _start_before(self, step: int) -> None:
        if step == self._first:
            self._profiler.start()
            self._is_tracing = True

    def _write(self) -> None:
        if self._is_tracing:
            self._is_tracing = False
            self._profiler.stop()  # waits for the device
            self._profiler.export_chrome_trace(str(self._path))

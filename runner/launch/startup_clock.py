"""The seconds from the command to the start of the clock, by phase."""

import os
import time

from ..record.attempt import Attempt
from .rank_pool import RANK_STARTED


class StartupClock:
    """Measures the phases of a rank's start; those before it follow from the attempt and from its process."""

    def __init__(self, attempt: Attempt) -> None:
        self.seconds, self._last = dict(attempt.startup), attempt.started_at
        if RANK_STARTED in os.environ:
            self._end("data preparation", float(os.environ[RANK_STARTED]))
            self.end("imports")
        else:  # launcher=inline
            self.end("data preparation")

    def end(self, phase: str) -> None:
        """End a phase now, where the next one begins."""
        self._end(phase, time.time())

    def split(self, phase: str, part: str, seconds: float) -> None:
        """Count `seconds` of an ended phase as a phase of their own, if there are any."""
        if seconds:
            self.seconds[phase] = round(self.seconds[phase] - seconds, 2)
            self.seconds[part] = round(seconds, 2)

    def __str__(self) -> str:
        phases = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in self.seconds.items())
        return f"ready after {sum(self.seconds.values()):.1f} s: {phases}"

    def _end(self, phase: str, moment: float) -> None:
        self.seconds[phase] = round(moment - self._last, 2)
        self._last = moment

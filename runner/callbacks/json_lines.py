"""The observer that writes the events of a run as JSON lines, for live curves and other programs."""

import json
from dataclasses import asdict
from pathlib import Path

from ..training.events import Event, StepEnded


class JsonLines:
    """Append one line per event, steps excepted: name, time and fields. A resumed run continues the file."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 - closed by close()

    def __call__(self, event: Event) -> None:
        """Write one event."""
        if not isinstance(event, StepEnded):
            self._file.write(json.dumps({"event": type(event).__name__, **asdict(event)}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

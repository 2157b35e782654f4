"""Sample GPUs and host during a run, in a thread beside the training, into telemetry.csv."""

import csv
import io
import sys
import threading
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ..hardware.host import HostSensors
from ..hardware.readings import GpuReading, GpuSensors, HostReading
from ..training.clock import now
from ..training.events import BlockStarted, EvalStarted, Event, RunStarted, RunStopped

_JOIN_SECONDS = 10.0  # a GPU that hangs must not keep the run from ending
_READING_COLUMNS = [field.name for reading in (GpuReading, HostReading) for field in fields(reading)]
COLUMNS = ["time", "phase", "device", "source", *_READING_COLUMNS]


def telemetry_path(run_dir: Path, node: int) -> Path:
    """Return the file for the samples of a node; the first node's has no number."""
    return run_dir / (f"telemetry_{node}.csv" if node else "telemetry.csv")


class TelemetrySampler:
    """The observer on a node's first rank: a thread that writes one row per device every `every_seconds`.

    A row holds the wall time (seconds since the epoch, as in the MLPerf log), the phase (train, eval, or empty off the
    clock), the device (the index of a GPU, or host) and its source; the column names carry the units. Each sample is
    flushed, so that a kill loses at most the last row; a resumed run appends. The start and the stop of the clock
    trigger samples of their own. An error here is printed once and ends the sampling, not the run. On this node, the
    run consists of the process `launcher_pid` (default: this process) and its descendants.
    """

    def __init__(
        self, path: Path, gpus: GpuSensors | None, every_seconds: float, launcher_pid: int | None = None
    ) -> None:
        self._path, self._gpus, self._interval, self._launcher_pid = path, gpus, every_seconds, launcher_pid
        self._phase = ""
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Follow the phase of the run; takes microseconds."""
        match event:
            case RunStarted():
                self._phase = "train"
                self._wake.set()
            case BlockStarted() if self._phase:
                self._phase = "train"
            case EvalStarted() if self._phase:
                self._phase = "eval"
            case RunStopped():
                self._phase = ""
                self._wake.set()

    def close(self) -> None:
        """Take the last sample and release the sensors."""
        self._closing.set()
        self._wake.set()
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        try:
            host = HostSensors(self._launcher_pid)
            with open(self._path, "a", encoding="utf-8") as file:
                if file.tell() == 0:
                    file.write(_csv_line(dict(zip(COLUMNS, COLUMNS, strict=True))))
                elif not _ends_with_newline(self._path):
                    file.write("\n")  # ends a row that a killed process left incomplete
                due = now()
                while True:
                    closing = self._closing.is_set()  # read before sampling, so that one sample follows the close
                    self._wake.clear()
                    file.write("".join(map(_csv_line, self._sample(host))))
                    file.flush()
                    if closing:
                        break
                    if now() >= due:  # false after an early wake-up
                        due = max(due + self._interval, now())
                    self._wake.wait(max(due - now(), 0.0))
        except Exception as error:
            print(f"Telemetry has ended ({type(error).__name__}: {error}): the run continues.", file=sys.stderr)
        finally:
            if self._gpus is not None:
                self._gpus.close()

    def _sample(self, host: HostSensors) -> list[dict[str, Any]]:
        """Return a row per device, each with its own time."""
        rows = []
        for index in range(len(self._gpus) if self._gpus is not None else 0):
            assert self._gpus is not None
            row = {"time": now(), "phase": self._phase, "device": index, "source": self._gpus.source}
            rows.append(row | asdict(self._gpus.read(index)))
        rows.append({"time": now(), "phase": self._phase, "device": "host", "source": "system"} | asdict(host.read()))
        return rows


def _csv_line(row: dict[str, Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(_format(name, row.get(name)) for name in COLUMNS)
    return text.getvalue()


def _format(column: str, value: Any) -> Any:
    """Format a float; times and energy counters are large numbers whose last digits matter."""
    if not isinstance(value, float):
        return value
    return f"{value:.3f}" if column == "time" or column.endswith(("_joules", "cpu_seconds")) else f"{value:.6g}"


def _ends_with_newline(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"

"""Write events as MLPerf log lines, in the `:::MLLOG` form of v0.7 and later. Nothing else writes such lines."""

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from mlperf_logging.mllog import constants as keys
from mlperf_logging.mllog.mllog import MLLogger

from ... import __version__
from ..core.atomic_files import write_failure
from ..core.errors import DataError, RunError
from ..training.clock import now
from ..training.events import (
    BlockEnded,
    BlockStarted,
    EvalEnded,
    EvalStarted,
    Event,
    InitStarted,
    RunStarted,
    RunStopped,
)

# Keys of our own: the official checker ignores them, `timetrial check` reads them.
VERSION, TARGET, RESUMED = "timetrial_version", "quality_target", "timetrial_resumed"
LOWER_IS_BETTER = "lower_is_better"  # in the metadata of TARGET


class MLPerfLog:
    """The observer that writes the log of one run; `header` holds submission_* and what else precedes the parameters.

    With `lower_is_better`, the line of the target says so in its metadata, where `check` and the reports read it.

    The log of a resumed run is cut back to its checkpoint and continues with one `timetrial_resumed` line.
    """

    def __init__(
        self, path: Path, header: Mapping[str, Any], target: Mapping[str, float], *, lower_is_better: bool = False
    ) -> None:
        self._file = _LogFile(path)
        logger = logging.Logger("mlperf")
        logger.addHandler(self._file)
        # Call sites are logged relative to the package, so that a log does not reveal the folders of the machine.
        self._log = MLLogger(logger=logger, root_dir=str(Path(__file__).resolve().parents[2]))
        described = {"value": _value(target), "metadata": {LOWER_IS_BETTER: True}}
        self._header = {**header, TARGET: described if lower_is_better else _value(target)}
        self._resumed_from: Mapping[str, Any] | None = None
        self._block_started = 0.0
        self._first_epoch = 1
        self._completed_epochs = 0

    def state_dict(self) -> dict[str, Any]:
        """Return where the log ends, and the time."""
        return {"bytes": self._file.size, "completed_epochs": self._completed_epochs, "time": now()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the log of `state`, without what was written after it."""
        self._resumed_from = state
        self._completed_epochs = state["completed_epochs"]
        self._file.size = state["bytes"]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __call__(self, event: Event) -> None:
        """Write the lines of one event, all with its time."""
        ms = int(event.time * 1000)
        match event:
            case InitStarted(caches_cleared=cleared) if not self._resumed_from:
                self._log.event(keys.CACHE_CLEAR, cleared, time_ms=ms)
                self._log.start(keys.INIT_START, time_ms=ms)
            case RunStarted(params=params):
                self._run_started(params, event.time)
            case BlockStarted(first_epoch=first, epochs=epochs):
                self._block_started, self._first_epoch = event.time, first
                span = {"first_epoch_num": first, "epoch_count": epochs}
                self._log.start(keys.BLOCK_START, metadata=span, time_ms=ms)
                if epochs == 1:
                    self._log.start(keys.EPOCH_START, metadata={"epoch_num": first}, time_ms=ms)
            case BlockEnded(first_epoch=first, epochs=epochs, samples=samples, data_wait_seconds=waited):
                if epochs == 1:
                    self._log.end(keys.EPOCH_STOP, metadata={"epoch_num": first}, time_ms=ms)
                stats = {"throughput": samples / (event.time - self._block_started), "data_wait_seconds": waited}
                self._log.event("tracked_stats", stats, {"step": first + epochs - 1}, time_ms=ms)
            case EvalStarted(epoch=epoch):
                self._log.start(keys.EVAL_START, metadata={"epoch_num": epoch}, time_ms=ms)
            case EvalEnded(epoch=epoch, quality=quality):
                self._completed_epochs = epoch
                self._log.event(keys.EVAL_ACCURACY, _value(quality), {"epoch_num": epoch}, time_ms=ms)
                self._log.end(keys.EVAL_STOP, metadata={"epoch_num": epoch}, time_ms=ms)
                self._log.end(keys.BLOCK_STOP, metadata={"first_epoch_num": self._first_epoch}, time_ms=ms)
            case RunStopped(status=status):
                self._log.end(keys.RUN_STOP, metadata={"status": status}, time_ms=ms)

    def _run_started(self, params: Mapping[str, Any], time: float) -> None:
        ms = int(time * 1000)
        if state := self._resumed_from:
            resumed = {"epochs_done": state["completed_epochs"], "lost_seconds": time - state["time"]}
            self._log.event(RESUMED, resumed, time_ms=ms)
            return
        self._log.event(VERSION, __version__, time_ms=ms)
        for key, value in {**self._header, **params}.items():
            described = isinstance(value, dict) and value.keys() == {"value", "metadata"}
            value, metadata = (value["value"], value["metadata"]) if described else (value, None)
            self._log.event(key, value, metadata, time_ms=ms)
        self._log.end(keys.INIT_STOP, time_ms=ms)
        self._log.start(keys.RUN_START, time_ms=ms)


def _value(quality: Mapping[str, float]) -> float | dict[str, float]:
    """Return one metric as a number and several as a dict, as the rule files require."""
    return next(iter(quality.values())) if len(quality) == 1 else dict(quality)


class _LogFile(logging.Handler):
    """Append whole lines, unbuffered; a line that does not fit on the disk leaves nothing behind."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._stream: IO[bytes] | None = None  # opened by the first line
        self.size = 0  # bytes of whole lines; what lies behind them is cut off when the file is opened
        self._failure: RunError | None = None

    def _open(self) -> IO[bytes]:
        try:
            if self.size > (self._path.stat().st_size if self._path.exists() else 0):
                raise DataError(
                    f"{self._path} was removed or cut since the checkpoint: start the run over in a new run directory."
                )
            stream = open(self._path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
            if self._path.is_file():
                stream.truncate(self.size)
        except OSError as error:
            raise write_failure(self._path, error) from error
        return stream

    def emit(self, record: logging.LogRecord) -> None:
        if self._failure:  # mllog catches what its handlers raise and then logs an error of its own: raise it again
            raise self._failure
        # mllog reports a value that it cannot encode as a message at ERROR level, in place of the line.
        assert record.levelno < logging.WARNING, record.getMessage()
        line = record.getMessage().encode() + b"\n"
        try:
            self._stream = self._stream or self._open()
        except RunError as error:
            self._failure = error
            raise
        try:
            written = self._stream.write(line)
            if written != len(line):
                raise OSError(28, "No space left on device")
        except OSError as error:
            with contextlib.suppress(OSError):
                self._stream.truncate(self.size)
            self._failure = write_failure(self._path, error)
            raise self._failure from error
        self.size += len(line)

    def close(self) -> None:
        if self._stream:
            self._stream.close()
        super().close()

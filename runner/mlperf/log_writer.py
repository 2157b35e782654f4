"""Events to MLPerf log lines, in the `:::MLLOG` dialect of v0.7 and later: the only writer of such lines."""

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlperf_logging.mllog import constants as keys
from mlperf_logging.mllog.mllog import MLLogger

from ... import __version__
from ..core.atomic_files import write_failure
from ..core.errors import DataError, RunError
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

# Keys of ours beside MLPerf's: the checker passes over them, `timetrial check` reads them.
VERSION, TARGET, RESUMED = "timetrial_version", "quality_target", "timetrial_resumed"


class MLPerfLog:
    """The observer that writes one run's log; `header` holds submission_* and what else precedes the parameters.

    A resumed run's log is cut back to its checkpoint `saved` and goes on with one `timetrial_resumed` line.
    """

    def __init__(
        self, path: Path, header: Mapping[str, Any], target: Mapping[str, float], saved: Mapping[str, Any] | None = None
    ) -> None:
        self._file = _LogFile(path, saved["log_bytes"] if saved else 0)
        logger = logging.Logger("mlperf")
        logger.addHandler(self._file)
        # Call sites are logged relative to the package, so that a log tells nothing of the machine's folders.
        self._log = MLLogger(logger=logger, root_dir=str(Path(__file__).resolve().parents[2]))
        self._header, self._target, self._saved = header, target, saved
        self._block_started = 0.0
        self._first_epoch = 1

    @property
    def size(self) -> int:
        """Bytes written so far: where a checkpoint taken now would cut the log."""
        return self._file.size

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __call__(self, event: Event) -> None:
        """Writes the lines of one event, all with its time."""
        ms = int(event.time * 1000)
        match event:
            case InitStarted(caches_cleared=cleared) if not self._saved:
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
                self._log.event(keys.EVAL_ACCURACY, _value(quality), {"epoch_num": epoch}, time_ms=ms)
                self._log.end(keys.EVAL_STOP, metadata={"epoch_num": epoch}, time_ms=ms)
                self._log.end(keys.BLOCK_STOP, metadata={"first_epoch_num": self._first_epoch}, time_ms=ms)
            case RunStopped(status=status):
                self._log.end(keys.RUN_STOP, metadata={"status": status}, time_ms=ms)

    def _run_started(self, params: Mapping[str, Any], time: float) -> None:
        ms = int(time * 1000)
        if self._saved:
            resumed = {"epochs_done": self._saved["done"], "lost_seconds": time - self._saved["time"]}
            self._log.event(RESUMED, resumed, time_ms=ms)
            return
        self._log.event(VERSION, __version__, time_ms=ms)
        for key, value in {**self._header, TARGET: _value(self._target), **params}.items():
            described = isinstance(value, dict) and value.keys() == {"value", "metadata"}
            value, metadata = (value["value"], value["metadata"]) if described else (value, None)
            self._log.event(key, value, metadata, time_ms=ms)
        self._log.end(keys.INIT_STOP, time_ms=ms)
        self._log.start(keys.RUN_START, time_ms=ms)


def _value(quality: Mapping[str, float]) -> float | dict[str, float]:
    """One metric is logged as a number, several as a dict, as the rule files want several."""
    return next(iter(quality.values())) if len(quality) == 1 else dict(quality)


class _LogFile(logging.Handler):
    """Appends whole lines, unbuffered; a line that does not fit on the disk leaves nothing of itself behind."""

    def __init__(self, path: Path, cut_to: int) -> None:
        super().__init__()
        self._path = path
        try:
            if cut_to > (path.stat().st_size if path.exists() else 0):
                raise DataError(f"{path} was removed or cut since the checkpoint: start the run over in a new folder.")
            self._stream = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
            if path.is_file():
                self._stream.truncate(cut_to)
        except OSError as error:
            raise write_failure(path, error) from error
        self.size = cut_to
        self._failure: RunError | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._failure:  # mllog catches what its handlers raise, and then logs its own complaint: raise it again
            raise self._failure
        # mllog reports a value that it cannot encode as a log message at ERROR level, in place of the line.
        assert record.levelno < logging.WARNING, record.getMessage()
        line = record.getMessage().encode() + b"\n"
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
        self._stream.close()
        super().close()

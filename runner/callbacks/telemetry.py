"""Samples cards and host while a run goes on, beside the training and never in its way: telemetry.csv."""

import csv
import io
import sys
import threading
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ..hardware.host import Host
from ..hardware.readings import CardReading, Cards, HostReading
from ..training.events import BlockStarted, EvalStarted, Event, RunStarted, RunStopped, now

_PATIENCE_SECONDS = 10.0  # for the last sample: a card that hangs must not keep a run from ending
_READINGS = [field.name for kind in (CardReading, HostReading) for field in fields(kind)]
COLUMNS = ["time", "phase", "device", "source", *_READINGS]


def file_of(folder: Path, node: int) -> Path:
    """Where the samples of a node lie, the first node's under the plain name."""
    return folder / (f"telemetry_{node}.csv" if node else "telemetry.csv")


class Telemetry:
    """The observer of a node's first rank: a thread that writes a row a device every `every_seconds`.

    A row holds the wall time (seconds since the epoch, the clock of the log), the phase (train, eval, or empty off the
    clock), the device (a card's number, or host) and its source; units stand in the columns' names. Rows go to the
    system as they are made, so that a kill costs at most the last one; a resumed run appends. The start and the stop of
    the clock are samples of their own. What goes wrong here is said once and ends the sampling, not the run.
    """

    def __init__(self, path: Path, cards: Cards | None, every_seconds: float) -> None:
        self._path, self._cards, self._every = path, cards, every_seconds
        self._phase = ""
        self._now, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="telemetry", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Notes the phase; takes microseconds."""
        match event:
            case RunStarted():
                self._phase = "train"
                self._now.set()
            case BlockStarted() if self._phase:
                self._phase = "train"
            case EvalStarted() if self._phase:
                self._phase = "eval"
            case RunStopped():
                self._phase = ""
                self._now.set()

    def close(self) -> None:
        """Takes the last sample and lets go of the cards."""
        self._over.set()
        self._now.set()
        self._thread.join(_PATIENCE_SECONDS)

    def _watch(self) -> None:
        try:
            host = Host()
            with open(self._path, "a", encoding="utf-8") as file:
                if file.tell() == 0:
                    file.write(_line(dict(zip(COLUMNS, COLUMNS, strict=True))))
                elif not _ends_whole(self._path):
                    file.write("\n")  # after a row that a kill cut short
                due = now()
                while True:
                    over = self._over.is_set()  # before the sample, so that there is one after it
                    self._now.clear()
                    file.write("".join(map(_line, self._rows(host))))
                    file.flush()
                    if over:
                        break
                    if now() >= due:  # and not woken before
                        due = max(due + self._every, now())
                    self._now.wait(max(due - now(), 0.0))
        except Exception as error:
            print(f"telemetry has ended ({type(error).__name__}: {error}): the run goes on.", file=sys.stderr)
        finally:
            if self._cards is not None:
                self._cards.close()

    def _rows(self, host: Host) -> list[dict[str, Any]]:
        """A sample: each device at its own moment."""
        rows = []
        for index in range(len(self._cards) if self._cards is not None else 0):
            assert self._cards is not None
            row = {"time": now(), "phase": self._phase, "device": index, "source": self._cards.source}
            rows.append(row | asdict(self._cards.read(index)))
        rows.append({"time": now(), "phase": self._phase, "device": "host", "source": "system"} | asdict(host.read()))
        return rows


def _line(row: dict[str, Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(_written(name, row.get(name)) for name in COLUMNS)
    return text.getvalue()


def _written(name: str, value: Any) -> Any:
    """Times and counters are great numbers whose last digits count."""
    if not isinstance(value, float):
        return value
    return f"{value:.3f}" if name == "time" or name.endswith("_joules") else f"{value:.6g}"


def _ends_whole(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"

"""The folder of one run: unique, written by temporary name and rename, safe on shared file systems."""

import json
import os
import re
import secrets
import shutil
import time
from pathlib import Path
from typing import Any

from timetrial.runner.errors import ConfigurationError, RunError


def write_atomically(path: Path, text: str | bytes, *, durable: bool = True) -> None:
    """Writes `path` whole or not at all; a reader never sees half of it.

    What is written on the clock, and again and again, is not made `durable` against a power cut: that can be slow.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    data = text.encode() if isinstance(text, str) else text
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> RunError:
    """The one sentence for a full or read-only disk."""
    return RunError(
        f"Cannot write {path} ({error.strerror or error}): free space there or choose another place with runs=FOLDER."
    )


def as_json(thing: Any) -> str:
    """`thing` as JSON text with a final newline."""
    return json.dumps(thing, indent=2) + "\n"


class RunFolder:
    """Paths of a run folder and its two living files, status.json and the checkpoint."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.log = path / f"result_{seed}.txt"
        self.config = path / "config.yaml"
        self.system = path / "system.json"
        self.quality = path / "quality.csv"
        self.checkpoint = path / "checkpoint" / "checkpoint.pt"
        self._status = path / "status.json"

    def status(self) -> dict[str, Any]:
        """What status.json says; empty where there is none."""
        return json.loads(self._status.read_text()) if self._status.exists() else {}

    def update_status(self, **entries: Any) -> dict[str, Any]:
        """Sets `entries` in status.json and returns the whole."""
        status = self.status() | entries
        write_atomically(self._status, as_json(status), durable=False)
        return status

    def write_error(self, rank: int, exit_code: int, sentence: str) -> None:
        """Leaves a rank's last words for the launcher."""
        words = {"rank": rank, "exit_code": exit_code, "error": sentence, "time": time.time()}
        write_atomically(self.path / f"error_{rank}.json", as_json(words))

    def take_errors(self) -> list[dict[str, Any]]:
        """The ranks' last words, earliest first; they are removed, status.json keeps the cause."""
        files = list(self.path.glob("error_*.json"))
        words = sorted((json.loads(file.read_text()) for file in files), key=lambda entry: entry["time"])
        for file in files:
            file.unlink()
        return words

    def discard(self) -> None:
        """Removes the folder and whatever became empty above it: nothing half-made stays."""
        shutil.rmtree(self.path, ignore_errors=True)
        for parent in self.path.parents:
            try:
                parent.rmdir()
            except OSError:
                break


def create(runs: Path, parts: list[str], seed: int) -> RunFolder:
    """Makes a new folder `runs/<parts>/seed_<n>/<id>`; ids of runs that start in the same second differ."""
    parent = runs.joinpath(*(slug(part) for part in parts), f"seed_{seed}")
    while True:
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
        try:
            return claim(parent / name, seed)
        except ConfigurationError:
            continue


def claim(path: Path, seed: int) -> RunFolder:
    """Makes `path` this run's own; refuses a folder in which something lies already. Of two at once, one gets it."""
    refusal = ConfigurationError(
        f"{path} already holds a run: leave run_dir out for a new folder, or add resume=true to continue that run."
    )
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise refusal
        with open(path / "status.json", "x") as file:
            file.write("{}\n")
    except (FileExistsError, NotADirectoryError) as error:
        raise refusal from error
    except OSError as error:
        raise cannot_write(path, error) from error
    return RunFolder(path.resolve(), seed)


def slug(text: str) -> str:
    """`text` as a folder name: lower case, words joined by dashes."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-") or "unknown"

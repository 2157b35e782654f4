"""The folder of one run: unique, written by temporary name and rename, safe on shared file systems."""

import contextlib
import fcntl
import json
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..core.atomic_files import to_json, write_atomically, write_failure
from ..core.errors import ConfigurationError, RunDirLocked

# Who looks whether a folder is in use holds it for a moment: who wants it tries so often, so many seconds apart.
_TRIES, _SECONDS_BETWEEN_TRIES = 10, 0.1


class RunDir:
    """Paths of a run folder and its two living files, status.json and the checkpoint."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.log = path / f"result_{seed}.txt"
        self.config = path / "config.yaml"
        self.system = path / "system.json"
        self.quality = path / "quality.csv"
        self.checkpoint = path / "checkpoint" / "checkpoint.pt"
        self._status = path / "status.json"
        self._made: list[Path] = []  # the folders that were made for this run

    def status(self) -> dict[str, Any]:
        """What status.json says; empty where there is none, or where its writer was cut off before the first word."""
        try:
            return dict(json.loads(self._status.read_text() or "{}")) if self._status.exists() else {}
        except ValueError as error:
            raise ConfigurationError(f"{self._status} is damaged: remove it, or start over in a new folder.") from error

    def update_status(self, **entries: Any) -> dict[str, Any]:
        """Sets `entries` in status.json and returns the whole."""
        status = self.status() | entries
        write_atomically(self._status, to_json(status), durable=False)
        return status

    def add_to_system(self, **facts: Any) -> None:
        """Sets `facts` in system.json, which the launcher has written."""
        write_atomically(self.system, to_json(json.loads(self.system.read_text()) | facts))

    def write_error(self, rank: int, exit_code: int, sentence: str) -> None:
        """Leaves a rank's last words for the launcher."""
        words = {"rank": rank, "exit_code": exit_code, "error": sentence, "time": time.time()}
        write_atomically(self.path / f"error_{rank}.json", to_json(words))

    def has_errors(self) -> bool:
        """True once a rank has left its words."""
        return any(self.path.glob("error_*.json"))

    def take_errors(self) -> list[dict[str, Any]]:
        """The ranks' last words, earliest first; they are removed, status.json keeps the cause."""
        files = list(self.path.glob("error_*.json"))
        words = sorted((json.loads(file.read_text()) for file in files), key=lambda entry: entry["time"])
        for file in files:
            file.unlink()
        return words

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds the folder for this process and the ranks that it starts; raises `RunDirLocked` where another runs in it."""
        with open(self.path / ".lock", "a+") as lock:
            # Alone at first, then with the ranks: those of a launcher that was killed hold it until they have ended.
            if not (_locked(lock, fcntl.LOCK_EX, _TRIES) and _locked(lock, fcntl.LOCK_SH, _TRIES)):
                raise RunDirLocked(f"{self.path} is being run by another process: wait for it to end.")
            for stale in self.path.glob(".*.tmp"):
                stale.unlink(missing_ok=True)
            yield

    @contextmanager
    def shared(self) -> Iterator[None]:
        """A rank's share in the launcher's hold."""
        with open(self.path / ".lock", "a+") as lock:
            _locked(lock, fcntl.LOCK_SH, _TRIES)
            yield

    def in_use(self) -> bool:
        """True while a process holds the folder."""
        if not (self.path / ".lock").exists():
            return False
        with open(self.path / ".lock", "a+") as lock:
            return not _locked(lock, fcntl.LOCK_EX, tries=1)

    def discard(self) -> None:
        """Empties the folder and removes what was made for it: nothing half-made stays, nothing of the user's goes."""
        for entry in self.path.iterdir() if self.path.exists() else ():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)
        _remove_empty(self._made)


def _locked(file: IO[str], kind: int, tries: int) -> bool:
    """Whether the lock could be had: always where the file system has none, so that nobody could hold one."""
    for left in reversed(range(tries)):
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if left:
                time.sleep(_SECONDS_BETWEEN_TRIES)
        except OSError:
            return True
    return False


def create(runs: Path, parts: list[str], seed: int) -> RunDir:
    """Makes a new folder `runs/<parts>/seed_<n>/<id>`; ids of runs that start in the same second differ."""
    parent = runs.joinpath(*(slug(part) for part in parts), f"seed_{seed}")
    while True:
        try:
            return claim(parent / new_id(), seed)
        except ConfigurationError:
            continue


def new_id() -> str:
    """A folder's name that no other has: the time, and letters of luck for what starts in the same second."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"


def claim(path: Path, seed: int) -> RunDir:
    """Makes `path` this run's own; refuses a folder in which something lies already. Of two at once, one gets it."""
    refusal = ConfigurationError(
        f"{path} already holds a run: leave run_dir out for a new folder, or add resume=true to continue that run."
    )
    path = path.resolve()
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    empty = False
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise refusal
        empty = True
        with open(path / "status.json", "x") as file:
            file.write("{}\n")
    except (FileExistsError, NotADirectoryError) as error:
        raise refusal from error
    except OSError as error:
        if empty:  # then the file is ours, of which not even two letters fitted
            with contextlib.suppress(OSError):
                (path / "status.json").unlink(missing_ok=True)
        _remove_empty(made)
        raise write_failure(path, error) from error
    folder = RunDir(path, seed)
    folder._made = made
    return folder


def _remove_empty(folders: list[Path]) -> None:
    """Removes those of `folders`, deepest first, that are there and hold nothing."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def slug(text: str) -> str:
    """`text` as a folder name: lower case, words joined by dashes."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-") or "unknown"

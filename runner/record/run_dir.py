"""The run directory: unique per run, written by temporary name and rename, safe on shared file systems."""

import contextlib
import fcntl
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from ..core.atomic_files import open_lock, to_json, write_atomically, write_failure
from ..core.errors import ConfigurationError, RunDirLocked
from ..core.formatting import slug
from ..core.found_files import UnreadableFile, read_json
from .record_file import FILE_NAME, decode, encode_record, read_record
from .run_record import RunRecord

# `in_use()` takes the lock briefly, so acquiring it retries.
_LOCK_ATTEMPTS, _SECONDS_BETWEEN_ATTEMPTS = 10, 0.1


@dataclass(frozen=True)
class RankError:
    """Why a rank failed, left in the run directory for the launcher."""

    rank: int
    exit_code: int
    error: str
    time: float = field(default_factory=time.time)


class RunDir:
    """Paths of a run directory and its two living files, the run record and the checkpoint."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.log = path / f"result_{seed}.txt"
        self.config = path / "config.yaml"
        self.quality = path / "quality.csv"
        self.profile = path / "profile.json.gz"
        self.checkpoint = path / "checkpoint" / "checkpoint.pt"
        self._created: list[Path] = []  # directories that were created for this run

    @property
    def exists(self) -> bool:
        """Whether a run was started here."""
        return (self.path / FILE_NAME).exists()

    def refuse_special_files(self) -> None:
        """Raise `UnreadableFile` for a link, pipe or device, through which a resume would write or wait elsewhere.

        Weights & Biases links its log; in its folder, each attempt writes to a new folder.
        """
        wandb = self.path / "wandb"
        for entry in self.path.rglob("*"):
            if wandb in entry.parents:
                continue
            if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
                raise UnreadableFile(entry, "a run directory holds regular files only")

    def record(self) -> RunRecord:
        """Return the run record, an empty one where none was written yet; raise `UnreadableFile` for a damaged one."""
        return read_record(self.path) or RunRecord()

    def update(self, change: Callable[[RunRecord], RunRecord], *, durable: bool = False) -> RunRecord:
        """Replace the run record by `change(record)`, and return it.

        It is not flushed to disk by default, because the clock may be running.
        """
        record = change(self.record())
        write_atomically(self.path / FILE_NAME, encode_record(record), durable=durable)
        return record

    def write_rank_error(self, error: RankError) -> None:
        """Leave a rank's error for the launcher."""
        write_atomically(self.path / f"error_{error.rank}.json", to_json(asdict(error)))

    def has_rank_errors(self) -> bool:
        """Return whether a rank has left its error."""
        return any(self.path.glob("error_*.json"))

    def take_rank_errors(self) -> list[RankError]:
        """Return the ranks' errors, earliest first, and remove their files; the run record keeps the cause."""
        errors = []
        for file in self.path.glob("error_*.json"):
            with contextlib.suppress(ValueError):  # damaged: the exit code of the rank's process stays
                errors.append(decode(RankError, read_json(file)))
            file.unlink()
        return sorted(errors, key=lambda error: error.time)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run directory for this process and its ranks; raise `RunDirLocked` while another run holds it."""
        with open_lock(self.path / ".lock") as lock:
            # First exclusive, then shared with the ranks, which may outlive a launcher that is killed.
            if not (_lock(lock, fcntl.LOCK_EX, _LOCK_ATTEMPTS) and _lock(lock, fcntl.LOCK_SH, _LOCK_ATTEMPTS)):
                raise RunDirLocked(f"{self.path} is in use by another process: wait until it ends.")
            for leftover in self.path.glob(".*.tmp"):
                leftover.unlink(missing_ok=True)
            yield

    @contextmanager
    def locked_by_rank(self) -> Iterator[None]:
        """Share the launcher's lock."""
        with open_lock(self.path / ".lock") as lock:
            _lock(lock, fcntl.LOCK_SH, _LOCK_ATTEMPTS)
            yield

    def in_use(self) -> bool:
        """Return whether a process holds the lock."""
        if not (self.path / ".lock").exists():
            return False
        with open_lock(self.path / ".lock") as lock:
            return not _lock(lock, fcntl.LOCK_EX, attempts=1)

    def start_over(self) -> None:
        """Remove what an attempt without a checkpoint has left behind: its samples, evaluations and events.

        A second attempt would continue these files, and double the energy. Its log is cut by the log writer.
        """
        for path in (self.quality, self.path / "events.jsonl", *self.path.glob("telemetry*.csv")):
            path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Empty a run directory that this process created, and remove the directories that were created for it.

        That of a run which is resumed must not be discarded: it may hold files of the user's.
        """
        for entry in self.path.iterdir() if self.path.exists() else ():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)
        _remove_empty(self._created)


def _lock(file: IO[bytes], kind: int, attempts: int) -> bool:
    """Return whether the lock was acquired; True on file systems without locks, where nobody can hold one."""
    for attempts_left in reversed(range(attempts)):
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if attempts_left:
                time.sleep(_SECONDS_BETWEEN_ATTEMPTS)
        except OSError:
            return True
    return False


def create_run_dir(runs_dir: Path, parts: list[str], seed: int) -> RunDir:
    """Create `runs_dir/<parts>/seed_<n>/<id>`; runs that start in the same second get different ids."""
    parent = runs_dir.joinpath(*(slug(part) for part in parts), f"seed_{seed}")
    return claim_run_dir(parent / new_id(), seed)


def new_id() -> str:
    """Return a unique directory name: the time and random letters."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"


def claim_run_dir(path: Path, seed: int) -> RunDir:
    """Claim `path` for a new run; raise `ConfigurationError` if that cannot be. Of two processes, one succeeds."""
    occupied = ConfigurationError(
        f"{path} already holds a run: leave run_dir out for a new one, or add resume=true to continue that run."
    )
    path = path.resolve()
    file_in_the_way = next((part for part in (path, *path.parents) if part.exists() and not part.is_dir()), None)
    if file_in_the_way is not None:
        raise ConfigurationError(f"{file_in_the_way} is a file: choose a folder for the run.")
    created = [folder for folder in (path, *path.parents) if not folder.exists()]
    was_empty = False
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise occupied
        was_empty = True
        with open(path / FILE_NAME, "x") as file:
            file.write("{}\n")
    except FileExistsError as error:
        raise occupied from error
    except OSError as error:
        if was_empty:  # the file is ours, and the disk too full for two letters
            with contextlib.suppress(OSError):
                (path / FILE_NAME).unlink(missing_ok=True)
        _remove_empty(created)
        raise write_failure(path, error) from error
    run_dir = RunDir(path, seed)
    run_dir._created = created
    return run_dir


def _remove_empty(folders: list[Path]) -> None:
    """Remove those of `folders`, deepest first, that are empty."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()

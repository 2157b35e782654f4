"""Studies for batch systems: a manifest of tasks, each brought to one result, however often it is asked for.

A study is a folder: `manifest.txt` has one line per task, its name and its overrides; `runs/<name>/` is its run
directory; `attempts/<name>/<n>/` keeps failed attempts. What remains to be done follows from these files alone, so any
process on any node may be killed at any time and any other may continue.

A study may come from somebody else, so its manifest is data: it names no code, no files of configuration, no values
of the environment and no folders, and no task leaves `runs/` (task_overrides.py).
"""

import fcntl
import re
import shlex
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from ..config.compose import compose, expand_sweep
from ..config.composer import Composer
from ..config.error_messages import format_error
from ..config.validation import micro_batch_size, validate
from ..core.atomic_files import open_lock, write_atomically, write_failure
from ..core.errors import ConfigurationError, Exit, OutOfMemory, RunDirLocked, RunError
from ..core.formatting import slug
from ..core.found_files import as_name, read_text
from ..mlperf import closed_division
from ..record.record_file import FILE_NAME, encode_record
from ..record.run_dir import RunDir
from ..record.run_record import RunRecord, RunState
from . import rendezvous
from .rank_pool import RankPool
from .task_overrides import check_composition, check_overrides

# Ends that are a result, whether the target was reached or not; a loss that diverged would diverge again.
_RESULTS = (Exit.TARGET_REACHED, Exit.TARGET_NOT_REACHED, Exit.TIME_LIMIT, Exit.DIVERGED, Exit.NOT_COMPLIANT)
# Failures that another attempt on the same node may not repeat.
_RETRIED_HERE = (Exit.OUT_OF_MEMORY, Exit.LOST_RANK, Exit.FAILURE)
_RESERVED_KEYS = {"run_dir", "resume", "runs_dir"}
_MAX_NAME_LENGTH = 100
_NAME = re.compile(rf"\w[\w.-]{{0,{_MAX_NAME_LENGTH - 1}}}", re.ASCII)
_PLAIN_SEED = re.compile(r"seed=\d{1,18}")


@dataclass(frozen=True)
class Task:
    """One line of a manifest."""

    index: int
    name: str
    overrides: tuple[str, ...]

    def value(self, key: str, default: str) -> str:
        """Return what the task's overrides set `key` to."""
        return next(
            (word.split("=", 1)[1] for word in self.overrides if word.lstrip("+").startswith(f"{key}=")), default
        )

    @property
    def num_gpus(self) -> int:
        """The number of GPUs that the task uses."""
        gpus = self.value("gpus", "1")
        if not gpus.isdecimal():
            raise ConfigurationError(f"Task {self.index} has gpus={gpus}, which is no number: plan the study again.")
        return 0 if self.value("accelerator", "") == "cpu" else int(gpus)


class TaskProgress(StrEnum):
    """How far a task has come; `waiting` is for a first or a further attempt."""

    DONE = "done"
    RUNNING = "running"
    WAITING = "waiting"
    FAILED = "failed"


@dataclass(frozen=True)
class TaskState:
    """The progress of a task, the record of its run or else of its last attempt, and all attempts that failed."""

    progress: TaskProgress
    record: RunRecord
    failures: tuple[RunRecord, ...] = ()


class Study:
    """The folder of a study; after `max_attempts` failures a task is given up."""

    def __init__(self, path: Path, max_attempts: int) -> None:
        self.path = path
        self.runs = path / "runs"
        self._manifest = path / "manifest.txt"
        self._max_attempts = max_attempts

    def tasks(self) -> list[Task]:
        """Return the tasks in the order of the manifest; raise `ConfigurationError` for one that is not plain data."""
        if not self._manifest.exists():
            raise ConfigurationError(f"{self._manifest} is missing: make it with timetrial batch plan {self.path} ...")
        lines = read_text(self._manifest).removesuffix("\n").split("\n")
        return [self._parse(index, line) for index, line in enumerate(lines)]

    def _parse(self, index: int, line: str) -> Task:
        try:
            name, *overrides = shlex.split(line)
        except ValueError as error:
            raise ConfigurationError(f"{self._manifest} line {index + 1} is no task: plan the study again.") from error
        if not _NAME.fullmatch(name) or (self.runs / name).is_symlink():
            raise ConfigurationError(
                f"{self._manifest} line {index + 1}: {as_name(name)} is no name of a folder in {self.runs}: "
                "plan the study again."
            )
        return Task(index, name, tuple(overrides))

    def plan(self, overrides: Sequence[str]) -> int:
        """Write the manifest of the sweep over `overrides`, or add its tasks to it; return how many are new.

        Every new task is checked. Earlier tasks keep index and name, and with them their runs and results. Raises
        `ConfigurationError` if the sweep leaves out one of these.
        """
        swept = _expand(overrides)
        _, added = self._compare(swept)
        if added:
            _validate_all(added)
            with self._locked():
                planned, added = self._compare(swept)  # another process may have planned since
                lines = [shlex.join([task.name, *task.overrides]) for task in (*planned, *added)]
                write_atomically(self._manifest, "".join(f"{line}\n" for line in lines))
        return len(added)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Create the folder, and let other processes that plan it wait."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open_lock(self.path / ".lock")
        except OSError as error:
            raise write_failure(self.path, error) from error
        with lock:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _compare(self, swept: Sequence[Sequence[str]]) -> tuple[list[Task], list[Task]]:
        """Return the planned tasks and what a sweep adds; raise `ConfigurationError` if it lacks a planned one."""
        planned = self.tasks() if self._manifest.exists() else []
        wanted = {frozenset(run) for run in swept}
        for task in planned:
            if frozenset(task.overrides) not in wanted:
                raise ConfigurationError(
                    f"{self._manifest} has a task that this plan leaves out ({shlex.join(task.overrides)}): a plan can "
                    "only grow. Add its values, or name another folder."
                )
        return planned, _name_tasks(swept, len(planned), {frozenset(task.overrides) for task in planned})

    def run_dir(self, task: Task) -> RunDir:
        """Return the run directory of a task. Its seed only names the log, which is not read here."""
        return RunDir(self.runs / task.name, seed=0)

    def state(self, task: Task, *, locked: bool = False) -> TaskState:
        """Return how far a task has come; with `locked`, this process holds its run directory."""
        run_dir, failures = self.run_dir(task), self._failed_attempts(task)
        record = run_dir.record()
        if not locked and run_dir.in_use():
            return TaskState(TaskProgress.RUNNING, record, failures)
        if record.exit_code in _RESULTS and not record.is_running:
            return TaskState(TaskProgress.DONE, record, failures)
        if record.exit_code not in (None, Exit.STOPPED) and not record.is_running:
            failures = (*failures, record)
        progress = TaskProgress.FAILED if len(failures) >= self._max_attempts else TaskProgress.WAITING
        started = record.state != RunState.CREATED
        return TaskState(progress, record if started or not failures else failures[-1], failures)

    def run(self, task: Task, console: Console, pool: RankPool | None = None) -> Exit:
        """Bring the task to its end, or as far as this process can; raise the error of a failure."""
        while True:
            if (exit_code := self._begin_attempt(task)) is not None:
                console.print(f"{task.name} has its result: nothing to do.", soft_wrap=True, markup=False)
                return exit_code
            from .run import launch  # imports frameworks, which takes seconds

            try:
                exit_code = launch(self._compose(task), console, pool, task.overrides).exit_code
            except RunDirLocked:
                raise
            except (RunError, HydraException, OmegaConfBaseException) as error:
                exit_code = getattr(error, "exit_code", Exit.CONFIGURATION)
                is_recorded = self.run_dir(task).record().exit_code == exit_code
                if rendezvous.is_first_node() and not is_recorded:
                    failure = RunRecord(state=RunState.FAILED, exit_code=int(exit_code), error=format_error(error))
                    self._keep_failure(task, failure)
                if exit_code not in _RETRIED_HERE:
                    raise
            if exit_code not in _RETRIED_HERE:
                return exit_code

    def _begin_attempt(self, task: Task) -> Exit | None:
        """Return the exit code of a task that has its result; else prepare its run directory and return None."""
        run_dir = self.run_dir(task)
        with run_dir.locked() if rendezvous.is_first_node() and run_dir.path.exists() else nullcontext():
            state = self.state(task, locked=True)
            if state.progress == TaskProgress.DONE:
                return Exit(state.record.exit_code or 0)
            if state.progress == TaskProgress.FAILED:
                raise RunError(
                    f"{task.name} has failed {len(state.failures)} times: correct the cause, then raise --attempts. "
                    f"The last error: {state.failures[-1].error}"
                )
            if rendezvous.is_first_node() and len(state.failures) > len(self._failed_attempts(task)):
                if state.record.exit_code == Exit.OUT_OF_MEMORY:  # a smaller micro-batch makes it another run
                    self._next_attempt(task).parent.mkdir(parents=True, exist_ok=True)
                    run_dir.path.rename(self._next_attempt(task))
                else:
                    self._keep_failure(task, state.record)
                    run_dir.update(lambda record: replace(record, exit_code=None, state=RunState.STOPPED))
        return None

    def _compose(self, task: Task) -> DictConfig:
        """Return the task's configuration on this machine, with the micro-batch that earlier attempts leave."""
        from .overrides import with_accelerator

        check_overrides(task.index, task.overrides)
        composition = compose(with_accelerator(task.overrides))
        check_composition(task.index, task.overrides, composition)
        node = composition.node
        node.run_dir, node.resume = str(self.runs / task.name), True
        halvings = sum(failure.exit_code == Exit.OUT_OF_MEMORY for failure in self._failed_attempts(task))
        if halvings:
            node.tuning.micro_batch_size = micro_batch_size(validate(node), halvings)
            if not node.tuning.micro_batch_size:
                raise OutOfMemory(f"{task.name} does not fit into memory with single samples: use a larger GPU.")
        return node

    def _failed_attempts(self, task: Task) -> tuple[RunRecord, ...]:
        """Return the records of failed attempts in their order."""
        files = (self.path / "attempts" / task.name).glob(f"*/{FILE_NAME}")
        numbered = (file.parent for file in files if file.parent.name.isdecimal())
        folders = sorted(numbered, key=lambda folder: int(folder.name))
        return tuple(RunDir(folder, seed=0).record() for folder in folders)

    def _next_attempt(self, task: Task) -> Path:
        return self.path / "attempts" / task.name / str(len(self._failed_attempts(task)) + 1)

    def _keep_failure(self, task: Task, record: RunRecord) -> None:
        folder = self._next_attempt(task)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / FILE_NAME, encode_record(replace(record, environment={}, config={})))


def _expand(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each run of a sweep; raise `ConfigurationError` for one that the study sets itself."""
    runs = expand_sweep(overrides)
    reserved = _RESERVED_KEYS & {word.split("=")[0].lstrip("+") for word in runs[0]}
    if reserved:
        raise ConfigurationError(f"{min(reserved)} is chosen by the study: leave it out.")
    return runs


def _name_tasks(runs: Sequence[Sequence[str]], first_index: int, known: Set[frozenset[str]]) -> list[Task]:
    """Return the runs that are not `known` as tasks, named by number and by the overrides that distinguish them."""
    shared = set.intersection(*map(set, runs))
    added = [run for run in runs if frozenset(run) not in known]
    digits = len(str(first_index + len(added) - 1))
    tasks = []
    for index, run in enumerate(added, start=first_index):
        distinguishing = "-".join(slug(word) for word in run if word not in shared)
        name = f"{index:0{digits}}-{distinguishing}"[:_MAX_NAME_LENGTH].rstrip("-")
        tasks.append(Task(index, name, tuple(run)))
    return tasks


def _validate_all(tasks: Sequence[Task]) -> None:
    """Refuse tasks that no machine could run. Of tasks that differ in nothing but the seed, the first is checked."""
    composer, run_groups = Composer(), set()
    for task in tasks:
        run_group = tuple(override for override in task.overrides if not _PLAIN_SEED.fullmatch(override))
        if run_group not in run_groups:
            _validate(task, composer)
        run_groups.add(run_group)


def _validate(task: Task, composer: Composer) -> None:
    """Refuse a task that no machine could run; which GPU it gets is not known yet."""
    accelerator = [] if task.value("accelerator", "") else ["accelerator=auto"]
    try:
        check_overrides(task.index, task.overrides)
        composition = composer.compose([*accelerator, *task.overrides])
        check_composition(task.index, task.overrides, composition)
        config = validate(composition.node)
        if config.division == "closed":
            closed_division.check_config(config)
    except (RunError, HydraException, OmegaConfBaseException) as error:
        raise ConfigurationError(f"{shlex.join(task.overrides)}: {format_error(error)}") from error

"""The stage that opens a run directory, a new one or that of a run to resume, and records each attempt in it."""

import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from ..config.compose import load_config, to_yaml
from ..config.diff import diff_configs
from ..config.schema import Config
from ..config.validation import run_seed
from ..core.atomic_files import write_atomically
from ..core.errors import ConfigurationError, Exit
from ..core.found_files import parse_yaml, read_config
from ..core.signals import defer_stop
from ..hardware import devices
from ..record import environment
from ..record.acceptance import find_acceptance
from ..record.attempt import Attempt
from ..record.run_dir import RunDir, claim_run_dir, create_run_dir
from ..record.run_record import RunClass, RunRecord
from ..training.clock import boot_id

_CHANGES_SHOWN = 4  # keys in a message


@dataclass(frozen=True)
class OpenRun:
    """A run whose directory is open and locked: what the stages of the launcher share."""

    config: Config
    run_dir: RunDir
    console: Console
    resumes: bool


@contextmanager
def open_run_dir(config: Config, console: Console) -> Iterator[OpenRun]:
    """Hold the run directory within the body; a new one is removed again if the body fails before training began."""
    new_run_dir: RunDir | None = None
    with ExitStack() as stack:
        try:
            with defer_stop():  # nothing is left behind of a run that is stopped here
                run_dir, resumes = _find_run_dir(config)
                stack.enter_context(run_dir.locked())
                new_run_dir = None if resumes else run_dir
            yield OpenRun(config, run_dir, console, resumes)
        except BaseException:
            if new_run_dir and not new_run_dir.log.exists():
                new_run_dir.discard()
            raise


@contextmanager
def recorded_attempt(run: OpenRun, startup_seconds: float, overrides: Sequence[str]) -> Iterator[None]:
    """Record that an attempt starts, `startup_seconds` after its command, and the error that ends the body."""
    try:
        _record_start(run, startup_seconds, overrides)
        yield
    except BaseException as error:
        run_dir = run.run_dir
        began = run.resumes or run_dir.log.exists()
        if began and run_dir.path.exists() and run_dir.record().is_running:  # a signal may arrive after the end
            exit_code, sentence = Exit(getattr(error, "exit_code", Exit.FAILURE)), str(error)
            run_dir.update(lambda record: record.ended(exit_code, sentence))
        raise


def _find_run_dir(config: Config) -> tuple[RunDir, bool]:
    """Return the run directory, and whether it holds a run to resume."""
    text, seed = to_yaml(config), run_seed(config)
    if config.resume and config.run_dir and (run_dir := RunDir(Path(config.run_dir).resolve(), seed)).exists:
        run_dir.refuse_special_files()
        if not run_dir.config.exists():
            if run_dir.record() != RunRecord():
                raise ConfigurationError(f"{run_dir.path} has lost its config.yaml: start over in a new run directory.")
            write_atomically(run_dir.config, text)  # its first launcher was killed before it could write this
            return run_dir, True
        changed = diff_configs(read_config(run_dir.config), parse_yaml(text))
        if changed:
            hidden = len(changed) - _CHANGES_SHOWN
            shown = ", ".join(changed[:_CHANGES_SHOWN]) + (f" and {hidden} more" if hidden > 0 else "")
            raise ConfigurationError(
                f"{run_dir.path} was started with another configuration ({shown}): resume it with the same overrides."
            )
        return run_dir, True
    if config.run_dir:
        try:
            run_dir = claim_run_dir(Path(config.run_dir), seed)
        except ConfigurationError:
            if config.resume and RunDir(Path(config.run_dir).resolve(), seed).exists:
                return _find_run_dir(config)  # another process has claimed it since: the lock decides between the two
            raise
    else:
        gpus = f"{config.gpus}x{devices.display_name(config.accelerator.name)}"
        parts = [config.system, config.workload.name, config.recipe.scale, gpus, config.precision.name]
        run_dir = create_run_dir(Path(config.runs_dir), parts, seed)
    try:
        write_atomically(run_dir.config, text)
    except BaseException:
        run_dir.discard()
        raise
    return run_dir, False


def _record_start(run: OpenRun, startup_seconds: float, overrides: Sequence[str]) -> None:
    config, run_dir = run.config, run.run_dir
    run_dir.take_rank_errors()  # of ranks whose launcher was killed before it could read them
    if run.resumes and not run_dir.checkpoint.exists():
        run_dir.start_over()
    if run.resumes:  # limits and places may have changed, but not what the run belongs to
        first = load_config(run_dir.config)  # not resolved: it may be a stranger's
        submission = replace(config.submission, platform=first.submission.platform)
        config = replace(config, system=first.system, submission=submission)
        write_atomically(run_dir.config, to_yaml(config))
    startup = {"configuration": round(startup_seconds, 2)}
    attempt = Attempt(time.time(), platform.node(), os.getpid(), startup, tuple(overrides), boot_id() or "")
    described = environment.describe(run_dir=run_dir.path, data=Path(config.data_dir))
    run_class = RunClass.PROFILED if config.profile.steps else RunClass.CLEAN

    def start_attempt(record: RunRecord) -> RunRecord:
        if not run_dir.checkpoint.exists():  # the run starts over, and its clock with it
            record = replace(record, run_class=run_class, training=None, clock=None, changed=())
        elif record.environment:
            changed = environment.find_changes(record.environment, described)
            record = replace(record, changed=tuple(sorted({*record.changed, *changed})))
        started = record.attempt_started(attempt, described, asdict(config))
        return replace(started, accepted=find_acceptance(described))

    run_dir.update(start_attempt)

"""Run all tasks of a study on this machine: one after another, or side by side on GPUs of their own.

Several machines, or several of these commands, may share the folder of a study: a task that another process runs is
passed over.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from ..config.error_messages import format_error
from ..core.errors import Exit, RunDirLocked, RunError
from ..core.signals import StopSignal
from .batch import Study, Task, TaskProgress
from .rank_pool import RankPool

_POLL_SECONDS = 0.25


def open_tasks(study: Study) -> list[Task]:
    """Return the tasks that wait for an attempt."""
    return [task for task in study.tasks() if study.state(task).progress == TaskProgress.WAITING]


def run_in_turn(study: Study, console: Console, pool: RankPool, gpus: int | None = None) -> Exit:
    """Run all open tasks, or those on `gpus` GPUs; return the first exit code that is not 0, or that of a stop.

    A task that fails does not keep the next ones from running.
    """
    exit_code, tried = Exit.TARGET_REACHED, set[int]()
    while task := next((task for task in open_tasks(study) if _fits(task, gpus) and task.index not in tried), None):
        tried.add(task.index)
        try:
            ended = study.run(task, console, pool)
        except RunDirLocked:  # another process has taken it
            continue
        except (RunError, HydraException, OmegaConfBaseException) as error:
            console.print(f"{task.name}: {format_error(error)}", soft_wrap=True, markup=False, highlight=False)
            ended = Exit(getattr(error, "exit_code", Exit.CONFIGURATION))
        if ended == Exit.STOPPED:
            return ended
        exit_code = exit_code or ended
    return exit_code


def _fits(task: Task, gpus: int | None) -> bool:
    return gpus is None or task.num_gpus == gpus


def run_side_by_side(study: Path, attempts: int, tasks: Sequence[Task], devices: Sequence[str], variable: str) -> Exit:
    """Run tasks in processes that see some of the `devices` each, by the environment variable `variable`.

    Tasks on equal numbers of GPUs run together. A stop signal is passed on. Returns the first exit code that is not 0.
    """
    exit_code = Exit.TARGET_REACHED
    with StopSignal().listen_for_children() as stop:
        for gpus in sorted({task.num_gpus for task in tasks}):
            count = sum(task.num_gpus == gpus for task in tasks)
            environments = [{variable: ",".join(part)} for part in _parts(devices, gpus, count)]
            command = [sys.executable, "-P", "-m", "timetrial", "batch", "run", str(study), f"--attempts={attempts}"]
            codes = _run_processes([*command, f"--gpus={gpus}"], environments)
            exit_code = exit_code or Exit(next((code for code in codes if code), Exit.TARGET_REACHED))
            if stop.name:
                return Exit.STOPPED
    return exit_code


def _parts(devices: Sequence[str], size: int, most: int) -> Iterator[Sequence[str]]:
    """Yield up to `most` groups of `size` devices, or of all if there are fewer; a task on the CPU takes one."""
    size = min(max(size, 1), len(devices))
    for start in range(0, min(len(devices) - size + 1, most * size), size):
        yield devices[start : start + size]


def _run_processes(command: Sequence[str], environments: Sequence[Mapping[str, str]]) -> list[int]:
    """Run the command once in each environment, at once, and return the exit codes."""
    with ExitStack() as closing:
        processes = [
            closing.enter_context(subprocess.Popen(command, env=os.environ | environment))
            for environment in environments
        ]
        while any(process.poll() is None for process in processes):
            time.sleep(_POLL_SECONDS)
        return [process.returncode for process in processes]

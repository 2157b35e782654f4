"""Starts the ranks of one resolved configuration, waits for them, and closes the run: status, verdict, table."""

import logging
import os
import platform
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from timetrial.runner import accelerator, compliance, config, run_folder, summary, system, throughput
from timetrial.runner.config import Config
from timetrial.runner.errors import ConfigurationError, Exit, error_of
from timetrial.runner.progress import Lines
from timetrial.runner.run_folder import RunFolder, as_json, write_atomically
from timetrial.runner.worker import work

_STATES = {
    Exit.TARGET_REACHED: "target reached",
    Exit.TARGET_NOT_REACHED: "target not reached",
    Exit.TIME_LIMIT: "time limit",
    Exit.STOPPED: "stopped",
    Exit.OUT_OF_MEMORY: "out of memory",
    Exit.DIVERGED: "diverged",
    Exit.LOST_RANK: "lost rank",
    Exit.HARDWARE: "hardware fault",
    Exit.NOT_COMPLIANT: "log not compliant",
}
_WORKER = "timetrial.runner.worker"
_GLANCE_SECONDS = 1.0
# With these a run never began: what was made for it is removed again.
_NEVER_BEGAN = (Exit.CONFIGURATION, Exit.DATA, Exit.DEVICE)
# A resume has nothing to do after these.
_FINISHED = (Exit.TARGET_REACHED, Exit.TARGET_NOT_REACHED, Exit.NOT_COMPLIANT)


def launch(node: DictConfig, console: Console) -> tuple[Exit, RunFolder]:
    """Runs the composed configuration once; raises `RunError` for what never began."""
    settings = config.check(node)
    accelerator.require(settings.accelerator.name, settings.gpus)
    folder, begun = _open_folder(node, settings)
    with folder.held():
        status = folder.status()
        if begun and status.get("exit_code") in _FINISHED:
            console.print(f"{folder.path} is finished already: nothing to do.", soft_wrap=True, markup=False)
            return Exit(status["exit_code"]), folder
        try:
            if begun and not folder.checkpoint.exists():
                status["restarts"] = status.get("restarts", 0) + 1  # an attempt that left nothing to go on from
            now = {"state": "running", "pid": os.getpid(), "host": platform.node(), "error": "", "exit_code": None}
            folder.update_status(**now, restarts=status.get("restarts", 0))
            write_atomically(folder.system, as_json(system.describe()))
            _make_ready(settings, console)
            code = (
                work(settings, folder, console)
                if settings.launcher.name == "inline"
                else _start_ranks(settings, folder)
            )
            return _close(settings, folder, console, code), folder
        except BaseException as error:
            if not begun and not folder.log.exists():
                folder.discard()
            elif folder.path.exists():
                code = getattr(error, "exit_code", Exit.OTHER)
                folder.update_status(exit_code=int(code), state=_STATES.get(code, "failed"), error=str(error))
            raise


def _make_ready(settings: Config, console: Console) -> None:
    """What the data want done once before the first run on them, where a person can watch it."""
    _, data = config.classes(settings)
    if make_ready := getattr(data, "make_ready", None):
        with Lines(console) as lines:
            make_ready(config.settings_of(data, settings.recipe.data, "recipe.data"), lines)


def _open_folder(node: DictConfig, settings: Config) -> tuple[RunFolder, bool]:
    """The run's folder, and whether it holds a begun run that is to be continued."""
    text = config.as_yaml(node)
    if settings.resume and settings.run_dir and Path(settings.run_dir, "status.json").exists():
        folder = RunFolder(Path(settings.run_dir).resolve(), settings.seed)
        if not folder.config.exists():
            raise ConfigurationError(f"{folder.path} has lost its config.yaml: start over in a new folder.")
        differing = config.differences(OmegaConf.load(folder.config), OmegaConf.create(text))
        if differing:
            raise ConfigurationError(
                f"{folder.path} was begun with another configuration ({', '.join(differing)}): resume it unchanged."
            )
        return folder, True
    if settings.run_dir:
        folder = run_folder.claim(Path(settings.run_dir), settings.seed)
    else:
        card = f"{settings.gpus}x{accelerator.label(settings.accelerator.name)}"
        parts = [settings.system, settings.workload.name, settings.scale.name, card, settings.precision.name]
        folder = run_folder.create(Path(settings.runs), parts, settings.seed)
    try:
        write_atomically(folder.config, text)
    except BaseException:
        folder.discard()
        raise
    return folder, False


def _start_ranks(settings: Config, folder: RunFolder) -> Exit:
    """One process a rank through torch's elastic agent: a rank that dies takes the others with it."""
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what it would say stands in status.json in plain words
    logs = tempfile.TemporaryDirectory()  # the agent wants a place for logs that our ranks keep elsewhere
    setup = LaunchConfig(
        logs_specs=DefaultLogsSpecs(log_dir=logs.name),
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=config.ranks(settings),
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        signals_to_handle="SIGTERM,SIGINT,SIGUSR1",
    )
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    try:
        with _no_rank_standing_still(folder, settings.launcher.hang_timeout_seconds):
            elastic_launch(setup, sys.executable)("-P", "-m", _WORKER, str(folder.path))
        return Exit.OTHER
    except ChildFailedError as error:
        return _cause(folder, {rank: failure.exitcode for rank, failure in error.failures.items()})
    except SignalException:
        return Exit.STOPPED
    finally:
        logs.cleanup()
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def _no_rank_standing_still(folder: RunFolder, patience: float) -> Iterator[None]:
    """Ends the ranks once one of them has been stopped (SIGSTOP, a suspended job) for `patience` seconds.

    A dead rank breaks the others' connections; a stopped one does not, and outside of training they wait for it long.
    """
    over = threading.Event()

    def watch() -> None:
        seconds: dict[int, float] = {}
        while not over.wait(_GLANCE_SECONDS):
            ranks = _ranks()
            for pid, (rank, status) in ranks.items():
                seconds[pid] = seconds.get(pid, 0.0) + _GLANCE_SECONDS if status == psutil.STATUS_STOPPED else 0.0
                if seconds[pid] < patience:
                    continue
                words = f"Rank {rank} was stopped for {patience:g} s (process {pid}): see what stopped it, then resume."
                folder.write_error(rank, Exit.LOST_RANK, words)
                for process in ranks:
                    os.kill(process, signal.SIGKILL)
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _ranks() -> dict[int, tuple[int, str]]:
    """Process id -> (rank, status) of the ranks that this process has started."""
    found: dict[int, tuple[int, str]] = {}
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if _WORKER in child.cmdline():
                found[child.pid] = (int(child.environ()["RANK"]), child.status())
    return found


def _state(settings: Config, code: Exit) -> str:
    """The word for how the run ended."""
    return "measured" if settings.throughput.steps and code == Exit.TARGET_REACHED else _STATES.get(code, "failed")


def _cause(folder: RunFolder, exit_codes: dict[int, int]) -> Exit:
    """Why ranks failed: the earliest words that one left, else what the operating system says of the first."""
    if not list(folder.path.glob("error_*.json")):
        rank, code = next(iter(exit_codes.items()))
        how = (
            f"was killed by signal {-code} (often the kernel's, out of host memory)"
            if code < 0
            else f"ended with code {code}"
        )
        folder.write_error(
            rank, Exit.LOST_RANK, f"Rank {rank} {how}: look into stderr_{rank}.txt in the run folder, then run again."
        )
    return Exit.OTHER


def _close(settings: Config, folder: RunFolder, console: Console, code: Exit) -> Exit:
    """Settles exit code, state and verdict in status.json and prints the result."""
    status, words = folder.status(), folder.take_errors()
    if words:
        code, sentence = Exit(words[0]["exit_code"]), words[0]["error"]
        if code in _NEVER_BEGAN and "run_started" not in status:
            folder.discard()
            raise error_of(code, sentence)
    elif status.get("exit_code") is not None:
        code, sentence = Exit(status["exit_code"]), status["error"]
    else:
        stopped = "Stopped while it was being prepared: run it again."
        sentence = stopped if code == Exit.STOPPED else "The run ended without a word: look into stderr_0.txt there."
    entries: dict[str, Any] = {"error": sentence, "finished": time.time(), "class": status.get("class", "clean")}
    if folder.log.exists():
        verdict = compliance.check(folder.log)
        entries["verdict"] = {"compliant": verdict.compliant, "rules": verdict.rules, "problems": verdict.problems}
        if code == Exit.TARGET_REACHED and not verdict.compliant:
            code = Exit.NOT_COMPLIANT
    status = folder.update_status(**entries, exit_code=int(code), state=_state(settings, code))
    cards = f"{settings.gpus} x {accelerator.label(settings.accelerator.name)}"
    recipe = f"{settings.workload.title} {settings.scale.name}"
    title = f"{recipe}, {cards}, {settings.precision.name}, seed {settings.seed}"
    (throughput if settings.throughput.steps else summary).show(console, title, status, folder)
    if code == Exit.STOPPED and not settings.throughput.steps:
        console.print("To continue: the same command with ", end="")
        console.print(f"run_dir={folder.path} resume=true", style="bold", soft_wrap=True, markup=False)
    return code

"""Starts the ranks of one resolved configuration, waits for them, and closes the run: status, verdict, table."""

import logging
import os
import platform
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from ..callbacks import summary, throughput
from ..callbacks.progress import Lines
from ..config import schema
from ..config.diff import diff_configs
from ..config.schema import Config
from ..core.atomic_files import to_json, write_atomically
from ..core.errors import ConfigurationError, Exit, LostRank, error_of
from ..core.signals import StopSignal
from ..hardware import devices
from ..mlperf import compliance
from ..record import energy, environment, run_dir
from ..record.run_dir import RunDir
from . import rendezvous, staging
from .rendezvous import Meeting
from .worker import work

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
_WORKER = "timetrial.runner.launch.worker"
_GLANCE_SECONDS = 1.0
_LAST_WORDS_SECONDS = 5.0  # in which the other ranks may say what they know of a failure
# With these a run never began: what was made for it is removed again.
_NEVER_BEGAN = (Exit.CONFIGURATION, Exit.DATA, Exit.DEVICE)
# A resume has nothing to do after these.
_FINISHED = (Exit.TARGET_REACHED, Exit.TARGET_NOT_REACHED, Exit.NOT_COMPLIANT)


def launch(node: DictConfig, console: Console) -> tuple[Exit, RunDir]:
    """Runs the composed configuration once; raises `RunError` for what never began."""
    settings = schema.check(node)
    devices.require(settings.accelerator.name, settings.gpus // settings.launcher.nodes)
    if settings.launcher.nodes > 1 and not rendezvous.is_first():
        return _join(settings, console)
    folder, begun = _open_folder(node, settings)
    with folder.held():
        status = folder.status()
        if begun and status.get("exit_code") in _FINISHED:
            if status.get("state") == "running":  # its launcher was killed after training, before it had judged the log
                return _close(settings, folder, console, Exit.FAILURE), folder
            console.print(f"{folder.path} is finished already: nothing to do.", soft_wrap=True, markup=False)
            return Exit(status["exit_code"]), folder
        try:
            _note_the_start(node, folder, begun)
            _make_ready(settings, folder, console)
            with StopSignal().listen() as stop:  # to the very end: a run that is being closed needs no stop
                code = _run(settings, folder, console, stop)
                return _close(settings, folder, console, code), folder
        except BaseException as error:
            if not begun and not folder.log.exists():
                folder.discard()
            elif folder.path.exists():
                code = getattr(error, "exit_code", Exit.FAILURE)
                folder.update_status(exit_code=int(code), state=_STATES.get(code, "failed"), error=str(error))
            raise


def _note_the_start(node: DictConfig, folder: RunDir, begun: bool) -> None:
    """What the folder says of an attempt from its first moment on."""
    folder.take_errors()  # of ranks whose launcher was killed before it could read them
    before = folder.status()
    entries: dict[str, Any] = {"state": "running", "error": "", "exit_code": None}
    entries |= {"pid": os.getpid(), "host": platform.node(), "restarts": before.get("restarts", 0) + int(begun)}
    if not folder.checkpoint.exists():  # it starts over, and its clock with it
        entries |= {"class": "clean", "lost_seconds": 0.0}
    folder.update_status(**entries)
    described = environment.describe(run_folder=folder.path, data=Path(str(node.data_dir)))
    write_atomically(folder.system, to_json(described | {"peer_to_peer": bool(node.peer_to_peer)}))
    if begun:  # limits and places may differ from the last time, but not where the run belongs
        first = OmegaConf.load(folder.config)
        belongs = {"system": first.system, "submission": {"platform": first.submission.platform}}
        write_atomically(folder.config, schema.as_yaml(OmegaConf.merge(node, belongs)))  # type: ignore[arg-type]


def _run(settings: Config, folder: RunDir, console: Console, stop: StopSignal) -> Exit:
    """Trains, in this process or in one a rank."""
    if settings.launcher.name == "inline":
        return work(settings, folder, console, stop)
    with rendezvous.opened(settings.launcher.nodes, folder) as meeting:
        return _start_ranks(settings, folder, meeting, stop)


def _join(settings: Config, console: Console) -> tuple[Exit, RunDir]:
    """This node's ranks of a run that the first node keeps."""
    assert settings.run_dir
    folder = RunDir(Path(settings.run_dir).resolve(), settings.seed)
    _stage(settings, console)
    meeting = rendezvous.announced(folder)
    with StopSignal().listen() as stop:
        with suppress(LostRank):  # the first node finds that out as well
            _start_ranks(settings, folder, meeting, stop)
        rendezvous.leave(meeting)
        status = rendezvous.wait_for_the_end(folder, meeting)
    return Exit(status.get("exit_code", Exit.FAILURE)), folder


def _stage(settings: Config, console: Console) -> dict[str, float]:
    if settings.staging_dir is None:
        return {}
    return staging.stage(settings.recipe.data, Path(settings.data_dir), Path(settings.staging_dir), console)


def _make_ready(settings: Config, folder: RunDir, console: Console) -> None:
    """What the data want done before a run on them, where a person can watch it and no clock runs."""
    if settings.staging_dir is not None:
        folder.update_status(staged=_stage(settings, console))
    _, data = schema.classes(settings)
    if prepare_data := getattr(data, "prepare_data", None):
        with Lines(console) as lines:
            prepare_data(schema.data_settings(settings, data), lines)


def _open_folder(node: DictConfig, settings: Config) -> tuple[RunDir, bool]:
    """The run's folder, and whether it holds a begun run that is to be continued."""
    text = schema.as_yaml(node)
    if settings.resume and settings.run_dir and Path(settings.run_dir, "status.json").exists():
        folder = RunDir(Path(settings.run_dir).resolve(), settings.seed)
        if not folder.config.exists():
            if folder.status():
                raise ConfigurationError(f"{folder.path} has lost its schema.yaml: start over in a new folder.")
            write_atomically(folder.config, text)  # who claimed the folder was killed before it could say what for
            return folder, False
        differing = diff_configs(OmegaConf.load(folder.config), OmegaConf.create(text))
        if differing:
            raise ConfigurationError(
                f"{folder.path} was begun with another configuration ({', '.join(differing)}): resume it unchanged."
            )
        return folder, True
    if settings.run_dir:
        folder = run_dir.claim(Path(settings.run_dir), settings.seed)
    else:
        card = f"{settings.gpus}x{devices.label(settings.accelerator.name)}"
        parts = [settings.system, settings.workload.name, settings.scale.name, card, settings.precision.name]
        folder = run_dir.create(Path(settings.runs), parts, settings.seed)
    try:
        write_atomically(folder.config, text)
    except BaseException:
        folder.discard()
        raise
    return folder, False


def _start_ranks(settings: Config, folder: RunDir, meeting: Meeting, stop: StopSignal) -> Exit:
    """One process a rank of this node through torch's elastic agent: a rank that dies takes the others with it."""
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what it would say stands in status.json in plain words
    logs = tempfile.TemporaryDirectory()  # the agent wants a place for logs that our ranks keep elsewhere
    setup = LaunchConfig(
        logs_specs=DefaultLogsSpecs(log_dir=logs.name),
        nproc_per_node=schema.ranks(settings) // meeting.nodes,
        max_restarts=0,
        signals_to_handle="SIGQUIT",  # the others are ours: the agent would kill ranks that take long to save
        **meeting.settings(),
    )
    try:
        with _watched(folder, settings.launcher.hang_timeout_seconds, stop):
            elastic_launch(setup, sys.executable)("-P", "-m", _WORKER, str(folder.path))
        return Exit.FAILURE
    except ChildFailedError as error:
        if stop.name:  # before the rank could listen
            return Exit.STOPPED
        return _cause(folder, {rank: failure.exitcode for rank, failure in error.failures.items()})
    except RendezvousError as error:
        apart = "Not all nodes of the run came together: see the others' output"
        if meeting.nodes == 1:
            apart = "The ranks cannot meet on localhost: see that the loopback interface is up"
        raise LostRank(f"{apart}, then run again.") from error
    finally:
        logs.cleanup()


@contextmanager
def _watched(folder: RunDir, patience: float, stop: StopSignal) -> Iterator[None]:
    """Tells the ranks when the run is to stop, and ends them when one has failed or stands still.

    A rank that has said why it failed leaves the others waiting for it. One that was stopped (SIGSTOP, a suspended job)
    does so too, outside of training long: it may stand still for `patience` seconds.
    """
    over = threading.Event()

    def watch() -> None:
        seconds: dict[int, float] = {}
        told: set[int] = set()
        failed = 0.0
        while not over.wait(_GLANCE_SECONDS):
            ranks = _ranks()
            if stop.name:
                _send(signal.Signals[stop.name], ranks.keys() - told)
                told |= ranks.keys()
            failed += _GLANCE_SECONDS if folder.has_errors() else 0.0
            if failed >= _LAST_WORDS_SECONDS:
                _send(signal.SIGKILL, ranks)
                return
            for pid, (rank, status) in ranks.items():
                seconds[pid] = seconds.get(pid, 0.0) + _GLANCE_SECONDS if status == psutil.STATUS_STOPPED else 0.0
                if seconds[pid] < patience:
                    continue
                words = f"Rank {rank} was stopped for {patience:g} s (process {pid}): see what stopped it, then resume."
                folder.write_error(rank, Exit.LOST_RANK, words)
                _send(signal.SIGKILL, ranks)
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _send(number: signal.Signals, processes: Iterable[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


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


def _cause(folder: RunDir, exit_codes: dict[int, int]) -> Exit:
    """Why ranks failed: the earliest words that one left, else what the operating system says of the first."""
    if not folder.has_errors():
        rank, code = next(iter(exit_codes.items()))
        how = (
            f"was killed by signal {-code} (often the kernel's, out of host memory)"
            if code < 0
            else f"ended with code {code}"
        )
        folder.write_error(
            rank, Exit.LOST_RANK, f"Rank {rank} {how}: look into stderr_{rank}.txt in the run folder, then run again."
        )
    return Exit.FAILURE


def _close(settings: Config, folder: RunDir, console: Console, code: Exit) -> Exit:
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
    timed = sum(block["samples"] for block in status.get("blocks", ()) if not block["past_target"])
    price = settings.gpus * settings.usd_per_gpu_hour if settings.usd_per_gpu_hour else None
    cards_expected = 0 if settings.accelerator.name == "cpu" else settings.gpus
    entries |= energy.judge(folder.path, status.get("result") or {}, timed, price, cards_expected)
    status = folder.update_status(**entries, exit_code=int(code), state=_state(settings, code))
    cards = f"{settings.gpus} x {devices.label(settings.accelerator.name)}"
    cards += "" if settings.peer_to_peer else " without peer-to-peer"
    recipe = f"{settings.workload.title} {settings.scale.name}"
    title = f"{recipe}, {cards}, {settings.precision.name}, seed {settings.seed}"
    (throughput if settings.throughput.steps else summary).show(console, title, status, folder)
    if code == Exit.STOPPED and not settings.throughput.steps:
        console.print("To continue: the same command with ", end="")
        console.print(f"run_dir={folder.path} resume=true", style="bold", soft_wrap=True, markup=False)
    return code

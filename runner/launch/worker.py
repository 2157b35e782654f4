"""The process of a rank: join the others, train or measure, and record how that ended."""

import atexit
import gc
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import torch
from rich.console import Console

from ..callbacks import telemetry
from ..config.compose import load_config
from ..config.schema import Config
from ..config.validation import run_seed
from ..core import execution_paths
from ..core.errors import Exit, RunError
from ..core.signals import StopSignal, signal_when_parent_ends
from ..hardware import devices
from ..hardware.error_translation import to_run_error
from ..hardware.sensors import open_sensors
from ..record.run_dir import RankError, RunDir
from ..training import distributed
from ..training.checkpoint import load_checkpoint
from ..training.clock import start_clock
from ..training.events import Observer
from . import build_engine
from .measure_throughput import measure_throughput
from .rank import Rank
from .rank_pool import LAUNCHER_PID, wait_for_run
from .train import train

_COMPLETE = (Exit.TARGET_REACHED, Exit.TARGET_NOT_REACHED)
_RESULTS = (*_COMPLETE, Exit.STOPPED, Exit.TIME_LIMIT)


def run_rank(config: Config, run_dir: RunDir, console: Console, stop: StopSignal) -> Exit:
    """Run this rank to its end; an error is left in the run directory for the launcher."""
    try:
        return _run(config, run_dir, console, stop)
    except Exception as error:
        if not isinstance(error, RunError):
            traceback.print_exc()
        known = to_run_error(error)
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        sentence = str(
            known or f"{type(error).__name__} at {where}: {error} (this is a defect of timetrial: please report it)."
        )
        exit_code = known.exit_code if known else Exit.FAILURE
        try:
            run_dir.write_rank_error(RankError(int(os.environ.get("RANK", "0")), int(exit_code), sentence))
        except RunError:
            console.print(sentence, soft_wrap=True, markup=False)
        return exit_code


def _run(config: Config, run_dir: RunDir, console: Console, stop: StopSignal) -> Exit:
    """Initialize off the clock, then measure or train, in the order of MLPerf's rules."""
    execution_paths.forget()
    device = devices.select_device(config.accelerator.name, int(os.environ.get("LOCAL_RANK", "0")))
    if config.accelerator.threads is not None:
        torch.set_num_threads(config.accelerator.threads)
    checkpoint = load_checkpoint(run_dir.checkpoint) if run_dir.checkpoint.exists() else None
    if checkpoint and checkpoint["exit_code"] is not None:  # killed after the end, before the record said so
        exit_code = Exit(checkpoint["exit_code"])
        if int(os.environ.get("RANK", "0")) == 0:
            run_dir.update(lambda record: record.training_ended(exit_code, ""))
        return exit_code
    clock_lead = start_clock(checkpoint["clock"] if checkpoint else None)
    hang_timeout = config.launcher.hang_timeout_seconds
    with distributed.join_world(device, hang_timeout, peer_to_peer=config.peer_to_peer) as world:
        rank = Rank(config, run_dir, console, stop, world, device)
        with _telemetry(rank) as telemetry_observers:
            if config.throughput.steps:
                return measure_throughput(rank, telemetry_observers)
            return train(rank, telemetry_observers, checkpoint, clock_lead)


@contextmanager
def _telemetry(rank: Rank) -> Iterator[list[Observer]]:
    """Yield the observer that samples this node's GPUs and host, on the first rank of each node."""
    config, world = rank.config, rank.world
    every_seconds, nodes = config.telemetry.every_seconds, config.launcher.nodes
    ranks = world.node_processes(nodes) if every_seconds else []
    if not every_seconds or world.local_rank:
        yield []
        return
    num_gpus = 0 if config.accelerator.name == "cpu" else config.gpus // nodes
    path = telemetry.telemetry_path(rank.run_dir.path, node=world.rank // (world.size // nodes))
    launcher_pid = os.getpid() if config.launcher.name == "inline" else int(os.environ[LAUNCHER_PID])
    sampler = telemetry.TelemetrySampler(path, open_sensors(num_gpus, ranks), every_seconds, launcher_pid)
    try:
        yield [sampler]
    finally:
        sampler.close()


def _stop_with_the_launcher() -> None:
    """Let this rank be stopped when its launcher is killed."""
    signal_when_parent_ends(signal.SIGTERM)
    if os.getppid() != int(os.environ[LAUNCHER_PID]):  # it was killed before the kernel knew
        sys.exit(int(Exit.STOPPED))


def main() -> None:
    """Run one rank, for the launcher that started this process, or the ranks of several runs, one after the other."""
    _stop_with_the_launcher()
    assignment = wait_for_run()
    gc.freeze()  # what was imported; collections were off until here
    gc.enable()
    terminal = os.fdopen(os.dup(2), "w")
    while True:
        exit_code = _run_in(assignment.run_dir, terminal)
        # Memory is freed while the launcher still watches this process.
        if not assignment.setting or exit_code not in _COMPLETE or not _free_run():
            break
        assignment.end(int(Exit.TARGET_REACHED))
        if (following := assignment.wait_for_next()) is None:
            break
        assignment = following
    if exit_code in _RESULTS:
        atexit._run_exitfuncs()  # ends the workers of loaders
        exit_code = Exit.TARGET_REACHED
    _flush(terminal)
    # At once: work queued on the device may wait for ranks that never come, and to free every object takes a second.
    os._exit(int(exit_code))


def _run_in(path: Path, terminal: TextIO) -> Exit:
    """Run the rank of a run directory, which keeps what it prints."""
    rank = int(os.environ["RANK"])
    for number, name in ((1, "stdout"), (2, "stderr")):
        with open(path / f"{name}_{rank}.txt", "ab") as file:
            os.dup2(file.fileno(), number)
    config = load_config(path / "config.yaml")
    run_dir = RunDir(path, run_seed(config))
    # The launcher may repeat a signal that the batch system has sent to all processes.
    with run_dir.locked_by_rank(), StopSignal().listen(ignore_after=True) as stop:
        exit_code = run_rank(config, run_dir, Console(file=terminal), stop)
    _flush(terminal)
    return exit_code


def _free_run() -> bool:
    """Free what a run made; return False if not all of it is gone, which would add up over runs."""
    gc.unfreeze()
    for _ in range(2):  # finalizers leave garbage of their own
        gc.collect()
    is_free = not build_engine.built_engines
    if is_free:
        devices.release_cached_memory()
        gc.freeze()
    return is_free


def _flush(terminal: TextIO) -> None:
    for stream in (sys.stdout, sys.stderr, terminal):
        stream.flush()

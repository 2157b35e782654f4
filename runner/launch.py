"""Starts the ranks of one resolved configuration, waits for them, and closes the run: status, verdict, table."""

import logging
import os
import platform
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from timetrial.runner import accelerator, compliance, config, run_folder, summary, system
from timetrial.runner.config import Config
from timetrial.runner.errors import ConfigurationError, Exit, error_of
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
# With these a run never began: what was made for it is removed again.
_NEVER_BEGAN = (Exit.CONFIGURATION, Exit.DATA, Exit.DEVICE)


def launch(node: DictConfig, console: Console) -> tuple[Exit, RunFolder]:
    """Runs the composed configuration once; raises `RunError` for what never began."""
    settings = config.check(node)
    accelerator.require(settings.accelerator.name, settings.gpus)
    folder, begun = _open_folder(node, settings)
    if begun and folder.status().get("exit_code") in (Exit.TARGET_REACHED, Exit.TARGET_NOT_REACHED):
        console.print(f"{folder.path} is finished already: nothing to do.", soft_wrap=True)
        return Exit(folder.status()["exit_code"]), folder
    try:
        folder.update_status(state="running", pid=os.getpid(), host=platform.node(), error="", exit_code=None)
        write_atomically(folder.system, as_json(system.describe()))
        code = work(settings, folder, console) if settings.launcher.name == "inline" else _start_ranks(settings, folder)
        return _close(settings, folder, console, code), folder
    except BaseException:
        if not begun and not folder.log.exists():
            folder.discard()
        raise


def _open_folder(node: DictConfig, settings: Config) -> tuple[RunFolder, bool]:
    """The run's folder, and whether it holds a begun run that is to be continued."""
    text = config.as_yaml(node)
    if settings.resume and settings.run_dir and Path(settings.run_dir, "config.yaml").exists():
        folder = RunFolder(Path(settings.run_dir).resolve(), settings.seed)
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
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what it would say stands in status.json in plain words
    setup = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=settings.gpus,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        signals_to_handle="SIGTERM,SIGINT,SIGUSR1",
    )
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    try:
        elastic_launch(setup, sys.executable)("-P", "-m", "timetrial.runner.worker", str(folder.path))
        return Exit.OTHER
    except ChildFailedError as error:
        return _cause(folder, {rank: failure.exitcode for rank, failure in error.failures.items()})
    except SignalException:
        return Exit.STOPPED
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


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
        sentence = "The run ended without a word: look into stderr_0.txt in the run folder."
    entries: dict[str, Any] = {"error": sentence, "finished": time.time(), "class": status.get("class", "clean")}
    if folder.log.exists():
        verdict = compliance.check(folder.log)
        entries["verdict"] = {"compliant": verdict.compliant, "rules": verdict.rules, "problems": verdict.problems}
        if code == Exit.TARGET_REACHED and not verdict.compliant:
            code = Exit.NOT_COMPLIANT
    status = folder.update_status(**entries, exit_code=int(code), state=_STATES.get(code, "failed"))
    cards = f"{settings.gpus} x {accelerator.label(settings.accelerator.name)}"
    recipe = f"{settings.workload.title} {settings.scale.name}"
    title = f"{recipe}, {cards}, {settings.precision.name}, seed {settings.seed}"
    summary.show(console, title, status, folder)
    if code == Exit.STOPPED:
        console.print("To continue: the same command with ", end="")
        console.print(f"run_dir={folder.path} resume=true", style="bold", soft_wrap=True)
    return code

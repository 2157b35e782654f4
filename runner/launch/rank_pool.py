"""The processes of this node's ranks, and the clock of the command.

A rank's process starts with the command, so that its imports run beside those of the launcher. It then waits for the
launcher to say what to run. In a sweep, it forks a rank for each run, or for several (fork_server.py). This module
imports nothing that takes long.
"""

import json
import os
import pkgutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .fork_server import ForkedRank, ForkServer, RankChannel, fork_rank

LAUNCHER_PID = "TIMETRIAL_LAUNCHER_PID"
RANK_STARTED = "TIMETRIAL_RANK_STARTED"  # when the launcher let a rank begin, in seconds since the epoch
_WORKER = "timetrial.runner.launch.worker"
RankProcess = subprocess.Popen[bytes] | ForkedRank


class RankPool:
    """Ranks that wait for a run, and the time since the command, or the present run of a sweep, began.

    `main` makes one for each command and passes it down to the run; `for_sweep` keeps processes that fork the ranks of
    one run after another. As a context manager, it ends ranks that still wait after the body.
    """

    def __init__(self, *, for_sweep: bool = False) -> None:
        self._began = time.time()
        self._waiting: list[subprocess.Popen[bytes]] = []
        self._for_sweep = for_sweep
        self._servers: list[ForkServer] = []

    def __enter__(self) -> "RankPool":
        return self

    def __exit__(self, *exception: object) -> None:
        while self._waiting:
            _end(self._waiting.pop())
        while self._servers:
            self._servers.pop().close()

    def __reduce__(self) -> tuple[type["RankPool"], tuple[()]]:
        """Let a job of a sweep in another process have a pool of its own: ranks cannot move there."""
        return RankPool, ()

    def start_waiting(self, count: int) -> None:
        """Start ranks that wait for a run; `spawn_rank` uses them first."""
        for _ in range(count):
            if self._for_sweep:
                self._start_server()
            else:
                self._waiting.append(_start_process())

    def import_modules(self, names: Iterable[str]) -> None:
        """Let the waiting ranks import modules that the run will need, and call those named "module:function"."""
        message = {"modules": [*names]}
        for process in self._waiting:
            _tell(process, message)
        for server in self._servers:
            server.import_modules(message["modules"])

    def spawn_rank(self, run_dir: Path, variables: Mapping[str, str], setting: str = "") -> RankProcess:
        """Let a waiting rank, or a new one, run with these environment variables beside those of the launcher.

        In a sweep, runs of one `setting` that is not empty take the same process, one after the other.
        """
        environment = os.environ | {LAUNCHER_PID: str(os.getpid()), **variables, RANK_STARTED: str(time.time())}
        message: dict[str, Any] = {"run_dir": str(run_dir), "environment": environment, "folder": os.getcwd()}
        if self._for_sweep:
            message["setting"] = setting
            idle = [server for server in self._servers if server.is_idle]
            idle.sort(key=lambda server: server.setting != setting)
            for server in idle[1:]:  # whose ranks would hold memory of a GPU that is measured
                server.end_idle_rank()
            ranks = (server.fork(message) for server in idle)
            return next((rank for rank in ranks if rank.was_forked), None) or self._start_server().fork(message)
        while self._waiting:
            process = self._waiting.pop()
            if process.poll() is None and _let_run(process, message):
                return process
            _end(process)
        process = _start_process()
        _let_run(process, message)
        return process

    def _start_server(self) -> ForkServer:
        self._servers.append(ForkServer(*_command()))
        return self._servers[-1]

    def seconds(self) -> float:
        """Return the seconds since the command, or the present run of a sweep, began."""
        return time.time() - self._began

    def restart_clock(self) -> None:
        """Let the next run of a sweep begin now."""
        self._began = time.time()


@dataclass
class Assignment:
    """The run that a rank was given."""

    run_dir: Path
    setting: str
    """What runs have in common that this process can make after it; empty: it makes none."""
    _channel: RankChannel | None

    def end(self, exit_code: int) -> None:
        """Report how the run ended, where the process stays for others."""
        assert self._channel is not None
        self._channel.end_run(exit_code)

    def wait_for_next(self) -> "Assignment | None":
        """Return the next run of this process, None if there is none."""
        assert self._channel is not None
        while (message := self._channel.read()) is not None and "modules" in message:
            _import(message["modules"])
        if message is None or "run_dir" not in message:
            return None
        self._channel.begin_run()
        return _accept(message, self._channel)


def wait_for_run() -> Assignment:
    """Return the run that the launcher names, and take over its environment variables and working directory.

    Ends this process if the launcher needs no rank.
    """
    for line in sys.stdin:
        message = json.loads(line)
        if "modules" in message:
            _import(message["modules"])
        elif "fork" in message:
            if (channel := fork_rank()) is not None:
                return _accept(message, channel)
        elif "run_dir" in message:
            return _accept(message, None)
    sys.exit(0)


def _accept(message: Mapping[str, Any], channel: RankChannel | None) -> Assignment:
    os.environ.clear()
    os.environ.update(message["environment"])
    os.chdir(message["folder"])
    return Assignment(Path(message["run_dir"]), message.get("setting", ""), channel)


def _import(names: Iterable[str]) -> None:
    """Import modules and call functions; what they print, and their errors, are the launcher's, which uses them too."""
    terminal = [os.dup(number) for number in (1, 2)]
    with open(os.devnull, "ab") as nowhere:
        for number in (1, 2):
            os.dup2(nowhere.fileno(), number)
    for name in names:
        with suppress(Exception):
            if callable(found := pkgutil.resolve_name(name)):
                found()
    sys.stdout.flush()
    for number, original in zip((1, 2), terminal, strict=True):
        os.dup2(original, number)
        os.close(original)


def _command() -> tuple[list[str], dict[str, str]]:
    """Return the command of a process that waits for a run, and its environment."""
    # Ctrl-C ends a rank that still imports without a traceback. Imports leave no garbage worth collecting.
    program = "import gc, signal; gc.disable(); signal.signal(signal.SIGINT, signal.SIG_DFL); "
    program += f"from {_WORKER} import main; main()"
    command = [sys.executable, "-P", "-c", program]
    return command, os.environ | {LAUNCHER_PID: str(os.getpid())}


def _start_process() -> "subprocess.Popen[bytes]":
    command, environment = _command()
    # In a session of its own, a rank receives Ctrl-C from the launcher alone.
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, start_new_session=True)


def _let_run(process: "subprocess.Popen[bytes]", message: Mapping[str, object]) -> bool:
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:
        return _tell(process, message)
    return False


def _tell(process: "subprocess.Popen[bytes]", message: Mapping[str, object]) -> bool:
    """Send a message; return False if the process has ended."""
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        return False
    return True


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(BrokenPipeError), process:  # which closes its pipe and waits for it
        process.kill()

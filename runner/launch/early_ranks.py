"""Processes of ranks that are started with the command, so that their imports run beside those of the launcher.

They wait for the launcher to say what to run. This module imports nothing that takes long.
"""

import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

LAUNCHER_PID = "TIMETRIAL_LAUNCHER_PID"
RANK_STARTED = "TIMETRIAL_RANK_STARTED"  # when the launcher let a rank begin, in seconds since the epoch
_WORKER = "timetrial.runner.launch.worker"
_MAX_RANKS = 8
_waiting: "list[subprocess.Popen[bytes]]" = []


@contextmanager
def started_early(arguments: Sequence[str]) -> Iterator[None]:
    """Start the ranks that a single run with these arguments will need on this node; unused ones end after the body."""
    try:
        for _ in range(_num_ranks(arguments)):
            _waiting.append(_start_process())
        yield
    finally:
        while _waiting:
            _end(_waiting.pop())


def import_modules(names: Iterable[str]) -> None:
    """Let the ranks that wait import these modules meanwhile."""
    for process in _waiting:
        _tell(process, {"modules": [*names]})


def run_rank(run_dir: Path, variables: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Let a rank run, with these environment variables beside those of the launcher; one that waits is preferred."""
    environment = os.environ | {LAUNCHER_PID: str(os.getpid()), **variables, RANK_STARTED: str(time.time())}
    message = {"run_dir": str(run_dir), "environment": environment, "folder": os.getcwd()}
    while _waiting:
        process = _waiting.pop()
        if process.poll() is None and _let_run(process, message):
            return process
        _end(process)
    process = _start_process()
    _let_run(process, message)
    return process


def wait_for_run_dir() -> Path:
    """Return the run directory that the launcher names, and take over its environment variables and working directory.

    Ends this process if the launcher needs no rank.
    """
    for line in sys.stdin:
        message = json.loads(line)
        if "modules" in message:
            _import(message["modules"])
        else:
            os.environ.clear()
            os.environ.update(message["environment"])
            os.chdir(message["folder"])
            return Path(message["run_dir"])
    sys.exit(0)


def _import(names: Iterable[str]) -> None:
    """Import modules; what they print, and their errors, are those of the launcher, which imports them too."""
    terminal = [os.dup(number) for number in (1, 2)]
    with open(os.devnull, "ab") as nowhere:
        for number in (1, 2):
            os.dup2(nowhere.fileno(), number)
    for name in names:
        with suppress(Exception):
            importlib.import_module(name)
    sys.stdout.flush()
    for number, original in zip((1, 2), terminal, strict=True):
        os.dup2(original, number)
        os.close(original)


def _num_ranks(arguments: Sequence[str]) -> int:
    if any(argument in ("-m", "--multirun") or argument.startswith("launcher") for argument in arguments):
        return 0
    gpus = [match[1] for argument in arguments if (match := re.fullmatch(r"gpus=([1-9])", argument))]
    return min(int(gpus[-1]) if gpus else 1, _MAX_RANKS)


def _start_process() -> "subprocess.Popen[bytes]":
    # Ctrl-C ends a rank that still imports without a traceback.
    program = f"import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); from {_WORKER} import main; main()"
    command = [sys.executable, "-P", "-c", program]
    environment = os.environ | {LAUNCHER_PID: str(os.getpid())}
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
    process.kill()
    process.wait()

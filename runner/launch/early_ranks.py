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
    """Start the ranks that a single run with these arguments will need on this node; end those unused after the body.

    A rank inherits the environment variables and the working directory that this process has now.
    """
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
    variables = {**variables, RANK_STARTED: str(time.time())}
    while _waiting:
        process = _waiting.pop()
        if process.poll() is None and _let_run(process, run_dir, variables):
            return process
        _end(process)
    process = _start_process()
    _let_run(process, run_dir, variables)
    return process


def wait_for_run_dir() -> Path:
    """Return the run directory that the launcher names, and set the environment variables that it sends.

    Ends this process if the launcher needs no rank.
    """
    for line in sys.stdin:
        message = json.loads(line)
        for name in message.get("modules", ()):
            with suppress(Exception):  # the launcher meets the same error, and says so
                importlib.import_module(name)
        if "run_dir" in message:
            os.environ.update(message["variables"])
            return Path(message["run_dir"])
    sys.exit(0)


def _num_ranks(arguments: Sequence[str]) -> int:
    if any(argument in ("-m", "--multirun") or argument.startswith("launcher") for argument in arguments):
        return 0
    gpus = [match[1] for argument in arguments if (match := re.fullmatch(r"gpus=([1-9])", argument))]
    return min(int(gpus[-1]) if gpus else 1, _MAX_RANKS)


def _start_process() -> "subprocess.Popen[bytes]":
    environment = os.environ | {LAUNCHER_PID: str(os.getpid())}
    command = [sys.executable, "-P", "-m", _WORKER]
    # In a session of its own, a rank receives Ctrl-C from the launcher alone.
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, start_new_session=True)


def _let_run(process: "subprocess.Popen[bytes]", run_dir: Path, variables: Mapping[str, str]) -> bool:
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:
        return _tell(process, {"run_dir": str(run_dir), "variables": variables})
    return False


def _tell(process: "subprocess.Popen[bytes]", message: dict[str, object]) -> bool:
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

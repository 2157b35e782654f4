"""A process that forks a rank for each run of a sweep, so that only the first run waits for imports.

The server imports modules and touches no device; each rank that it forks is a new process to device and libraries. So
the clock of a later run finds nothing warmer than that of the first.

Runs that share a setting take the same rank one after the other. Between them it waits on the server's channel, which
the server does not read while it waits for the end of the rank.
"""

import json
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ..core.signals import STOP_SIGNALS, signal_when_parent_ends

_LOST = -int(signal.SIGKILL)  # exit code of a rank whose server was killed


class ForkedRank:
    """A rank that a server has forked, with the methods of `subprocess.Popen` by which launchers watch a process."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel, self._unread = channel, b""
        self.returncode: int | None = None
        self.pid = self._read("pid")

    @property
    def was_forked(self) -> bool:
        """Whether the server forked the rank before it ended."""
        return self.pid != _LOST

    def poll(self) -> int | None:
        """Return the exit code, or None while the rank runs."""
        if self.returncode is None and select.select([self._channel], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> int:
        """Wait for the end of the rank and return its exit code."""
        if self.returncode is None:
            self.returncode = self._read("exit_code")
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, which does nothing to a rank that has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the rank."""
        self.send_signal(signal.SIGKILL)

    def _read(self, key: str) -> int:
        """Return the number of the server's next message."""
        while b"\n" not in self._unread:
            received = self._channel.recv(1024)
            if not received:
                self.returncode = _LOST
                return _LOST
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        return int(json.loads(line).get(key, _LOST))


class RankChannel:
    """A rank's end of the server's channel, and the byte of shared memory that tells the server whether it is idle."""

    def __init__(self, channel: socket.socket, idle: mmap.mmap) -> None:
        self._channel, self._idle = channel, idle

    def end_run(self, exit_code: int) -> None:
        """Report how a run ended, and let stop signals end this process until the next run handles them."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        self._idle[0] = 1
        _send(self._channel, {"exit_code": exit_code})

    def begin_run(self) -> None:
        """Report that this process takes another run."""
        self._idle[0] = 0
        _send(self._channel, {"pid": os.getpid()})

    def read(self) -> dict[str, Any] | None:
        """Return the launcher's next message, None if it has ended.

        Messages are read to the end of their line and no further: the server reads those that follow.
        """
        line = b""
        while not line.endswith(b"\n"):
            if not (received := self._channel.recv(1)):
                return None
            line += received
        message: dict[str, Any] = json.loads(line)
        return message


class ForkServer:
    """The server's process, and the launcher's end of the socket to it."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(command, env=environment, stdin=theirs.fileno(), start_new_session=True)
        self._rank: ForkedRank | None = None
        self._modules: list[str] = []
        self.setting = ""
        """What the runs have in common for which the last rank stays; empty: it does not."""

    @property
    def is_idle(self) -> bool:
        """Whether the server runs and its last rank has ended."""
        return self._process.poll() is None and (self._rank is None or self._rank.poll() is not None)

    def tell(self, message: Mapping[str, object]) -> bool:
        """Send a message; return False if the server has ended."""
        try:
            self._channel.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def import_modules(self, names: list[str]) -> None:
        """Import modules in the server, or in a rank that waits for its next run."""
        self._modules = names
        self.tell({"modules": names})

    def end_idle_rank(self) -> None:
        """End a rank that stayed for runs of its setting; its server imports what the rank was told to."""
        if self.setting:
            self.setting = ""
            self.tell({"end": True})
            self.tell({"modules": self._modules})

    def fork(self, message: Mapping[str, object]) -> ForkedRank:
        """Let the last rank take the message if it stayed for runs of its setting; otherwise fork one."""
        if self.setting != message["setting"]:
            self.end_idle_rank()
        self.setting = str(message["setting"])
        self.tell({**message, "fork": True})
        self._rank = ForkedRank(self._channel)
        return self._rank

    def close(self) -> None:
        """End the server; the kernel then ends a rank that still runs."""
        self._process.kill()
        self._process.wait()
        self._channel.close()


def fork_rank() -> RankChannel | None:
    """In the server: fork, and return the channel in the rank; return None in the server once the rank has ended."""
    server, idle = os.getpid(), mmap.mmap(-1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: those of OpenBLAS know forks
        pid = os.fork()
    if pid:
        _report({"pid": pid})
        exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if not idle[0]:  # otherwise the rank has reported its last run
            _report({"exit_code": exit_code})
        return None
    signal_when_parent_ends(signal.SIGTERM)
    if os.getppid() != server:  # it ended before the kernel knew
        sys.exit(1)
    channel = socket.socket(fileno=os.dup(0))
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    return RankChannel(channel, idle)


def _report(message: Mapping[str, Any]) -> None:
    with socket.socket(fileno=os.dup(0)) as channel:
        _send(channel, message)


def _send(channel: socket.socket, message: Mapping[str, Any]) -> None:
    channel.sendall(json.dumps(message).encode() + b"\n")

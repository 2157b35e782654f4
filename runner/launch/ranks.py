"""Start the ranks of one node as processes, watch them, and find out why they failed."""

import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import psutil

from ..config.schema import Config
from ..config.validation import num_ranks
from ..core.errors import Exit, LostRank
from ..core.signals import StopSignal
from ..record.run_dir import RankError, RunDir
from ..record.run_record import Rendezvous
from .rendezvous import launch_options

_WORKER = "timetrial.runner.launch.worker"
_POLL_SECONDS = 1.0
_GRACE_SECONDS = 5.0  # in which other ranks may still write what they know of a failure


def start_ranks(config: Config, run_dir: RunDir, rendezvous: Rendezvous, stop: StopSignal) -> Exit:
    """Start one process per rank of this node with torch's elastic agent; a rank that dies takes the others with it."""
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # the run record says it in one sentence
    logs = tempfile.TemporaryDirectory()  # required by the agent; our ranks write their output to the run directory
    setup = LaunchConfig(
        logs_specs=DefaultLogsSpecs(log_dir=logs.name),
        nproc_per_node=num_ranks(config) // rendezvous.nodes,
        max_restarts=0,
        signals_to_handle="SIGQUIT",  # we handle the others: the agent would kill ranks that take long to save
        **launch_options(rendezvous),
    )
    try:
        with _watchdog(run_dir, config.launcher.hang_timeout_seconds, stop):
            elastic_launch(setup, sys.executable)("-P", "-m", _WORKER, str(run_dir.path))
        return Exit.FAILURE
    except ChildFailedError as error:
        if stop.name:  # before the rank listened for signals
            return Exit.STOPPED
        return _write_cause(run_dir, {rank: failure.exitcode for rank, failure in error.failures.items()})
    except RendezvousError as error:
        cause = "The nodes of the run did not find each other: see the output of the other nodes"
        if rendezvous.nodes == 1:
            cause = "The ranks cannot connect on localhost: check that the loopback interface is up"
        raise LostRank(f"{cause}, then run again.") from error
    finally:
        logs.cleanup()


@contextmanager
def _watchdog(run_dir: RunDir, hang_timeout_seconds: float, stop: StopSignal) -> Iterator[None]:
    """Pass stop signals on to the ranks, and end all ranks when one has failed or is suspended.

    A rank that has written its error leaves the others waiting in a collective. So does one that was suspended
    (SIGSTOP, a suspended job) for `hang_timeout_seconds`.
    """
    finished = threading.Event()

    def watch() -> None:
        suspended_seconds: dict[int, float] = {}
        signalled: set[int] = set()
        seconds_since_error = 0.0
        while not finished.wait(_POLL_SECONDS):
            ranks = _find_ranks()
            if stop.name:
                _send(signal.Signals[stop.name], ranks.keys() - signalled)
                signalled |= ranks.keys()
            seconds_since_error += _POLL_SECONDS if run_dir.has_rank_errors() else 0.0
            if seconds_since_error >= _GRACE_SECONDS:
                _send(signal.SIGKILL, ranks)
                return
            for pid, (rank, status) in ranks.items():
                suspended = status == psutil.STATUS_STOPPED
                suspended_seconds[pid] = suspended_seconds.get(pid, 0.0) + _POLL_SECONDS if suspended else 0.0
                if suspended_seconds[pid] < hang_timeout_seconds:
                    continue
                sentence = (
                    f"Rank {rank} was suspended for {hang_timeout_seconds:g} s (process {pid}): "
                    "find out what suspended it, then resume the run."
                )
                run_dir.write_rank_error(RankError(rank, Exit.LOST_RANK, sentence))
                _send(signal.SIGKILL, ranks)
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()


def _send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _find_ranks() -> dict[int, tuple[int, str]]:
    """Return process id -> (rank, status) of the ranks that this process started."""
    ranks: dict[int, tuple[int, str]] = {}
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if _WORKER in child.cmdline():
                ranks[child.pid] = (int(child.environ()["RANK"]), child.status())
    return ranks


def _write_cause(run_dir: RunDir, exit_codes: dict[int, int]) -> Exit:
    """Make sure that the run directory says why ranks failed: a rank's own error, else its exit status."""
    if not run_dir.has_rank_errors():
        rank, code = next(iter(exit_codes.items()))
        if code < 0:
            how = f"was killed by signal {-code} (often by the kernel, out of host memory)"
        else:
            how = f"ended with code {code}"
        sentence = f"Rank {rank} {how}: see stderr_{rank}.txt in the run directory, then run again."
        run_dir.write_rank_error(RankError(rank, Exit.LOST_RANK, sentence))
    return Exit.FAILURE

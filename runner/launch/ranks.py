"""Start the ranks of one node as processes, watch them, and find out why they failed."""

import signal
import subprocess
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import psutil

from ..config.schema import Config
from ..config.validation import num_ranks
from ..core.errors import Exit
from ..core.signals import StopSignal
from ..record.run_dir import RankError, RunDir
from ..record.run_record import Rendezvous
from ..training import distributed
from . import early_ranks, rendezvous

_POLL_SECONDS = 0.25
_GRACE_SECONDS = 4.0  # in which other ranks may still write what they know of a failure


def start_ranks(config: Config, run_dir: RunDir, stop: StopSignal, meeting_point: Rendezvous | None = None) -> Exit:
    """Run one process per rank of this node to its end; a rank that fails takes the others with it.

    Ranks of one node meet in a file, those of several nodes in the store of `meeting_point`.
    """
    nodes = config.launcher.nodes
    world_size = num_ranks(config)
    local_size = world_size // nodes
    with ExitStack() as closing:
        if meeting_point is None:
            interface, store = "", closing.enter_context(distributed.local_store())
        else:
            interface, store = rendezvous.cluster_interface(config.launcher.interface)[0], meeting_point.endpoint
        ranks = {}
        for local_rank in range(local_size):
            rank = rendezvous.node_rank() * local_size + local_rank if meeting_point else local_rank
            variables = distributed.rank_environment(store, rank, local_rank, world_size, interface)
            process = early_ranks.run_rank(run_dir.path, variables)
            closing.callback(_end, process)
            ranks[rank] = process
        return _Watch(run_dir, config.launcher.hang_timeout_seconds, stop, ranks).until_all_ended()


@dataclass
class _Watch:
    """Pass stop signals on to the ranks, and end all ranks when one has failed or is suspended.

    A rank that has written its error leaves the others waiting in a collective. So does one that was suspended
    (SIGSTOP, a suspended job) for `hang_timeout_seconds`.
    """

    run_dir: RunDir
    hang_timeout_seconds: float
    stop: StopSignal
    ranks: dict[int, subprocess.Popen[bytes]]
    _suspended_seconds: dict[int, float] = field(default_factory=dict)
    _failed_at: float | None = None
    _signalled: bool = False

    def until_all_ended(self) -> Exit:
        """Return `Exit.STOPPED` if ranks were stopped before they listened for signals, else `Exit.FAILURE`.

        Either stands only if no rank has recorded how the run ended.
        """
        while any(process.poll() is None for process in self.ranks.values()):
            time.sleep(_POLL_SECONDS)
            self._pass_on_stop_signal()
            self._record_deaths()
            self._record_suspended()
            if self._failed_at is None and self.run_dir.has_rank_errors():  # also those of other nodes
                self._failed_at = time.monotonic()
            if self._failed_at is not None and time.monotonic() - self._failed_at >= _GRACE_SECONDS:
                break
        for process in self.ranks.values():
            _end(process)
        self._record_deaths()
        return Exit.STOPPED if self.stop.name else Exit.FAILURE

    def _pass_on_stop_signal(self) -> None:
        if self.stop.name and not self._signalled:
            self._signalled = True
            for process in self.ranks.values():
                process.send_signal(signal.Signals[self.stop.name])  # does nothing to one that has ended

    def _record_deaths(self) -> None:
        """Write an error for a rank that ended without one; a stop signal may have ended it before it listened."""
        for rank, process in self.ranks.items():
            if process.poll() and not self.stop.name and not self.run_dir.has_rank_errors():
                code = process.returncode
                if code < 0:
                    how = f"was killed by signal {-code} (often by the kernel, out of host memory)"
                else:
                    how = f"ended with code {code}"
                self._record(rank, f"{how}: see stderr_{rank}.txt in the run directory, then run again.")

    def _record_suspended(self) -> None:
        for rank, process in self.ranks.items():
            status = None
            with suppress(psutil.Error):
                status = psutil.Process(process.pid).status()
            # Counted in looks, not by a clock: the launcher may be suspended with its ranks, which is no hang.
            looked_at = self._suspended_seconds.get(rank, 0.0) + _POLL_SECONDS
            self._suspended_seconds[rank] = looked_at if status == psutil.STATUS_STOPPED else 0.0
            if self._suspended_seconds[rank] >= self.hang_timeout_seconds and not self.run_dir.has_rank_errors():
                how = f"was suspended for {self.hang_timeout_seconds:g} s (process {process.pid})"
                self._record(rank, f"{how}: find out what suspended it, then resume the run.")

    def _record(self, rank: int, text: str) -> None:
        self.run_dir.write_rank_error(RankError(rank, Exit.LOST_RANK, f"Rank {rank} {text}"))


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a rank that still runs, and wait for it."""
    if process.poll() is None:
        process.kill()
    process.wait()

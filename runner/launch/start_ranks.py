"""The stage that starts the ranks of one node, watches them, and finds out why they failed."""

import signal
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field

import psutil

from ..config.schema import Config
from ..config.validation import num_ranks
from ..core.atomic_files import to_json
from ..core.errors import Exit
from ..core.signals import StopSignal
from ..record.run_dir import RankError, RunDir
from ..training import distributed
from . import rendezvous
from .open_run_dir import OpenRun
from .rank_pool import RankPool, RankProcess
from .worker import run_rank

_POLL_SECONDS = 0.25
_END_POLL_SECONDS = 0.02  # how soon the end of all ranks is seen, for which a user waits
_OWN_KEYS = ("seed", "seeds", "run_dir", "resume")  # of a run that shares its process
_GRACE_SECONDS = 4.0  # in which other ranks may still write what they know of a failure


def start_ranks(run: OpenRun, stop: StopSignal, pool: RankPool) -> Exit:
    """Run the ranks of this node to their end: in this process with `launcher=inline`, else one process per rank."""
    config, run_dir = run.config, run.run_dir
    if config.launcher.name == "inline":
        return run_rank(config, run_dir, run.console, stop)
    if config.launcher.nodes == 1:
        with distributed.local_store() as store:
            return run_processes(config, run_dir, stop, pool, store)
    with rendezvous.host(config.launcher.nodes, config.launcher.interface, run_dir) as meeting_point:
        return run_processes(config, run_dir, stop, pool, meeting_point.endpoint)


def run_processes(config: Config, run_dir: RunDir, stop: StopSignal, pool: RankPool, store: str) -> Exit:
    """Run one process per rank of this node to its end; a rank that fails takes the others with it.

    Ranks of one node meet in a file, those of several nodes in the first node's store: `store` is its path or address.
    """
    nodes, world_size = config.launcher.nodes, num_ranks(config)
    local_size = world_size // nodes
    first_rank = rendezvous.node_rank() * local_size if nodes > 1 else 0
    interface = rendezvous.cluster_interface(config.launcher.interface)[0] if nodes > 1 else ""
    with ExitStack() as closing:
        processes = {}
        for local_rank in range(local_size):
            rank = first_rank + local_rank
            variables = distributed.rank_environment(store, rank, local_rank, world_size, interface)
            processes[rank] = process = pool.spawn_rank(run_dir.path, variables, shared_setting(config))
            closing.callback(_end, process)
        return _Watch(run_dir, config.launcher.hang_timeout_seconds, stop, processes).until_all_ended()


def shared_setting(config: Config) -> str:
    """Return what runs must have in common to share a process; empty if this one shares none.

    Not for several ranks, whose collectives belong to one run, for compiled models, whose compiler gives up after some
    models, and for other frameworks. Runs of the closed division share nothing.
    """
    is_alone = num_ranks(config) > 1 or config.engine.compile is not None or config.engine.name != "torch"
    if is_alone or config.division == "closed" or not config.launcher.reuse_process:
        return ""
    return to_json({key: value for key, value in asdict(config).items() if key not in _OWN_KEYS})


@dataclass
class _Watch:
    """Pass stop signals on to the ranks, and end all ranks when one has failed or is suspended, or a stop is forced.

    A rank that has written its error leaves the others waiting in a collective. So does one that was suspended
    (SIGSTOP, a suspended job) for `hang_timeout_seconds`.
    """

    run_dir: RunDir
    hang_timeout_seconds: float
    stop: StopSignal
    ranks: dict[int, RankProcess]
    _suspended_seconds: dict[int, float] = field(default_factory=dict)
    _failed_at: float | None = None
    _signalled: bool = False

    def until_all_ended(self) -> Exit:
        """Return `Exit.STOPPED` if ranks were stopped before they listened for signals, else `Exit.FAILURE`.

        Either stands only if no rank has recorded how the run ended.
        """
        while self._are_running():
            self._pause()
            if self.stop.is_forced:
                break
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

    def _are_running(self) -> bool:
        return any(process.poll() is None for process in self.ranks.values())

    def _pause(self) -> None:
        """Wait for `_POLL_SECONDS`, or until all ranks have ended."""
        until = time.monotonic() + _POLL_SECONDS
        while self._are_running() and time.monotonic() < until:
            time.sleep(_END_POLL_SECONDS)

    def _pass_on_stop_signal(self) -> None:
        if self.stop.name and not self._signalled:
            self._signalled = True
            for process in self.ranks.values():
                process.send_signal(signal.Signals[self.stop.name])  # does nothing to one that has ended

    def _record_deaths(self) -> None:
        """Write an error for a rank that ended without one; a stop signal may have ended it before it listened."""
        for rank, process in self.ranks.items():
            code = process.poll()
            if code and not self.stop.name and not self.run_dir.has_rank_errors():
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
            # Count polls, not wall time: the launcher may be suspended with its ranks, which is no hang.
            seconds = self._suspended_seconds.get(rank, 0.0) + _POLL_SECONDS
            self._suspended_seconds[rank] = seconds if status == psutil.STATUS_STOPPED else 0.0
            if self._suspended_seconds[rank] >= self.hang_timeout_seconds and not self.run_dir.has_rank_errors():
                how = f"was suspended for {self.hang_timeout_seconds:g} s (process {process.pid})"
                self._record(rank, f"{how}: find out what suspended it, then resume the run.")

    def _record(self, rank: int, text: str) -> None:
        self.run_dir.write_rank_error(RankError(rank, Exit.LOST_RANK, f"Rank {rank} {text}"))


def _end(process: RankProcess) -> None:
    """Kill a rank that still runs, and wait for it."""
    if process.poll() is None:
        process.kill()
    process.wait()

"""The run record: the one typed, versioned state of a run, kept as `status.json` in its run directory.

Training writes it and everything else reads it. It and the MLPerf log are all that training passes to analysis.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from ..core.errors import Exit
from .attempt import Attempt
from .throughput_result import ThroughputResult
from .training_result import TrainingResult

SCHEMA_VERSION = 1


class RunState(StrEnum):
    """How far a run has come, or how it ended."""

    CREATED = "created"
    RUNNING = "running"
    TARGET_REACHED = "target reached"
    TARGET_NOT_REACHED = "target not reached"
    MEASURED = "measured"
    TIME_LIMIT = "time limit"
    STOPPED = "stopped"
    OUT_OF_MEMORY = "out of memory"
    DIVERGED = "diverged"
    LOST_RANK = "lost rank"
    HARDWARE_FAULT = "hardware fault"
    LOG_NOT_COMPLIANT = "log not compliant"
    FAILED = "failed"


_STATE_AFTER = {
    Exit.TARGET_REACHED: RunState.TARGET_REACHED,
    Exit.TARGET_NOT_REACHED: RunState.TARGET_NOT_REACHED,
    Exit.TIME_LIMIT: RunState.TIME_LIMIT,
    Exit.STOPPED: RunState.STOPPED,
    Exit.OUT_OF_MEMORY: RunState.OUT_OF_MEMORY,
    Exit.DIVERGED: RunState.DIVERGED,
    Exit.LOST_RANK: RunState.LOST_RANK,
    Exit.HARDWARE: RunState.HARDWARE_FAULT,
    Exit.NOT_COMPLIANT: RunState.LOG_NOT_COMPLIANT,
}


class RunClass(StrEnum):
    """Whether the run went from start to end in one attempt, and without a profiler."""

    CLEAN = "clean"
    RESUMED = "resumed"
    PROFILED = "profiled"


@dataclass(frozen=True)
class Rendezvous:
    """Where the launchers of a run over several nodes meet."""

    id: str
    """Unique name of this rendezvous."""
    endpoint: str
    """`address:port` of the store on the first node."""
    step: str
    """Job, restart and step of Slurm or torchrun that the rendezvous belongs to."""


@dataclass(frozen=True)
class Staging:
    """What was copied to a node-local disk before the clock started."""

    bytes: int
    """Bytes that had to be copied."""
    seconds: float
    """Seconds that copying took."""


@dataclass(frozen=True)
class ComplianceVerdict:
    """Result of the compliance check of the MLPerf log."""

    compliant: bool | None
    """Whether the log complies; null for a stopped run, whose log is not judged."""
    rules: str
    """The rules that were applied."""
    problems: tuple[str, ...]
    """One sentence per problem."""
    converged: bool = True
    """Whether an evaluation met the quality target; a log can comply without."""

    @property
    def summary(self) -> str:
        """The verdict in words."""
        if self.compliant is None:
            return "not judged" if self.problems else "stopped, not judged"
        if not self.compliant:
            return "does not comply"
        return "complies" if self.converged else "complies, not converged"


@dataclass(frozen=True)
class HostLoad:
    """Use of the processors that the run may use, on the host where other processes used most of them."""

    processors: float
    """Processors that the run may use at once, by its CPU affinity and the CPU limit of its cgroup."""
    run: float
    """Share of their time on the clock that the run's processes used."""
    other_processes: float
    """Share of their time on the clock that other processes used."""
    other_processes_before: float | None
    """The same between the first sample and the start of the clock; null if that took less than 0.2 s."""


@dataclass(frozen=True)
class TelemetrySummary:
    """Energy, power, clocks and temperatures on the clock, from telemetry.csv."""

    gpus: int
    """GPUs that were sampled."""
    every_seconds: float
    """Usual interval between two samples."""
    seconds: float
    """Seconds of the clock that were sampled."""
    energy_joules: float | None
    """Energy of all GPUs; null if its figures contradict each other."""
    energy_source: str | None
    """Energy counter, or integral of the power and its sampling rate."""
    integral_joules: float | None
    """The integral of the power, beside a counter."""
    host_energy_joules: float | None
    """Energy of the hosts by RAPL, with all that ran on them."""
    host_energy_source: str | None
    """Source of the hosts' energy."""
    mean_watts: float | None
    """Mean power of all GPUs."""
    train_watts: float | None
    """Mean power in training."""
    eval_watts: float | None
    """Mean power in evaluation."""
    samples_per_joule: float | None
    """Training samples per joule."""
    core_mhz: tuple[float, ...] | None
    """Lowest, median and highest core clock under load."""
    highest_temperature_c: float | None
    """Highest temperature."""
    highest_memory_mib: float | None
    """Most memory in use on a GPU, by all processes."""
    at_power_cap: float
    """Share of the samples in which a GPU ran at its power cap."""
    host_load: HostLoad | None = None
    """Use of the host's processors; null where the system does not count their time."""
    implausible_samples: int = 0
    """Samples that physics excludes, which the energy leaves out."""


@dataclass(frozen=True)
class ClockDeviation:
    """How far the time on the clock was not that of the work."""

    lead_seconds: float
    """Most seconds by which the wall clock went ahead of the monotonic clock, negative if it was set back."""
    suspended_seconds: float
    """Seconds, at most, in which a rank's process was suspended."""


@dataclass(frozen=True)
class Cost:
    """What the run cost to rent."""

    usd: float
    """Dollars for the time on the clock in which a process ran, work that a kill discarded included."""
    usd_per_hour: float
    """Dollars an hour for all GPUs."""


@dataclass(frozen=True)
class Acceptance:
    """A `timetrial accept` that the machine did not fail."""

    id: str
    """Name of its folder."""
    date: str
    """Day, such as 2026-01-31."""


@dataclass(frozen=True)
class RunRecord:
    """The state of a run. A record holds `training` or `throughput`, never both."""

    schema_version: int = SCHEMA_VERSION
    """Version of this schema."""
    state: RunState = RunState.CREATED
    """How far the run has come, or how it ended."""
    run_class: RunClass = RunClass.CLEAN
    """Whether the run was resumed from a checkpoint, or profiled."""
    exit_code: int | None = None
    """Exit code of the last attempt; null while it runs."""
    error: str = ""
    """The sentence of an attempt that ended in an error."""
    finished_at: float | None = None
    """End of the last attempt, in seconds since the epoch."""
    attempts: tuple[Attempt, ...] = ()
    """All starts of the run, first to last."""
    environment: dict[str, Any] = field(default_factory=dict)
    """Machine, GPUs, clocks, storage, libraries, packages and revision at the last start."""
    changed: tuple[str, ...] = ()
    """What was not the same in all attempts since the first checkpoint: revision, torch, gpus."""
    data_fingerprint: str | None = None
    """Hash of names, sizes and sampled blocks of the data that the run reads."""
    config: dict[str, Any] = field(default_factory=dict)
    """The resolved configuration, as in config.yaml."""
    execution_paths: dict[str, str] = field(default_factory=dict)
    """What ran where the device decides: steps, model, kernels, decoder, loader, collectives and others; or {}."""
    training: TrainingResult | None = None
    """Result of `timetrial run`."""
    throughput: ThroughputResult | None = None
    """Result of `timetrial throughput`."""
    peak_memory_bytes: int | None = None
    """Most memory that tensors held on rank 0's device."""
    verdict: ComplianceVerdict | None = None
    """Result of the compliance check of the log."""
    telemetry: TelemetrySummary | None = None
    """Energy, power, clocks; null without telemetry."""
    cost: Cost | None = None
    """Rent; null without a price."""
    flags: dict[str, str] = field(default_factory=dict)
    """Reasons to distrust the measured time: name and sentence."""
    disturbed_share: float | None = None
    """Largest share of the time on the clock that what the flags name can have taken; null if not known."""
    data_digest: str | None = None
    """Digest of what preparation stored of the dataset; null if nothing was read."""
    clock: ClockDeviation | None = None
    """Wall clock against monotonic clock; null before the clock has stopped."""
    accepted: Acceptance | None = None
    """The last `timetrial accept` of the launcher's machine, if it did not fail; null without one."""
    staging: Staging | None = None
    """Copies to a node-local disk."""
    rendezvous: Rendezvous | None = None
    """Where the launchers of several nodes meet, while they do."""

    def __post_init__(self) -> None:
        if self.training is not None and self.throughput is not None:
            raise ValueError("a record holds training or throughput, not both")

    @property
    def restarts(self) -> int:
        """How often the run was started again."""
        return max(len(self.attempts) - 1, 0)

    @property
    def is_running(self) -> bool:
        """Whether an attempt is under way, or was killed before it could say how it ended."""
        return self.state == RunState.RUNNING

    def attempt_started(self, attempt: Attempt, environment: dict[str, Any], config: dict[str, Any]) -> "RunRecord":
        """Return the record of a run that was started once more."""
        return replace(
            self,
            state=RunState.RUNNING,
            exit_code=None,
            error="",
            attempts=(*self.attempts, attempt),
            environment=environment,
            config=config,
        )

    def training_ended(self, exit_code: Exit, error: str) -> "RunRecord":
        """Return the record of a run whose ranks have ended; it is running until the launcher has judged the log."""
        return replace(self, exit_code=int(exit_code), error=error)

    def ended(self, exit_code: Exit, error: str) -> "RunRecord":
        """Return the record of a run that has ended: its state follows from the exit code."""
        state = _STATE_AFTER.get(exit_code, RunState.FAILED)
        if exit_code == Exit.TARGET_REACHED and self.throughput is not None:
            state = RunState.MEASURED
        return replace(self, state=state, exit_code=int(exit_code), error=error)

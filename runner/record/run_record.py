"""The run record: the one typed, versioned state of a run, kept as `status.json` in its run directory.

Training writes it and everything else reads it. Beside it stands only the MLPerf log.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

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


class RunClass(StrEnum):
    """Whether the run went from start to end in one attempt."""

    CLEAN = "clean"
    RESUMED = "resumed"


@dataclass(frozen=True)
class Attempt:
    """One start of the launcher on this run; every resume adds one."""

    started_at: float
    """Wall time in seconds since the epoch."""
    hostname: str
    """Host of the launcher."""
    pid: int
    """Process id of the launcher."""


@dataclass(frozen=True)
class Rendezvous:
    """Where the launchers of a run over several nodes meet."""

    id: str
    """Unique name of this rendezvous."""
    endpoint: str
    """`host:port` of the store on the first node."""
    step: str
    """Slurm job, restart and step that the rendezvous belongs to."""
    nodes: int
    """Number of nodes that meet."""


@dataclass(frozen=True)
class Staging:
    """What was copied to a node-local disk before the clock started."""

    bytes: int
    """Bytes that had to be copied."""
    seconds: float
    """Seconds that copying took."""


@dataclass(frozen=True)
class Block:
    """One block of training epochs and the evaluation that followed."""

    first_epoch: int
    """1-based number of the first epoch."""
    epochs: int
    """Number of epochs."""
    samples: int
    """Training samples over all ranks."""
    tokens: int
    """Tokens of text, source and target, without padding; 0 for other data."""
    loss: float
    """Mean training loss of a step."""
    train_seconds: float
    """Seconds of training."""
    data_wait_seconds: float
    """Seconds that rank 0's device waited for batches."""
    eval_seconds: float
    """Seconds of the evaluation."""
    quality: dict[str, float]
    """Quality by metric, as fractions."""
    ended_at: float
    """End of the evaluation, in seconds since the epoch."""
    past_target: bool
    """Whether the clock had stopped before this block."""

    @property
    def last_epoch(self) -> int:
        """1-based number of the last epoch."""
        return self.first_epoch + self.epochs - 1


def time_to_train(run_start: float, run_stop: float) -> float | None:
    """Return run_stop - run_start in seconds, the time-to-train of MLPerf; None if the clock ran backwards."""
    seconds = run_stop - run_start
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


@dataclass(frozen=True)
class TrainingResult:
    """What training towards the target has come to so far; complete once the state is final."""

    target: dict[str, float]
    """Quality target by metric, as fractions."""
    reached: bool
    """Whether every metric reached its target; a run that did not is censored."""
    quality: dict[str, float] | None
    """Quality of the last evaluation on the clock."""
    epochs: int
    """Epochs trained on the clock."""
    epochs_to_converge: int | None
    """1-based epoch of the first evaluation that met the target."""
    started_at: float
    """Start of the clock (run_start), in seconds since the epoch."""
    seconds: float
    """Time from run_start to run_stop: time-to-train if the target was reached."""
    lost_seconds: float
    """Seconds between the attempts, in which nothing trained."""
    train_seconds: float
    """Seconds of training on the clock."""
    eval_seconds: float
    """Seconds of evaluation on the clock."""
    data_wait_seconds: float
    """Seconds on the clock that rank 0's device waited for batches."""
    samples: int
    """Training samples on the clock."""
    samples_per_second: float | None
    """Steady throughput: median over the blocks after the first."""
    tokens_per_second: float | None
    """Steady throughput in tokens; null for data other than text."""
    first_block_samples_per_second: float | None
    """Throughput of the first block."""
    first_block_seconds: float | None
    """Training seconds of the first block."""
    blocks: tuple[Block, ...]
    """All blocks in order, those past the target included."""

    @property
    def active_seconds(self) -> float:
        """Seconds on the clock without those lost between attempts."""
        return self.seconds - self.lost_seconds

    @classmethod
    def from_blocks(
        cls,
        blocks: Sequence[Block],
        *,
        target: Mapping[str, float],
        reached: bool,
        started_at: float,
        stopped_at: float,
        lost_seconds: float,
    ) -> "TrainingResult":
        """Derive the numbers of a run whose clock ran from `started_at` to `stopped_at`."""
        timed = [block for block in blocks if not block.past_target]
        rates = [block.samples / block.train_seconds for block in timed]
        token_rates = [block.tokens / block.train_seconds for block in timed]
        return cls(
            target=dict(target),
            reached=reached,
            quality=timed[-1].quality if timed else None,
            epochs=sum(block.epochs for block in timed),
            epochs_to_converge=timed[-1].last_epoch if reached else None,
            started_at=started_at,
            seconds=time_to_train(started_at, stopped_at) or 0.0,
            lost_seconds=lost_seconds,
            train_seconds=sum(block.train_seconds for block in timed),
            eval_seconds=sum(block.eval_seconds for block in timed),
            data_wait_seconds=sum(block.data_wait_seconds for block in timed),
            samples=sum(block.samples for block in timed),
            samples_per_second=statistics.median(rates[1:]) if len(rates) > 1 else None,
            tokens_per_second=(statistics.median(token_rates[1:]) or None) if len(token_rates) > 1 else None,
            first_block_samples_per_second=rates[0] if rates else None,
            first_block_seconds=timed[0].train_seconds if timed else None,
            blocks=tuple(blocks),
        )


@dataclass(frozen=True)
class StepCost:
    """What one device does for `samples` samples with `tokens` tokens, over `steps` steps."""

    steps: int
    """Counted training steps."""
    samples: float
    """Samples in them, of one device."""
    tokens: float
    """Tokens in them, of one device; 0 for data other than text."""
    operations: float
    """Floating-point operations; a multiply-add counts as two."""
    unfused_bytes: float
    """Device memory traffic if every operation reads its inputs and writes its outputs there: an upper bound."""
    least_bytes: float
    """Traffic that no execution avoids: weights, gradients and optimizer state each read and written once a step, the
    batch read once."""


@dataclass(frozen=True)
class ThroughputResult:
    """What `timetrial throughput` measured: medians over the blocks after the first, over all ranks."""

    steps: int
    """Training steps of a block."""
    samples_per_second: float
    """Training samples per second."""
    tokens_per_second: float | None
    """Training tokens per second; null for data other than text."""
    train_ms: float
    """Milliseconds of a training step."""
    eval_samples_per_second: float
    """Evaluation samples per second."""
    eval_tokens_per_second: float | None
    """Evaluation tokens per second; null for data other than text."""
    eval_ms: float
    """Milliseconds of an evaluation batch."""
    train_seconds: float
    """Training seconds of these blocks."""
    data_wait_seconds: float
    """Seconds of them that rank 0's device waited for batches."""
    spread: float
    """Longest minus shortest block over the median."""
    train_size: int
    """Samples of an epoch."""
    eval_size: int
    """Samples of an evaluation."""
    train_rates: tuple[float, ...]
    """Training samples per second of each block."""
    eval_rates: tuple[float, ...]
    """Evaluation samples per second of each block."""
    first_block_extra_seconds: float
    """What the first block took beyond the median of the others."""
    gpus: int
    """Devices that trained."""
    datasheet_tflops: float | None
    """Peak of one device in this precision by its data sheet."""
    peer_to_peer: bool
    """Whether devices exchanged gradients directly."""
    usd_per_samples_per_second: float | None
    """Purchase price of the devices over the training throughput."""
    step_cost: StepCost | None
    """Counted operations and bytes; null where counting failed."""

    @property
    def data_wait_fraction(self) -> float:
        """Share of the training time that was spent waiting for batches."""
        return self.data_wait_seconds / self.train_seconds if self.train_seconds else 0.0

    @property
    def operations_per_second(self) -> float | None:
        """Operations per second over all devices; None where nothing was counted.

        Text is counted by tokens, because samples differ in length from step to step.
        """
        cost = self.step_cost
        if cost is None or not cost.operations:
            return None
        if cost.tokens and self.tokens_per_second:
            return cost.operations / cost.tokens * self.tokens_per_second
        return cost.operations / cost.samples * self.samples_per_second


@dataclass(frozen=True)
class Verdict:
    """What the compliance check says of the MLPerf log."""

    compliant: bool
    """Whether the log complies."""
    rules: str
    """The rules that were applied."""
    problems: tuple[str, ...]
    """One sentence per problem."""


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
    """Energy of all GPUs."""
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


@dataclass(frozen=True)
class Cost:
    """What the run cost to rent."""

    usd: float
    """Dollars for the time on the clock."""
    usd_per_hour: float
    """Dollars an hour for all GPUs."""


@dataclass(frozen=True)
class RunRecord:
    """The state of a run. A record holds `training` or `throughput`, never both."""

    schema_version: int = SCHEMA_VERSION
    """Version of this schema."""
    state: RunState = RunState.CREATED
    """How far the run has come, or how it ended."""
    run_class: RunClass = RunClass.CLEAN
    """Whether the run was resumed from a checkpoint."""
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
    config: dict[str, Any] = field(default_factory=dict)
    """The resolved configuration, as in config.yaml."""
    training: TrainingResult | None = None
    """Result of `timetrial run`."""
    throughput: ThroughputResult | None = None
    """Result of `timetrial throughput`."""
    peak_memory_bytes: int | None = None
    """Most memory that tensors held on rank 0's device."""
    verdict: Verdict | None = None
    """What the compliance check says of the log."""
    telemetry: TelemetrySummary | None = None
    """Energy, power, clocks; null without telemetry."""
    cost: Cost | None = None
    """Rent; null without a price."""
    flags: dict[str, str] = field(default_factory=dict)
    """What speaks against the measured time: name and sentence."""
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

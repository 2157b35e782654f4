"""What a throughput run measured, and the counted cost of its steps."""

from dataclasses import dataclass


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

    def __post_init__(self) -> None:
        if min(self.samples, self.tokens, self.operations, self.unfused_bytes, self.least_bytes) < 0:
            raise ValueError("a step costs less than nothing")
        if self.samples == 0 and self.operations:
            raise ValueError("operations are counted, but no samples")


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
    opening_seconds: float | None = None
    """Seconds on the clock before the first block, in which data are opened; null where not recorded."""

    def __post_init__(self) -> None:
        rates = (self.samples_per_second, self.eval_samples_per_second, self.train_ms, self.eval_ms)
        if min(*rates, self.tokens_per_second or 0.0, self.usd_per_samples_per_second or 0.0) < 0:
            raise ValueError("a rate or time is below 0")

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

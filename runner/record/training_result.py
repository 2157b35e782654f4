"""The result of training towards a target: time-to-train, epochs to converge, throughput."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


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
    """Tokens of text without padding, of source and target in translation; 0 for other data."""
    loss: float
    """Mean training loss of a step."""
    train_seconds: float
    """Seconds of training."""
    data_wait_seconds: float
    """Seconds that rank 0's device waited for batches."""
    eval_seconds: float
    """Seconds of the evaluation."""
    quality: dict[str, float]
    """Quality by metric, as fractions or losses."""
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
    """The result of training towards the target so far; complete once the state is final."""

    target: dict[str, float]
    """Quality target by metric, as fractions or losses."""
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
        train_seconds = sum(block.train_seconds for block in timed)
        eval_seconds = sum(block.eval_seconds for block in timed)
        seconds = time_to_train(started_at, stopped_at)
        token_rates = [block.tokens / block.train_seconds for block in timed]
        return cls(
            target=dict(target),
            reached=reached,
            quality=timed[-1].quality if timed else None,
            epochs=sum(block.epochs for block in timed),
            epochs_to_converge=timed[-1].last_epoch if reached else None,
            started_at=started_at,
            seconds=train_seconds + eval_seconds if seconds is None else seconds,
            lost_seconds=lost_seconds,
            train_seconds=train_seconds,
            eval_seconds=eval_seconds,
            data_wait_seconds=sum(block.data_wait_seconds for block in timed),
            samples=sum(block.samples for block in timed),
            samples_per_second=statistics.median(rates[1:]) if len(rates) > 1 else None,
            tokens_per_second=(statistics.median(token_rates[1:]) or None) if len(token_rates) > 1 else None,
            first_block_samples_per_second=rates[0] if rates else None,
            first_block_seconds=timed[0].train_seconds if timed else None,
            blocks=tuple(blocks),
        )

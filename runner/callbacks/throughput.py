"""What `timetrial throughput` measures: a fixed number of steps through the training loop, without a target."""

import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from ..core.formatting import format_number
from ..record.throughput_result import ThroughputResult
from ..training.events import BlockEnded, BlockStarted, EvalEnded, EvalStarted, Event, RunStarted, StepEnded
from ..training.workload import Batch, Data


class LimitedBatches:
    """`data` in blocks of `steps` global batches, at most an epoch, and evaluations of `steps` batches of a rank.

    Everything else is delegated to `data`. Its sizes are those of the whole dataset, so that learning rate schedules
    advance as in a real run.
    """

    def __init__(self, data: Data, steps: int) -> None:
        self._data, self._steps = data, steps
        self._endless = itertools.chain.from_iterable(map(data.train_batches, itertools.count(1)))
        self.eval_samples = self.num_eval_batches = 0  # of this rank in the last evaluation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    def warm_up_eval_batches(self) -> Iterator[Batch]:
        """Yield the batches of `data` except partial ones: the end of an evaluation is cut off."""
        return (batch for batch in self._data.warm_up_eval_batches() if not batch.is_partial)

    def train_batches(self, block: int) -> Iterable[Sequence[Batch]]:
        """Return the batches after those of the block before: loaders read on in between, as within an epoch."""
        whole_epoch = self._steps >= self._data.steps_per_epoch
        return self._data.train_batches(block) if whole_epoch else itertools.islice(self._endless, self._steps)

    def eval_batches(self) -> Iterator[Batch]:
        """Yield the first batches of this rank's part."""
        self.eval_samples = self.num_eval_batches = 0
        for batch in itertools.islice(self._data.eval_batches(), self._steps):
            self.eval_samples += int(batch.weight)
            self.num_eval_batches += 1
            yield batch


@dataclass(frozen=True)
class _BlockSpeed:
    """Counts and seconds of one block of training and its evaluation, over all ranks."""

    steps: int
    samples: int
    tokens: int
    train_seconds: float
    data_wait_seconds: float
    eval_samples: int
    eval_tokens: int
    eval_batches: int
    eval_seconds: float

    @property
    def seconds(self) -> float:
        """Training and evaluation."""
        return self.train_seconds + self.eval_seconds


@dataclass
class ThroughputMeter:
    """The observer that measures the speed of each block of training and of the evaluation after it."""

    ranks: int
    data: LimitedBatches
    _blocks: list[_BlockSpeed] = field(default_factory=list)
    _run_started: float | None = None
    _opening_seconds: float | None = None
    _started: float = 0.0
    _steps: int = 0
    _training: dict[str, Any] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        """Follow the run."""
        match event:
            case RunStarted():
                self._run_started = event.time
            case BlockStarted():
                if self._run_started is not None and self._opening_seconds is None:
                    self._opening_seconds = event.time - self._run_started
                self._started, self._steps = event.time, 0
            case StepEnded():
                self._steps += 1
            case BlockEnded(samples=samples, tokens=tokens, data_wait_seconds=data_wait_seconds):
                self._training = {
                    "steps": self._steps,
                    "samples": samples,
                    "tokens": tokens,
                    "train_seconds": event.time - self._started,
                    "data_wait_seconds": data_wait_seconds,
                }
            case EvalStarted():
                self._started = event.time
            case EvalEnded(tokens=tokens):
                block = _BlockSpeed(
                    **self._training,
                    eval_samples=self.data.eval_samples * self.ranks,
                    eval_tokens=tokens * self.ranks,
                    eval_batches=self.data.num_eval_batches,
                    eval_seconds=event.time - self._started,
                )
                self._blocks.append(block)

    def result(self, **devices: Any) -> ThroughputResult:
        """Return medians over the blocks after the first, or over all if there is only one.

        `devices` are the fields of the result that describe the devices: gpus, datasheet_tflops, peer_to_peer and
        usd_per_gpu.
        """
        steady = self._blocks[1:] or self._blocks
        training = [block.train_seconds for block in steady]
        train_rates = [block.samples / block.train_seconds for block in steady]
        eval_rates = [block.eval_samples / block.eval_seconds for block in steady]
        price, rate = devices.pop("usd_per_gpu"), statistics.median(train_rates)
        return ThroughputResult(
            steps=steady[0].steps,
            samples_per_second=rate,
            tokens_per_second=statistics.median(block.tokens / block.train_seconds for block in steady) or None,
            train_ms=statistics.median(block.train_seconds / block.steps for block in steady) * 1000,
            eval_samples_per_second=statistics.median(eval_rates),
            eval_tokens_per_second=statistics.median(b.eval_tokens / b.eval_seconds for b in steady) or None,
            eval_ms=statistics.median(block.eval_seconds / block.eval_batches for block in steady) * 1000,
            train_seconds=sum(training),
            data_wait_seconds=sum(block.data_wait_seconds for block in steady),
            spread=(max(training) - min(training)) / statistics.median(training),
            train_size=self.data.train_size,
            eval_size=self.data.eval_size,
            train_rates=tuple(train_rates),
            eval_rates=tuple(eval_rates),
            first_block_extra_seconds=max(
                self._blocks[0].seconds - statistics.median(block.seconds for block in steady), 0.0
            ),
            usd_per_samples_per_second=price * devices["gpus"] / rate if price else None,
            step_cost=None,
            opening_seconds=self._opening_seconds,
            **devices,
        )


@dataclass
class BlockLines:
    """The observer that prints a line after each block: its speed, and how long the others will take."""

    console: Console
    blocks: int
    _done: int = 0
    _samples: int = 0
    _started: float = 0.0
    _train_seconds: float = 0.0

    def __call__(self, event: Event) -> None:
        """Follow the run."""
        match event:
            case BlockStarted():
                self._started = event.time
            case BlockEnded(samples=samples):
                self._samples, self._train_seconds = samples, event.time - self._started
            case EvalEnded():
                self._done += 1
                rest = (self.blocks - self._done) * (event.time - self._started)
                rate = format_number(self._samples / self._train_seconds)
                left = f", about {rest:.0f} s left" if rest else ""
                line = f"block {self._done} of {self.blocks}: {rate} samples/s{left}"
                self.console.print(line, soft_wrap=True, markup=False, highlight=False)

"""What `timetrial throughput` measures: a fixed number of steps through the same loop, with no target to reach."""

import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape

from ..core.errors import Stopped
from ..core.formatting import format_number
from ..core.signals import StopSignal
from ..record import energy
from ..record.flops import PURCHASE, operations_per_second
from ..record.run_dir import RunDir
from ..training.events import BlockEnded, BlockStarted, EvalEnded, EvalStarted, Event, Observer, StepEnded
from ..training.workload import Batch, Data
from .summary import show_rows, tokens_row


class LimitedBatches:
    """`data` cut to epochs of `steps` global batches, and evaluations of `steps` batches of a rank.

    Its sizes stay those of the whole, by which learning rates rise and fall: as slowly as in a real run.
    """

    def __init__(self, data: Data, steps: int) -> None:
        self._data, self._steps = data, steps
        self.train_size, self.eval_size = data.train_size, data.eval_size
        self.steps_per_epoch = data.steps_per_epoch
        self.evaluated = self.batches = 0  # of this rank in the last evaluation
        self.synthetic_train_batches, self.synthetic_eval_batch, self.mlperf_params = (
            data.synthetic_train_batches,
            data.synthetic_eval_batch,
            data.mlperf_params,
        )

    def train_batches(self, epoch: int) -> Iterable[Sequence[Batch]]:
        """The first batches of the epoch."""
        return itertools.islice(self._data.train_batches(epoch), self._steps)

    def eval_batches(self) -> Iterator[Batch]:
        """The first batches of this rank's share."""
        self.evaluated = self.batches = 0
        for batch in itertools.islice(self._data.eval_batches(), self._steps):
            self.evaluated += int(batch.weight)
            self.batches += 1
            yield batch


@dataclass
class ThroughputMeter:
    """The observer that keeps the speeds of each block of training and of the evaluation after it."""

    ranks: int
    data: LimitedBatches
    blocks: list[dict[str, float]] = field(default_factory=list)
    _started: float = 0.0
    _steps: int = 0

    def __call__(self, event: Event) -> None:
        """Takes one event in."""
        match event:
            case BlockStarted() | EvalStarted():
                self._started, self._steps = event.time, 0
            case StepEnded():
                self._steps += 1
            case BlockEnded(samples=samples, tokens=tokens, data_wait_seconds=waited):
                counted = {"samples": samples, "tokens": tokens, "steps": self._steps}
                self.blocks.append(counted | {"train_seconds": event.time - self._started, "data_wait_seconds": waited})
            case EvalEnded(tokens=tokens):
                self.blocks[-1] |= {
                    "eval_samples": self.data.evaluated * self.ranks,
                    "eval_tokens": tokens * self.ranks,
                    "eval_batches": self.data.batches,
                    "eval_seconds": event.time - self._started,
                }

    def result(self) -> dict[str, Any]:
        """Medians over the blocks after the first (over all, if there is but one)."""
        steady = self.blocks[1:] or self.blocks
        training = [block["train_seconds"] for block in steady]
        whole = [block["train_seconds"] + block["eval_seconds"] for block in (self.blocks[0], *steady)]

        def rates(of: str, by: str) -> list[float]:
            return [block[of] / block[by] for block in steady]

        def median(of: str, by: str) -> float:
            return statistics.median(rates(of, by))

        return {
            "steps": steady[0]["steps"],
            "samples_per_second": median("samples", "train_seconds"),
            "tokens_per_second": median("tokens", "train_seconds") or None,
            "train_ms": median("train_seconds", "steps") * 1000,
            "eval_samples_per_second": median("eval_samples", "eval_seconds"),
            "eval_tokens_per_second": median("eval_tokens", "eval_seconds") or None,
            "eval_ms": median("eval_seconds", "eval_batches") * 1000,
            "waited": sum(block["data_wait_seconds"] for block in steady) / sum(training),
            "spread": (max(training) - min(training)) / statistics.median(training),
            # What an estimate needs: the work of an epoch and an evaluation, and what the first block took more.
            "train_size": self.data.train_size,
            "eval_size": self.data.eval_size,
            "train_rates": rates("samples", "train_seconds"),
            "eval_rates": rates("eval_samples", "eval_seconds"),
            "first_seconds": max(whole[0] - statistics.median(whole[1:]), 0.0),
        }


def until_stopped(stop: StopSignal) -> Observer:
    """An observer that ends the measurement when a stop signal has come; there is nothing to save."""

    def observe(event: Event) -> None:
        if stop.name:
            raise Stopped("Stopped before the measurement was over: run it again.")

    return observe


def show(console: Console, title: str, status: dict[str, Any], folder: RunDir) -> None:
    """Prints the table that ends `timetrial throughput`."""
    rows = []
    if found := status.get("result"):
        spread = f" (blocks within {found['spread']:.1%})" if len(found["train_rates"]) > 1 else ""
        training, evaluation = (format_number(found[f"{of}samples_per_second"]) for of in ("", "eval_"))
        rows += [
            ("training", f"{training} samples/s, {found['train_ms']:.2f} ms a step{spread}"),
            *tokens_row(found["tokens_per_second"]),
            *_operations_row(found),
            ("evaluation", f"{evaluation} samples/s, {found['eval_ms']:.2f} ms a batch"),
            *tokens_row(found["eval_tokens_per_second"]),
            ("waiting", f"{found['waited']:.1%} of training for batches"),
        ]
        if peak := status.get("peak_memory_bytes"):
            rows.append(("memory", f"{peak / 2**30:.1f} GiB at most, on each device"))
        if paid := found[PURCHASE]:
            rows.append(("purchase", f"${format_number(paid)} for each training sample a second"))
    rows += energy.rows(status)
    show_rows(console, title, [*rows, ("folder", escape(str(folder.path)))], status)


def _operations_row(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Operations a second of one card, and their share of its data sheet's peak (model FLOP/s utilisation)."""
    rate = operations_per_second(found)
    if not rate:
        return []
    each, sheet = rate / 1e12 / found["cards"], found["sheet_tflops"]
    share = f", {each / sheet:.1%} of the {sheet:g} that its data sheet promises in this format" if sheet else ""
    return [("", f"{each:.3g} TFLOP/s a card{share}")]

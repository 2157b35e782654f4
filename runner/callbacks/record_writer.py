"""The observer that writes the numbers of a training run to the run record and quality.csv."""

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..core import execution_paths
from ..core.atomic_files import write_atomically
from ..core.errors import Exit
from ..record.run_dir import RunDir
from ..record.run_record import RunClass, RunRecord
from ..record.training_result import Block, TrainingResult
from ..training.clock import now
from ..training.events import (
    BlockEnded,
    BlockStarted,
    EvalEnded,
    EvalStarted,
    Event,
    RunStarted,
    RunStopped,
    StepEnded,
)
from ..training.loop import TrainingPlan


@dataclass
class _Progress:
    """Training of the current block so far."""

    samples: int = 0
    tokens: int = 0
    train_seconds: float = 0.0


@dataclass
class RecordWriter:
    """The observer of rank 0 that keeps the numbers of the run; it writes after each evaluation and at the stop.

    At the stop of a run with a result it also writes the exit code, so that a kill after it cannot undo the result.
    With `keeps_final_weights` the checkpoint holds that code, because the weights must be saved first.
    """

    run_dir: RunDir
    plan: TrainingPlan
    keeps_final_weights: bool = False
    _blocks: list[Block] = field(default_factory=list)
    _started_at: float = 0.0
    _lost_seconds: float = 0.0
    _resumed_from: Mapping[str, Any] | None = None
    _target_reached: bool = False
    _stopped_at: float | None = None
    _block_started: float = 0.0
    _eval_started: float = 0.0
    _current: _Progress = field(default_factory=_Progress)  # since the block started in this attempt
    _carried: _Progress = field(default_factory=_Progress)  # of the block that the checkpoint interrupted
    _ended: BlockEnded | None = None  # the block that is being evaluated
    _train_seconds: float = 0.0  # of that block in this attempt

    def __call__(self, event: Event) -> None:
        """Follow the run."""
        match event:
            case RunStarted():
                self._start(event.time)
            case BlockStarted():
                self._block_started, self._current = event.time, _Progress()
            case StepEnded(samples=samples, tokens=tokens):
                self._current.samples += samples
                self._current.tokens += tokens
            case BlockEnded():
                self._ended = event
                self._train_seconds = event.time - self._block_started
            case EvalStarted():
                self._eval_started = event.time
            case EvalEnded():
                self._add_block(event)
                self._write(event.time)
            case RunStopped(status=status):
                self._target_reached = status == "success"
                self._stopped_at = event.time
                self._write(event.time)

    def state_dict(self) -> dict[str, Any]:
        """Return the blocks so far, the current one included, and the time."""
        current = self._carried
        if self._current.samples and self._ended is None:
            current = _Progress(
                samples=self._carried.samples + self._current.samples,
                tokens=self._carried.tokens + self._current.tokens,
                train_seconds=self._carried.train_seconds + now() - self._block_started,
            )
        return {
            "started_at": self._started_at,
            "lost_seconds": self._lost_seconds,
            "blocks": [asdict(block) for block in self._blocks],
            "current": asdict(current),
            "ended": asdict(self._ended) if self._ended else None,
            "train_seconds": self._train_seconds,
            "time": now(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the run of `state`; the time since then counts as lost."""
        self._resumed_from = state

    def _start(self, time: float) -> None:
        self._started_at = time
        if (state := self._resumed_from) is None:
            return
        self._started_at = state["started_at"]
        self._lost_seconds = state["lost_seconds"] + time - state["time"]
        self._blocks = [Block(**block) for block in state["blocks"]]
        self._carried = _Progress(**state["current"])
        if state["ended"]:
            self._ended, self._train_seconds = BlockEnded(**state["ended"]), state["train_seconds"]
        self.run_dir.update(lambda record: replace(record, run_class=RunClass.RESUMED))

    def _add_block(self, evaluated: EvalEnded) -> None:
        assert self._ended is not None
        block = Block(
            first_epoch=self._ended.first_epoch,
            epochs=self._ended.epochs,
            samples=self._ended.samples + self._carried.samples,
            tokens=self._ended.tokens + self._carried.tokens,
            loss=self._ended.loss,
            train_seconds=self._train_seconds + self._carried.train_seconds,
            data_wait_seconds=self._ended.data_wait_seconds,
            eval_seconds=evaluated.time - self._eval_started,
            quality=dict(evaluated.quality),
            ended_at=evaluated.time,
            past_target=self._target_reached,
        )
        self._blocks.append(block)
        self._current, self._carried, self._ended = _Progress(), _Progress(), None
        self._write_quality()

    def _write(self, time: float) -> None:
        training = TrainingResult.from_blocks(
            self._blocks,
            target=self.plan.target,
            reached=self._target_reached,
            started_at=self._started_at,
            stopped_at=self._stopped_at or time,
            lost_seconds=self._lost_seconds,
        )
        exit_code = None if self._stopped_at is None or self.keeps_final_weights else self._result(training)

        def add(record: RunRecord) -> RunRecord:
            record = replace(record, training=training, execution_paths=execution_paths.taken())
            return record if exit_code is None else record.training_ended(exit_code, "")

        self.run_dir.update(add)

    def _result(self, training: TrainingResult) -> Exit | None:
        """Return the exit code of a run that has its result, None for one that was stopped."""
        if training.reached:
            return Exit.TARGET_REACHED
        return Exit.TARGET_NOT_REACHED if training.epochs >= self.plan.max_epochs else None

    def _write_quality(self) -> None:
        text = io.StringIO()
        metrics = list(self.plan.target)
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(["epoch", "seconds", "samples", "train_seconds", "eval_seconds", "loss", *metrics])
        for block in self._blocks:
            seconds = (block.ended_at - self._started_at, block.train_seconds, block.eval_seconds)
            elapsed, training, evaluation = (f"{number:.6f}" for number in seconds)
            quality = [block.quality[metric] for metric in metrics]
            rows.writerow([block.last_epoch, elapsed, block.samples, training, evaluation, block.loss, *quality])
        write_atomically(self.run_dir.quality, text.getvalue(), durable=False)

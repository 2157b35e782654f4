"""The training loop: train to a target quality, whatever the framework and the task."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from .engine import Engine
from .events import (
    BlockEnded,
    BlockStarted,
    EvalEnded,
    EvalStarted,
    Event,
    Observer,
    RunInterrupted,
    RunStarted,
    RunStopped,
    StepEnded,
)


class Outcome(Enum):
    """How the loop ended."""

    TARGET_REACHED = "target reached"
    TARGET_NOT_REACHED = "target not reached"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class TrainingPlan:
    """When to evaluate and when to stop; epochs are 1-based, qualities are fractions, or losses: lower is better."""

    target: Mapping[str, float]
    first_eval_epoch: int
    eval_every_epochs: int
    max_epochs: int
    epochs_past_target: int = 0
    extra_eval_epochs: Sequence[int] = ()
    lower_is_better: bool = False

    def target_reached(self, quality: Mapping[str, float]) -> bool:
        """Return whether every metric has reached its target; never without a target."""
        is_met = operator.le if self.lower_is_better else operator.ge
        return bool(self.target) and all(is_met(quality[metric], value) for metric, value in self.target.items())

    def epochs_until_eval(self, completed_epochs: int) -> int:
        """Return the epochs to train until the next evaluation."""
        regular = self.first_eval_epoch - completed_epochs
        if regular <= 0:
            regular = self.eval_every_epochs - -regular % self.eval_every_epochs
        extra = [epoch - completed_epochs for epoch in self.extra_eval_epochs if epoch > completed_epochs]
        return min([regular, *extra])


def train_to_target(
    engine: Engine,
    plan: TrainingPlan,
    observers: Sequence[Observer],
    *,
    completed_epochs: int = 0,
    evaluation_pending: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    stop_requested: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Train until the target is reached, the epochs are used up, or `should_stop` says so.

    The clock runs from RunStarted to RunStopped, and every way out passes through the one `finally`. Epochs past the
    target are trained after the clock has stopped. `should_stop` is asked at the start of each block and after each
    step, on every rank at the same time; `stop_requested` is asked within an evaluation, by each rank alone. With
    `evaluation_pending`, the run continues with the evaluation after `completed_epochs`.
    """

    def emit(event: Event) -> None:
        for observer in observers:
            observer(event)

    def interrupted(*, in_evaluation: bool = False) -> bool:
        if should_stop():
            emit(RunInterrupted(completed_epochs=completed_epochs, evaluation_pending=in_evaluation))
            return True
        return False

    reached = False
    last_epoch = plan.max_epochs
    emit(RunStarted(params=engine.mlperf_params()))
    try:
        engine.open_data()
        while completed_epochs < last_epoch or evaluation_pending:
            if not evaluation_pending:
                epochs = min(plan.epochs_until_eval(completed_epochs), last_epoch - completed_epochs)
                if not _train_block(engine, completed_epochs + 1, epochs, emit, interrupted):
                    return Outcome.TARGET_REACHED if reached else Outcome.INTERRUPTED
                completed_epochs += epochs
            evaluation_pending = False
            emit(EvalStarted(epoch=completed_epochs))
            evaluation = engine.evaluate(stop_requested)
            if evaluation is None:
                interrupted(in_evaluation=True)
                return Outcome.TARGET_REACHED if reached else Outcome.INTERRUPTED
            emit(EvalEnded(epoch=completed_epochs, quality=evaluation.quality, tokens=evaluation.tokens))
            if plan.target_reached(evaluation.quality) and not reached:
                reached = True
                emit(RunStopped(status="success"))
                last_epoch = completed_epochs + plan.epochs_past_target
    finally:
        if not reached:
            emit(RunStopped(status="aborted"))
    return Outcome.TARGET_REACHED if reached else Outcome.TARGET_NOT_REACHED


def _train_block(
    engine: Engine, first_epoch: int, epochs: int, emit: Callable[[Event], None], interrupted: Callable[[], bool]
) -> bool:
    """Train `epochs` epochs, up to the next evaluation, and return whether they were completed."""
    samples = tokens = 0
    emit(BlockStarted(first_epoch=first_epoch, epochs=epochs))
    if interrupted():
        return False
    for epoch in range(first_epoch, first_epoch + epochs):
        for step in engine.train_epoch(epoch):
            samples += step.samples
            tokens += step.tokens
            emit(StepEnded(epoch=epoch, samples=step.samples, tokens=step.tokens))
            if interrupted():
                return False
    stats = engine.synchronize()
    emit(
        BlockEnded(
            first_epoch=first_epoch,
            epochs=epochs,
            samples=samples,
            tokens=tokens,
            loss=stats.loss,
            data_wait_seconds=stats.data_wait_seconds,
        )
    )
    return True

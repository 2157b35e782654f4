"""The loop: trains to a target quality, whatever the framework and the task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .engine import Engine
from .events import BlockEnded, BlockStarted, EvalEnded, EvalStarted, Event, Observer, RunStarted, RunStopped, StepEnded


@dataclass(frozen=True)
class TrainingPlan:
    """When to evaluate and when to stop; epochs are 1-based, quality is in fractions."""

    target: Mapping[str, float]
    first_eval_epoch: int
    eval_every_epochs: int
    max_epochs: int
    epochs_past_target: int = 0

    def target_reached(self, quality: Mapping[str, float]) -> bool:
        """True when every metric has reached its target; never where there is none."""
        return bool(self.target) and all(quality[metric] >= least for metric, least in self.target.items())

    def epochs_until_eval(self, done: int) -> int:
        """Epochs to train after `done` epochs until the next evaluation."""
        if done < self.first_eval_epoch:
            return self.first_eval_epoch - done
        return self.eval_every_epochs - (done - self.first_eval_epoch) % self.eval_every_epochs


def train_to_target(engine: Engine, plan: TrainingPlan, observers: Sequence[Observer], *, done: int = 0) -> bool:
    """Trains until `plan` is met or its epochs are used up, `done` epochs being behind us; True if the target was met.

    The clock runs from RunStarted to RunStopped and every way out passes through the one `finally`. Epochs past the
    target are trained after the clock has stopped.
    """

    def emit(event: Event) -> None:
        for observe in observers:
            observe(event)

    reached = False
    last_epoch = plan.max_epochs
    emit(RunStarted(params=engine.mlperf_params()))
    try:
        while done < last_epoch:
            epochs = min(plan.epochs_until_eval(done), last_epoch - done)
            samples = tokens = 0
            emit(BlockStarted(first_epoch=done + 1, epochs=epochs))
            for epoch in range(done + 1, done + epochs + 1):
                for step in engine.train_epoch(epoch):
                    samples += step.samples
                    tokens += step.tokens
                    emit(StepEnded(epoch=epoch, samples=step.samples, tokens=step.tokens))
            trained = engine.synchronize()
            emit(
                BlockEnded(
                    first_epoch=done + 1,
                    epochs=epochs,
                    samples=samples,
                    tokens=tokens,
                    loss=trained.loss,
                    data_wait_seconds=trained.data_wait_seconds,
                )
            )
            done += epochs
            emit(EvalStarted(epoch=done))
            evaluated = engine.evaluate()
            emit(EvalEnded(epoch=done, quality=evaluated.quality, tokens=evaluated.tokens))
            if plan.target_reached(evaluated.quality) and not reached:
                reached = True
                emit(RunStopped(status="success"))
                last_epoch = done + plan.epochs_past_target
    finally:
        if not reached:
            emit(RunStopped(status="aborted"))
    return reached

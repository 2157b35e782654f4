"""The loop: trains to a target quality, whatever the framework and the task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .engine import Engine
from .events import BlockEnded, BlockStarted, EvalEnded, EvalStarted, Event, Observer, RunStarted, RunStopped, StepEnded


@dataclass(frozen=True)
class Plan:
    """When to evaluate and when to stop; epochs are 1-based, quality is in fractions."""

    target: Mapping[str, float]
    first_eval: int
    eval_every: int
    max_epochs: int
    epochs_past_target: int = 0

    def met(self, quality: Mapping[str, float]) -> bool:
        """True when every metric has reached its target; never where there is none."""
        return bool(self.target) and all(quality[metric] >= least for metric, least in self.target.items())

    def block_after(self, done: int) -> int:
        """Epochs to train after `done` epochs until the next evaluation."""
        if done < self.first_eval:
            return self.first_eval - done
        return self.eval_every - (done - self.first_eval) % self.eval_every


def train_to_target(engine: Engine, plan: Plan, observers: Sequence[Observer], *, done: int = 0) -> bool:
    """Trains until `plan` is met or its epochs are used up, `done` epochs being behind us; True if the target was met.

    The clock runs from RunStarted to RunStopped and every way out passes through the one `finally`. Epochs past the
    target are trained after the clock has stopped.
    """

    def emit(event: Event) -> None:
        for observe in observers:
            observe(event)

    reached = False
    last_epoch = plan.max_epochs
    emit(RunStarted(facts=engine.facts()))
    try:
        while done < last_epoch:
            epochs = min(plan.block_after(done), last_epoch - done)
            samples = tokens = 0
            emit(BlockStarted(first_epoch=done + 1, epochs=epochs))
            for epoch in range(done + 1, done + epochs + 1):
                for step in engine.epoch(epoch):
                    samples += step.samples
                    tokens += step.tokens
                    emit(StepEnded(epoch=epoch, samples=step.samples, tokens=step.tokens))
            trained = engine.finish()
            emit(
                BlockEnded(
                    first_epoch=done + 1,
                    epochs=epochs,
                    samples=samples,
                    tokens=tokens,
                    loss=trained.loss,
                    waited_seconds=trained.waited_seconds,
                )
            )
            done += epochs
            emit(EvalStarted(epoch=done))
            quality = engine.evaluate()
            emit(EvalEnded(epoch=done, quality=quality))
            if plan.met(quality) and not reached:
                reached = True
                emit(RunStopped(status="success"))
                last_epoch = done + plan.epochs_past_target
    finally:
        if not reached:
            emit(RunStopped(status="aborted"))
    return reached

"""The training loop, with a scripted engine and `list.append` as observer."""

import pytest

from timetrial.runner.core.errors import Diverged
from timetrial.runner.training import clock
from timetrial.runner.training.engine import EvalResult, StepResult, TrainingStats
from timetrial.runner.training.loop import Outcome, TrainingPlan, train_to_target


class ScriptedEngine:
    """An engine that reaches the given qualities, epoch by epoch."""

    def __init__(self, qualities, diverges_in=None):
        self.qualities, self.diverges_in, self.epochs = qualities, diverges_in, []

    def mlperf_params(self):
        return {"train_samples": 20}

    def open_data(self):
        self.opened_at = clock.now()

    def train_epoch(self, number):
        self.epochs.append(number)
        yield from (StepResult(10), StepResult(10))

    def synchronize(self):
        if self.epochs and self.epochs[-1] == self.diverges_in:
            raise Diverged("the loss is NaN")
        return TrainingStats(0.5, data_wait_seconds=0.25)

    def evaluate(self, stop_requested):
        if stop_requested():
            return None
        return EvalResult({"top1": self.qualities[self.epochs[-1] - 1]})


def run(qualities, plan, completed_epochs=0, **options):
    engine, events = ScriptedEngine(qualities, **options), []
    try:
        reached = train_to_target(engine, plan, [events.append], completed_epochs=completed_epochs)
    except Diverged:
        reached = None
    return reached, engine, events


def names(events):
    return [type(event).__name__ for event in events]


def test_stops_at_the_first_evaluation_that_meets_the_target():
    reached, engine, events = run([0.1, 0.5, 0.9], TrainingPlan({"top1": 0.5}, 1, 1, 10))
    assert reached is Outcome.TARGET_REACHED
    assert engine.epochs == [1, 2]
    block = ["BlockStarted", "StepEnded", "StepEnded", "BlockEnded", "EvalStarted", "EvalEnded"]
    assert names(events) == ["RunStarted", *block, *block, "RunStopped"]
    assert events[-1].status == "success"
    assert [event.time for event in events] == sorted(event.time for event in events)
    blocks = [event for event in events if type(event).__name__ == "BlockEnded"]
    assert [(block.loss, block.data_wait_seconds) for block in blocks] == [(0.5, 0.25)] * 2


def test_data_are_opened_when_the_clock_runs():
    _, engine, events = run([0.9], TrainingPlan({"top1": 0.5}, 1, 1, 10))
    assert events[0].time <= engine.opened_at <= events[1].time


def test_run_that_misses_the_target_is_aborted_after_the_last_epoch():
    reached, engine, events = run([0.1] * 3, TrainingPlan({"top1": 0.5}, 1, 1, 3))
    assert reached is Outcome.TARGET_NOT_REACHED
    assert engine.epochs == [1, 2, 3]
    assert events[-1].status == "aborted"


def test_every_metric_must_meet_its_target():
    plan = TrainingPlan({"BBOX": 0.377, "SEGM": 0.339}, 1, 1, 1)
    assert plan.target_reached({"BBOX": 0.377, "SEGM": 0.339})
    assert not plan.target_reached({"BBOX": 0.9, "SEGM": 0.338})


def test_a_loss_meets_its_target_at_or_below_it():
    plan = TrainingPlan({"top1": 1.5}, 1, 1, 9, lower_is_better=True)
    reached, engine, _ = run([1.7, 1.51, 1.5, 1.4], plan)
    assert reached is Outcome.TARGET_REACHED
    assert engine.epochs == [1, 2, 3]
    assert not plan.target_reached({"top1": float("nan")})


def test_exception_stops_the_clock_once():
    reached, _, events = run([0.1] * 5, TrainingPlan({"top1": 0.5}, 1, 1, 5), diverges_in=2)
    assert reached is None
    assert names(events)[-1] == "RunStopped"
    assert events[-1].status == "aborted"
    assert names(events).count("RunStopped") == 1


def test_epochs_past_the_target_come_after_the_stop():
    reached, engine, events = run([0.6] * 9, TrainingPlan({"top1": 0.5}, 1, 1, 5, epochs_past_target=3))
    assert reached is Outcome.TARGET_REACHED
    assert engine.epochs == [1, 2, 3, 4]
    assert names(events).count("RunStopped") == 1
    assert names(events).index("RunStopped") == 7
    assert names(events).count("EvalEnded") == 4


@pytest.mark.parametrize(
    ("completed_epochs", "expected"), [(0, [(1, 2), (3, 4), (7, 4), (11, 1)]), (5, [(6, 1), (7, 4), (11, 1)])]
)
def test_blocks_follow_first_evaluation_and_interval(completed_epochs, expected):
    _, _, events = run([0.1] * 11, TrainingPlan({"top1": 0.5}, 2, 4, 11), completed_epochs=completed_epochs)
    blocks = [(event.first_epoch, event.epochs) for event in events if type(event).__name__ == "BlockStarted"]
    assert blocks == expected


def test_extra_evaluations_divide_blocks():
    """SSD's rules of v0.7: after epochs 40, 50, 55, 60, ..."""
    plan = TrainingPlan({"top1": 0.5}, 50, 5, 63, extra_eval_epochs=[40, 55])
    _, _, events = run([0.1] * 63, plan)
    assert [event.epoch for event in events if type(event).__name__ == "EvalEnded"] == [40, 50, 55, 60, 63]


@pytest.mark.parametrize("step", [0, 3])
def test_stops_early_after_a_step_or_at_the_start_of_a_block(step):
    engine, events, calls = ScriptedEngine([0.1] * 5), [], []

    def should_stop():
        calls.append(1)
        return len(calls) > step

    plan = TrainingPlan({"top1": 0.5}, 1, 1, 5)
    assert train_to_target(engine, plan, [events.append], should_stop=should_stop) is Outcome.INTERRUPTED
    assert names(events)[-2:] == ["RunInterrupted", "RunStopped"]
    assert (events[-2].completed_epochs, events[-1].status) == (step // 3, "aborted")
    assert names(events).count("StepEnded") == (2 if step else 0)


def test_stops_within_an_evaluation_and_continues_with_it():
    plan = TrainingPlan({"top1": 0.5}, 1, 1, 2)
    engine, events = ScriptedEngine([0.1, 0.6]), []
    stop = lambda: len(engine.epochs) == 2 and not names(events).count("RunInterrupted")  # noqa: E731
    options = {"should_stop": lambda: names(events)[-1] == "EvalStarted", "stop_requested": stop}
    assert train_to_target(engine, plan, [events.append], **options) is Outcome.INTERRUPTED
    assert names(events)[-3:] == ["EvalStarted", "RunInterrupted", "RunStopped"]
    assert (events[-2].completed_epochs, events[-2].evaluation_pending) == (2, True)
    events.clear()
    state = {"completed_epochs": 2, "evaluation_pending": True}
    assert train_to_target(engine, plan, [events.append], **state) is Outcome.TARGET_REACHED
    assert names(events) == ["RunStarted", "EvalStarted", "EvalEnded", "RunStopped"]
    assert engine.epochs == [1, 2]


def test_stopping_past_the_target_keeps_it_reached():
    engine, events, plan = ScriptedEngine([0.6] * 9), [], TrainingPlan({"top1": 0.5}, 1, 1, 5, epochs_past_target=3)
    outcome = train_to_target(engine, plan, [events.append], should_stop=lambda: len(engine.epochs) > 1)
    assert outcome is Outcome.TARGET_REACHED
    assert names(events).count("RunStopped") == 1

"""The numbers of a run, and the time that devices wait for batches."""

import time
from dataclasses import replace

import pytest

from timetrial.runner.callbacks import record_writer
from timetrial.runner.callbacks.record_writer import RecordWriter
from timetrial.runner.record.record_file import read_record
from timetrial.runner.record.run_dir import RunDir
from timetrial.runner.training.events import (
    BlockEnded,
    BlockStarted,
    EvalEnded,
    EvalStarted,
    RunStarted,
    RunStopped,
    StepEnded,
)
from timetrial.runner.training.loop import TrainingPlan


def test_engine_measures_the_time_it_waits_for_batches(toy_engine, toy_data, toy_workload):
    class SlowData(toy_data):
        def train_batches(self, epoch):
            for batch in super().train_batches(epoch):
                time.sleep(0.03)
                yield batch

    class SlowWorkload(toy_workload):
        def compute_loss(self, model, batch):
            time.sleep(0.05)
            return super().compute_loss(model, batch)

    engine = toy_engine(SlowWorkload(), SlowData())
    began = time.perf_counter()
    list(engine.train_epoch(1))
    elapsed = time.perf_counter() - began
    assert 4 * 0.03 <= engine.synchronize().data_wait_seconds <= elapsed - 4 * 0.05
    assert engine.synchronize().data_wait_seconds == 0
    engine.data.makes_batches_on_device = True
    assert len(list(engine.train_epoch(2))) == 4
    assert engine.synchronize().data_wait_seconds == 0


EVENTS = (
    RunStarted(time=0.0, params={}),
    BlockStarted(time=0.0, first_epoch=1, epochs=1),
    StepEnded(time=5.0, epoch=1, samples=60),
    StepEnded(time=9.0, epoch=1, samples=40),
    BlockEnded(time=10.0, first_epoch=1, epochs=1, samples=100, loss=1.0, data_wait_seconds=0.4),
    EvalStarted(time=10.0, epoch=1),
    EvalEnded(time=11.0, epoch=1, quality={"top1": 0.6}),
    RunStopped(time=11.0, status="success"),
)


@pytest.fixture
def writer(tmp_path):
    return RecordWriter(RunDir(tmp_path, 1), TrainingPlan({"top1": 0.5}, 1, 1, 1))


def test_numbers_of_a_run(writer, tmp_path):
    for event in EVENTS:
        writer(event)
    training = read_record(tmp_path).training
    assert (training.reached, training.epochs_to_converge, training.samples) == (True, 1, 100)
    assert (training.seconds, training.train_seconds, training.eval_seconds) == (11.0, 10.0, 1.0)
    assert training.data_wait_seconds == 0.4
    assert (training.samples_per_second, training.first_block_samples_per_second) == (None, 10.0)


def test_record_is_written_after_each_evaluation(writer, tmp_path):
    for event in EVENTS[:-1]:
        writer(event)
    training = read_record(tmp_path).training
    assert (training.reached, training.epochs, training.seconds) == (False, 1, 11.0)


def test_resumed_run_continues_the_interrupted_block(writer, tmp_path, monkeypatch):
    for event in EVENTS[:3]:  # interrupted after 60 samples
        writer(event)
    monkeypatch.setattr(record_writer, "now", lambda: 5.0)
    state = writer.state_dict()
    resumed = RecordWriter(RunDir(tmp_path, 1), writer.plan)
    resumed.load_state_dict(state)
    for event in (
        RunStarted(time=100.0, params={}),
        BlockStarted(time=100.0, first_epoch=1, epochs=1),
        BlockEnded(time=104.0, first_epoch=1, epochs=1, samples=40, loss=1.0),
        EvalStarted(time=104.0, epoch=1),
        EvalEnded(time=105.0, epoch=1, quality={"top1": 0.6}),
        RunStopped(time=105.0, status="success"),
    ):
        resumed(event)
    record = read_record(tmp_path)
    (block,) = record.training.blocks
    assert (block.samples, block.train_seconds) == (100, 9.0)
    assert record.run_class == "resumed"
    assert (record.training.seconds, record.training.lost_seconds, record.training.active_seconds) == (105, 95, 10)


def test_epochs_past_the_target_are_not_timed(writer, tmp_path):
    for event in (*EVENTS, *(replace(event, time=event.time + 20) for event in EVENTS[1:7])):
        writer(event)
    training = read_record(tmp_path).training
    assert (len(training.blocks), training.epochs, training.seconds) == (2, 1, 11.0)

"""Waiting for batches: measured by the engine, kept by block, and said where it is much."""

import io
import time

import pytest
import torch
from rich.console import Console

from timetrial.runner.callbacks import summary
from timetrial.runner.hardware import devices
from timetrial.runner.record import energy
from timetrial.runner.record.run_dir import RunDir
from timetrial.runner.training.events import BlockEnded, BlockStarted, EvalEnded, EvalStarted, RunStarted, RunStopped
from timetrial.runner.training.loop import TrainingPlan


def test_the_stopwatch_adds_up_spans_and_begins_anew():
    watch = devices.Stopwatch(torch.device("cpu"))
    for _ in range(3):
        watch.start()
        time.sleep(0.02)
        watch.stop()
        time.sleep(0.05)
    assert watch.seconds() == pytest.approx(0.06, abs=0.03)
    assert watch.seconds() == 0


def test_an_engine_says_how_long_it_waited(toy_engine, toy_data, toy_workload):
    class Slow(toy_data):
        def train_batches(self, epoch):
            for batch in super().train_batches(epoch):
                time.sleep(0.03)
                yield batch

    engine = toy_engine(toy_workload(), Slow())
    list(engine.train_epoch(1))
    assert 4 * 0.03 <= engine.synchronize().data_wait_seconds < 4 * 0.03 + 0.2
    assert engine.synchronize().data_wait_seconds == 0


@pytest.mark.parametrize(("waited", "said"), [(0.6, "loader-bound  6% of training"), (0.4, None)])
def test_more_than_a_twentieth_is_said(tmp_path, waited, said):
    folder = RunDir(tmp_path, 1)
    kept = summary.Summary(folder, TrainingPlan({"top1": 0.5}, 1, 1, 1))
    for event in (
        RunStarted(time=0.0, params={}),
        BlockStarted(time=0.0, first_epoch=1, epochs=1),
        BlockEnded(time=10.0, first_epoch=1, epochs=1, samples=100, loss=1.0, data_wait_seconds=waited),
        EvalStarted(time=10.0, epoch=1),
        EvalEnded(time=11.0, epoch=1, quality={"top1": 0.6}),
        RunStopped(time=11.0, status="success"),
    ):
        kept(event)
    result = folder.status()["result"]
    assert result["data_wait_seconds"] == waited
    out = io.StringIO()
    status = {"result": result} | energy.judge(tmp_path, result, 100, None)
    summary.show(Console(file=out, width=200), "run", status, folder)
    assert (said or "time-to-train") in out.getvalue()
    assert ("loader-bound" in out.getvalue()) == bool(said)

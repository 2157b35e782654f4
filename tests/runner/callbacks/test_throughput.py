"""`timetrial throughput`: the training loop over a limited number of steps, and its measurements."""

import json
import subprocess
import sys

import pytest

from timetrial.runner.callbacks.throughput import LimitedBatches, ThroughputMeter
from timetrial.runner.core.errors import Exit
from timetrial.runner.core.formatting import format_number
from timetrial.runner.record.record_file import read_record
from timetrial.runner.training.events import BlockEnded, BlockStarted, EvalEnded, EvalStarted, RunStarted, StepEnded
from timetrial.runner.training.loop import Outcome, TrainingPlan, train_to_target

PURCHASE_PRICE = "accelerator.usd_per_gpu=300"
TINY = ["workload=cifar10", "model=cnn10", "++recipe.training.width=2", "recipe.global_batch_size=8"]


def throughput(folder, *overrides):
    command = [sys.executable, "-P", "-m", "timetrial", "throughput", *overrides, "accelerator=cpu", "runs_dir=runs"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_block_has_a_fixed_number_of_steps_or_a_full_epoch(toy_engine, toy_data, toy_workload):
    full = toy_data()  # 50 samples in batches of 16: four steps, the last of 2 samples, and one evaluation batch
    for limit, steps, samples in ((2, 2, (32, 18, 32)), (3, 3, (48, 34, 34)), (9, 4, (50, 50, 50))):
        limited = LimitedBatches(full, limit)
        assert (limited.steps_per_epoch, limited.train_size) == (4, 50)  # of a full epoch, for schedules
        limited.global_batch_size, limited.sharding = full.global_batch_size, full.sharding
        meter = ThroughputMeter(1, limited)
        plan = TrainingPlan(target={}, first_eval_epoch=1, eval_every_epochs=1, max_epochs=3)
        outcome = train_to_target(toy_engine(toy_workload(), limited), plan, [meter])
        assert outcome is Outcome.TARGET_NOT_REACHED
        blocks = [(block.steps, block.samples, block.eval_batches, block.eval_samples) for block in meter._blocks]
        assert blocks == [(steps, each, 1, 50) for each in samples]


def test_rates_are_medians_without_the_first_block(toy_data):
    data = LimitedBatches(toy_data(), 2)
    list(data.eval_batches())
    meter, now = ThroughputMeter(4, data), 0.0
    meter(RunStarted(time=-7.0, params={}))
    for seconds in (90.0, 2.0, 4.0, 3.0):
        meter(BlockStarted(time=now, first_epoch=1, epochs=1))
        for _ in range(2):
            meter(StepEnded(time=now, epoch=1, samples=16))
        now += seconds
        meter(BlockEnded(time=now, first_epoch=1, epochs=1, samples=32, tokens=96, loss=0.0, data_wait_seconds=0.3))
        meter(EvalStarted(time=now, epoch=1))
        now += 0.5
        meter(EvalEnded(time=now, epoch=1, quality={}))
    result = meter.result(gpus=4, datasheet_tflops=None, peer_to_peer=True, usd_per_gpu=8.0)
    assert result.samples_per_second == pytest.approx(32 / 3)
    assert result.tokens_per_second == pytest.approx(96 / 3)
    assert (result.steps, result.train_ms) == (2, pytest.approx(1500))
    assert result.eval_samples_per_second == pytest.approx(4 * 50 / 0.5)
    assert result.eval_ms == pytest.approx(500)
    assert (result.opening_seconds, result.first_block_extra_seconds) == (7, pytest.approx(90 - 3))
    assert result.data_wait_fraction == pytest.approx(0.9 / 9)
    assert result.spread == pytest.approx(2 / 3)
    assert result.usd_per_samples_per_second == pytest.approx(32 * 3 / 32)


@pytest.mark.integration
def test_sweep_prints_a_line_per_run_out_of_memory_included(tmp_path):
    # No machine can address a batch of images a million pixels wide.
    resnet = [
        "workload=resnet50",
        "scale=reference",
        "recipe.training.stages=[1,1,1,1]",
        "recipe.global_batch_size=100",
    ]
    sizes = ["recipe.data.image_size=32,64,1000000", "recipe.data.eval_batch_size=10", "launcher=inline"]
    completed = throughput(tmp_path, "-m", *resnet, *sizes, "throughput.steps=1", "throughput.blocks=2")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    *_, first, second, third, fastest, report = completed.stdout.splitlines()
    assert report.startswith("report: ")
    lines = [line.split() for line in (first, second, third)]
    for run, (line, size) in enumerate(zip(lines[:2], (32, 64), strict=True)):
        assert line[:3] == [str(run), f"recipe.data.image_size={size}", "measured"]
        assert all(float(value.replace(",", "")) > 0 for value in line[3:])
    assert lines[2] == ["2", "recipe.data.image_size=1000000", "out", "of", "memory"]
    assert fastest.startswith(f"best: recipe.data.image_size={max(lines[:2], key=_rate)[1].split('=')[1]}, ")
    (best,) = json.loads(next(tmp_path.rglob("sweep.json")).read_text())["best"]
    assert f"{format_number(best['samples_per_second'])} samples/s" in fastest


def _rate(line):
    return float(line[3].replace(",", ""))


@pytest.mark.integration
def test_two_ranks_share_the_batch_and_write_no_log(tmp_path):
    completed = throughput(
        tmp_path, *TINY, "throughput.steps=2", "throughput.blocks=2", "gpus=2", "peer_to_peer=false", PURCHASE_PRICE
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    (folder,) = [path.parent for path in tmp_path.rglob("status.json")]
    record = read_record(folder)
    assert (record.exit_code, record.state) == (Exit.TARGET_REACHED, "measured")
    assert record.throughput.steps == 2
    assert record.throughput.peer_to_peer is record.config["peer_to_peer"] is False
    assert "2 x cpu without peer-to-peer" in completed.stdout
    usd = 2 * 300 / record.throughput.samples_per_second
    assert record.throughput.usd_per_samples_per_second == pytest.approx(usd)
    assert f"${format_number(usd)} per training sample per second" in completed.stdout
    assert not list(folder.glob("result_*.txt"))
    assert "samples/s" in completed.stdout


@pytest.mark.integration
def test_defaults_apply_whatever_override_comes_last(tmp_path):
    completed = throughput(tmp_path, "model=vgg16", "--cfg", "job")
    assert completed.returncode == 0, completed.stderr
    assert "steps: 20" in completed.stdout

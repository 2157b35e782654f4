"""`timetrial throughput`: the same loop over a fixed number of steps, and what it says of them."""

import json
import subprocess
import sys

import pytest

from timetrial.runner.callbacks.throughput import LimitedBatches, ThroughputMeter
from timetrial.runner.core.errors import Exit
from timetrial.runner.core.formatting import format_number
from timetrial.runner.record.record_file import read_record
from timetrial.runner.training.events import BlockEnded, BlockStarted, EvalEnded, EvalStarted, StepEnded
from timetrial.runner.training.loop import TrainingPlan, train_to_target

BOUGHT = "accelerator.usd_per_gpu=300"
TINY = ["workload=cifar10", "model=cnn10", "+recipe.training.width=2", "recipe.global_batch_size=8"]


def throughput(folder, *words):
    command = [sys.executable, "-P", "-m", "timetrial", "throughput", *words, "accelerator=cpu", "runs_dir=runs"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_a_fixed_number_of_steps_or_a_whole_epoch(toy_engine, toy_data, toy_workload):
    whole = toy_data()  # 50 samples in batches of 16: four steps, one evaluation batch
    for asked, made, samples in ((2, 2, 32), (9, 4, 50)):
        fixed = LimitedBatches(whole, asked)
        assert (fixed.steps_per_epoch, fixed.train_size) == (4, 50)  # what a schedule goes by
        fixed.global_batch_size, fixed.sharding = whole.global_batch_size, whole.sharding
        measured = ThroughputMeter(1, fixed)
        plan = TrainingPlan(target={}, first_eval_epoch=1, eval_every_epochs=1, max_epochs=3)
        assert not train_to_target(toy_engine(toy_workload(), fixed), plan, [measured])
        counted = [
            (block["steps"], block.samples, block["eval_batches"], block["eval_samples"]) for block in measured.blocks
        ]
        assert counted == [(made, samples, 1, 50)] * 3


def test_speeds_are_medians_without_the_first_block(toy_data):
    data = LimitedBatches(toy_data(), 2)
    list(data.eval_batches())
    measured, now = ThroughputMeter(4, data), 0.0
    for seconds in (90.0, 2.0, 4.0, 3.0):
        measured(BlockStarted(time=now, first_epoch=1, epochs=1))
        for _ in range(2):
            measured(StepEnded(time=now, epoch=1, samples=16))
        now += seconds
        measured(BlockEnded(time=now, first_epoch=1, epochs=1, samples=32, tokens=96, loss=0.0, data_wait_seconds=0.3))
        measured(EvalStarted(time=now, epoch=1))
        now += 0.5
        measured(EvalEnded(time=now, epoch=1, quality={}))
    result = measured.result(gpus=4, datasheet_tflops=None, peer_to_peer=True, usd_per_gpu=8.0)
    assert result.samples_per_second == pytest.approx(32 / 3)
    assert result.tokens_per_second == pytest.approx(96 / 3)
    assert (result.steps, result.train_ms) == (2, pytest.approx(1500))
    assert result.eval_samples_per_second == pytest.approx(4 * 50 / 0.5)
    assert result.eval_ms == pytest.approx(500)
    assert result.data_wait_fraction == pytest.approx(0.9 / 9)
    assert result.spread == pytest.approx(2 / 3)
    assert result.usd_per_samples_per_second == pytest.approx(32 * 3 / 32)


def test_a_sweep_has_a_line_a_run_and_one_that_does_not_fit(tmp_path):
    # A batch of a million pixels' edge is more than any machine can address, so that none tries.
    chosen = ["workload=resnet50", "recipe.training.stages=[1,1,1,1]", "recipe.global_batch_size=100"]
    sizes = ["recipe.data.image_size=32,64,1000000", "recipe.data.eval_batch_size=10", "launcher=inline"]
    done = throughput(tmp_path, "-m", *chosen, *sizes, "throughput.steps=1", "throughput.blocks=2")
    assert done.returncode == 0, done.stdout + done.stderr
    *_, first, second, third, fastest = done.stdout.splitlines()
    lines = [line.split() for line in (first, second, third)]
    for run, (line, size) in enumerate(zip(lines[:2], (32, 64), strict=True)):
        assert line[:3] == [str(run), f"recipe.data.image_size={size}", "measured"]
        assert all(float(value.replace(",", "")) > 0 for value in line[3:])
    assert lines[2] == ["2", "recipe.data.image_size=1000000", "out", "of", "memory"]
    assert fastest.startswith(f"best: recipe.data.image_size={max(lines[:2], key=_rate)[1].split('=')[1]}, ")
    (kept,) = json.loads(next(tmp_path.rglob("sweep.json")).read_text())["best"]
    assert f"{format_number(kept['samples_per_second'])} samples/s" in fastest


def _rate(line):
    return float(line[3].replace(",", ""))


def test_two_ranks_share_the_batch_and_no_log_is_written(tmp_path):
    done = throughput(
        tmp_path, *TINY, "throughput.steps=2", "throughput.blocks=2", "gpus=2", "peer_to_peer=false", BOUGHT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = [path.parent for path in tmp_path.rglob("status.json")]
    record = read_record(folder)
    assert (record.exit_code, record.state) == (Exit.TARGET_REACHED, "measured")
    assert record.throughput.steps == 2
    assert record.throughput.peer_to_peer is record.config["peer_to_peer"] is False
    assert "2 x cpu without peer-to-peer" in done.stdout
    each = 2 * 300 / record.throughput.samples_per_second
    assert record.throughput.usd_per_samples_per_second == pytest.approx(each)
    assert f"${format_number(each)} per training sample per second" in done.stdout
    assert not list(folder.glob("result_*.txt"))
    assert "samples/s" in done.stdout


def test_a_workload_without_synthetic_data_says_what_it_has(tmp_path):
    done = throughput(tmp_path, "workload=ncf")
    assert done.returncode == Exit.CONFIGURATION
    assert "NCF has no loader data=synthetic: choose data=torch." in done.stderr


def test_defaults_stand_beside_the_words_whatever_comes_last(tmp_path):
    done = throughput(tmp_path, "model=vgg16", "--cfg", "job")
    assert done.returncode == 0, done.stderr
    assert "steps: 20" in done.stdout

"""The table that ends a run, for training and for throughput."""

import io
import os

import pytest
from omegaconf import OmegaConf
from rich.console import Console

from timetrial.runner.launch.result_table import show_result
from timetrial.runner.record.attempt import Attempt
from timetrial.runner.record.reference_throughput import reference_throughputs
from timetrial.runner.record.run_dir import RunDir
from timetrial.runner.record.run_record import ComplianceVerdict, RunRecord, RunState
from timetrial.runner.record.throughput_result import StepCost, ThroughputResult
from timetrial.runner.record.training_result import Block, TrainingResult

ATTEMPTS = (Attempt(1.0, "host", 1), Attempt(2.0, "host", 2))


@pytest.fixture
def show(tmp_path):
    """Return the lines of the table: show(record)."""

    def lines_of(record):
        out = io.StringIO()
        show_result(Console(file=out, width=60), "NCF embedded, 1 x cpu", record, RunDir(tmp_path, 1))
        return out.getvalue().splitlines()

    return lines_of


def training(reached):
    blocks = [
        Block(epoch, 1, 1000, 0, 0.5, 10.0 / epoch, 0.1, 1.0, {"hit_rate": 0.1 * epoch}, 11.0 * epoch, False)
        for epoch in (1, 2, 3)
    ]
    return TrainingResult.from_blocks(
        blocks, target={"hit_rate": 0.3}, reached=reached, started_at=0.0, stopped_at=33.0, lost_seconds=3.5
    )


def throughput(**changes):
    numbers = {
        "steps": 20, "samples_per_second": 100.0, "tokens_per_second": None, "train_ms": 10.0,
        "eval_samples_per_second": 2000.0, "eval_tokens_per_second": None, "eval_ms": 5.0, "train_seconds": 2.0,
        "data_wait_seconds": 0.1, "spread": 0.02, "train_size": 1000, "eval_size": 100, "train_rates": (99.0, 101.0),
        "eval_rates": (2000.0,), "first_block_extra_seconds": 0.5, "gpus": 2, "datasheet_tflops": 100.0,
        "peer_to_peer": True, "usd_per_samples_per_second": None, "step_cost": None,
    }  # fmt: skip
    return ThroughputResult(**numbers | changes)


def test_the_trace_of_a_profiled_run_is_named(show, tmp_path):
    record = RunRecord(training=training(True), attempts=ATTEMPTS, config={"profile": {"steps": "10-12"}})
    assert "  profile       none: the last attempt ended before step 10" in show(record)
    RunDir(tmp_path, 1).profile.touch()
    assert f"  profile       {tmp_path}/profile.json.gz" in show(record)
    os.utime(RunDir(tmp_path, 1).profile, (1.5, 1.5))  # of the attempt before
    assert "  profile       none: the last attempt ended before step 10" in show(record)


def test_training_that_reached_its_target(show, tmp_path):
    RunDir(tmp_path, 1).log.touch()
    record = RunRecord(training=training(True), attempts=ATTEMPTS, verdict=ComplianceVerdict(True, "open, 0.7.0", ()))
    assert show(record) == [
        "",
        "NCF embedded, 1 x cpu",
        "  target        hit_rate 0.3000",
        "  reached       yes (hit_rate 0.3000)",
        "  epochs        3",
        "  time-to-train 33.00 s (train 18.33 s, evaluation 3.00 s)",
        "  throughput    250 samples/s (steady: median of the blocks after the first)",
        "  first block   100 samples/s, 10.00 s",
        "  restarts      1, 3.5 s lost",
        "  MLPerf log    complies (open, 0.7.0)",
        f"  log           {tmp_path}/result_1.txt",
    ]


def test_training_that_missed_its_target(show, tmp_path):
    problems = tuple(f"Problem {number} [x]." for number in range(5))
    record = RunRecord(
        state=RunState.TIME_LIMIT,
        training=training(False),
        verdict=ComplianceVerdict(False, "open, 0.7.0", problems),
        error="The limit was reached.",
    )
    lines = show(record)
    assert "  reached       not yet: the run can be resumed (hit_rate 0.3000)" in lines
    assert "  time          33.00 s (train 18.33 s, evaluation 3.00 s)" in lines
    start = lines.index("  MLPerf log    does not comply (open, 0.7.0)")
    assert [line.strip() for line in lines[start + 1 :]] == [
        *problems[:3],
        "and 2 more, see timetrial check",
        f"run directory {tmp_path}",
        "",
        "time limit: The limit was reached.",
    ]


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (ComplianceVerdict(True, "open, 0.7.0", (), converged=False), "complies, not converged (open, 0.7.0)"),
        (ComplianceVerdict(None, "none", (), converged=False), "stopped, not judged"),
    ],
)
def test_verdict_on_a_run_without_its_target(show, verdict, text):
    assert show(RunRecord(verdict=verdict))[2] == f"  MLPerf log    {text}"


def test_throughput(show):
    cost = StepCost(2, 20.0, 0.0, 4e12, 1e8, 1e7)
    record = RunRecord(
        throughput=throughput(step_cost=cost, usd_per_samples_per_second=3.0), peak_memory_bytes=3 * 2**29
    )
    assert show(record)[2:-1] == [
        "  training      100 samples/s, 10.00 ms per step (blocks within 2.0%)",
        "                10 TFLOP/s per GPU, 10.0% of the data sheet's 100 in this precision",
        "  evaluation    2,000 samples/s, 5.00 ms per batch",
        "  data wait     5.0% of training",
        "  memory        1.5 GiB at most on each device",
        "  purchase      $3 per training sample per second",
    ]


def test_throughput_of_text_in_tokens(show):
    lines = show(RunRecord(throughput=throughput(tokens_per_second=5000.0, train_rates=(100.0,))))
    assert "  training      100 samples/s, 10.00 ms per step" in lines
    assert lines[3] == "                5,000 tokens/s, without padding"


def test_record_without_a_result_shows_error_and_run_directory(show, tmp_path):
    lines = show(RunRecord(state=RunState.FAILED, error="It failed [badly]."))
    assert lines == ["", "NCF embedded, 1 x cpu", f"  run directory {tmp_path}", "", "failed: It failed [badly]."]


def test_a_setting_that_was_measured_by_us_gives_a_multiple_of_it(show, compose):
    overrides = ["accelerator=t4", "workload=ssd", "scale=reference", "data=synthetic", "precision=bf16"]
    node = compose(*overrides, "recipe.global_batch_size=256", "engine.compile=default")
    config = OmegaConf.to_container(node, resolve=True)
    measured = next(row for row in reference_throughputs(config) if row.gpu == "H200")
    result = throughput(samples_per_second=measured.value / 10)
    line = "  your GPU      0.10 x an H200 (samples per second, bf16, same batch; timetrial 0.1.0, 2026-11)"
    assert line in show(RunRecord(throughput=result, config=config))
    assert not [row for row in show(RunRecord(throughput=result)) if "your GPU" in row]

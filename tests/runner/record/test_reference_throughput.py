"""Results beside measurements on known GPUs."""

from dataclasses import replace

import pytest
from omegaconf import OmegaConf

from timetrial.runner.record import reference_throughput
from timetrial.runner.record.performance import read_measurements
from timetrial.runner.record.reference_throughput import compare_with_references, reference_throughputs
from timetrial.runner.record.run_record import RunRecord
from timetrial.runner.record.throughput_result import ThroughputResult
from timetrial.runner.record.training_result import Block, TrainingResult

RESNET50 = [
    "accelerator=h100", "workload=resnet50", "scale=reference", "data=synthetic", "precision=bf16",
    "recipe.global_batch_size=512",
]  # fmt: skip
TRANSFORMER = ["accelerator=h100", "workload=transformer", "scale=reference", "data=synthetic", "precision=bf16"]
NCF = ["accelerator=h100", "workload=ncf", "scale=reference", "precision=bf16"]
GNMT = ["accelerator=h100", "workload=gnmt", "scale=reference", "data=synthetic", "precision=bf16"]


@pytest.fixture
def measured_rate(compose):
    """measured_rate(*overrides): the rate of H200s in performance.csv that these overrides are compared with."""

    def find(*overrides):
        config = OmegaConf.to_container(compose(*overrides), resolve=True)
        (row,) = (row for row in reference_throughputs(config) if row.gpu == "H200")
        return row.value

    return find


@pytest.fixture
def lines(compose):
    """lines(*overrides, samples=, tokens=): what a throughput run with these rates prints beside H200s."""

    def compare(*overrides, samples=1.0, tokens=None):
        result = ThroughputResult(
            steps=20, samples_per_second=samples, tokens_per_second=tokens, train_ms=1.0, eval_samples_per_second=1.0,
            eval_tokens_per_second=None, eval_ms=1.0, train_seconds=1.0, data_wait_seconds=0.0, spread=0.0,
            train_size=1, eval_size=1, train_rates=(samples,), eval_rates=(1.0,), first_block_extra_seconds=0.0,
            gpus=1, datasheet_tflops=None, peer_to_peer=True, usd_per_samples_per_second=None, step_cost=None,
        )  # fmt: skip
        config = OmegaConf.to_container(compose(*overrides), resolve=True)
        lines = compare_with_references(RunRecord(throughput=result, config=config))
        return [line for line in lines if "H200" in line]

    return compare


def test_the_ratio_of_samples_per_second(lines, measured_rate):
    assert lines(*RESNET50, samples=measured_rate(*RESNET50) / 2) == [
        "0.50 x an H200 (samples per second, bf16, same batch; timetrial 0.1.0, 2026-11)"
    ]


def test_the_ratio_of_tokens_per_second(lines, measured_rate):
    assert lines(*GNMT, tokens=measured_rate(*GNMT) * 1.25) == [
        "1.25 x an H200 (tokens per second, bf16, same batch; timetrial 0.1.0, 2026-11)"
    ]


def test_a_rate_of_code_that_has_changed_since_is_marked(lines, monkeypatch):
    old = [replace(row, current=False) for row in read_measurements()]
    monkeypatch.setattr(reference_throughput, "read_measurements", lambda: old)
    (line,) = lines(*GNMT, tokens=1.0)
    assert "same batch; older code of timetrial" in line


def test_every_gpu_that_was_measured_is_compared(compose):
    config = OmegaConf.to_container(compose(*RESNET50), resolve=True)
    assert {row.gpu for row in reference_throughputs(config)} >= {"H100", "H200"}


def test_another_mode_of_compilation_is_named(lines, monkeypatch):
    current = [replace(row, current=True) for row in read_measurements()]
    monkeypatch.setattr(reference_throughput, "read_measurements", lambda: current)
    (line,) = lines(*TRANSFORMER, "recipe.global_batch_size=61440", "engine.compile=null", tokens=1.0)
    assert "same batch; there engine.compile=default; timetrial" in line


def test_several_gpus_are_compared_with_as_many(lines, measured_rate):
    overrides = [*TRANSFORMER, "recipe.global_batch_size=245760", "gpus=4"]
    (line,) = lines(*overrides, tokens=measured_rate(*overrides))
    assert line.startswith("1.00 x 4 H200s (")


@pytest.mark.parametrize(
    "change",
    [
        "recipe.global_batch_size=256", "precision=fp16", "data=torch", "recipe.data.image_size=192", "gpus=2",
        "accelerator=cpu", "recipe.training.stages=[3,4,23,3]",
    ],
)  # fmt: skip
def test_other_work_is_not_compared(lines, change):
    assert lines(*RESNET50)
    assert lines(*RESNET50, change) == []


def test_a_training_run_is_compared_too(compose, measured_rate):
    samples = int(measured_rate(*NCF))
    blocks = [Block(n, 1, samples, 0, 0.5, 2.0, 0.0, 1.0, {"hit_rate": 0.6}, 3.0 * n, False) for n in (1, 2)]
    result = TrainingResult.from_blocks(
        blocks, target={"hit_rate": 0.6}, reached=True, started_at=0.0, stopped_at=6.0, lost_seconds=0.0
    )
    config = OmegaConf.to_container(compose(*NCF), resolve=True)
    (line,) = (line for line in compare_with_references(RunRecord(training=result, config=config)) if "H200" in line)
    assert line.startswith("0.50 x an H200 (samples per second")


@pytest.mark.parametrize("record", [RunRecord(), RunRecord(config={"recipe": None})])
def test_a_run_without_a_result_or_configuration_is_not_compared(record):
    assert compare_with_references(record) == []


REFERENCES = [row for row in read_measurements() if row.settings]


@pytest.mark.parametrize("row", REFERENCES, ids=lambda row: f"{row.workload}-{row.gpu}-{row.value:g}")
def test_every_reference_fits_its_recipe(compose, row):
    overrides = [f"workload={row.workload}", f"scale={row.recipe}", f"data={row.data}"]
    overrides += [f"accelerator={row.gpu.lower()}", f"precision={row.precision}", f"gpus={row.gpus}"]
    overrides += [f"recipe.global_batch_size={row.batch}", *([row.variant] if row.variant else [])]
    config = compose(*overrides)
    assert row in reference_throughputs(OmegaConf.to_container(config, resolve=True))
    assert (config.engine.compile or "") == row.compile

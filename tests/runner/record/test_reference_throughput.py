"""Results beside measurements on known GPUs."""

import re

import pytest
from omegaconf import OmegaConf

from timetrial.runner.record.reference_throughput import compare_with_references, read_reference_throughput
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
    """measured_rate(*overrides): the rate in throughput.csv that these overrides are compared with."""

    def find(*overrides):
        config = OmegaConf.to_container(compose(*overrides), resolve=True)
        (entry,) = (entry for entry in read_reference_throughput() if entry.matches(config))
        return entry.rate

    return find


@pytest.fixture
def lines(compose):
    """lines(*overrides, samples=, tokens=): what is printed of a throughput run with these rates."""

    def compare(*overrides, samples=1.0, tokens=None):
        result = ThroughputResult(
            steps=20, samples_per_second=samples, tokens_per_second=tokens, train_ms=1.0, eval_samples_per_second=1.0,
            eval_tokens_per_second=None, eval_ms=1.0, train_seconds=1.0, data_wait_seconds=0.0, spread=0.0,
            train_size=1, eval_size=1, train_rates=(samples,), eval_rates=(1.0,), first_block_extra_seconds=0.0,
            gpus=1, datasheet_tflops=None, peer_to_peer=True, usd_per_samples_per_second=None, step_cost=None,
        )  # fmt: skip
        config = OmegaConf.to_container(compose(*overrides), resolve=True)
        return compare_with_references(RunRecord(throughput=result, config=config))

    return compare


def test_the_ratio_of_samples_per_second(lines, measured_rate):
    assert lines(*RESNET50, samples=measured_rate(*RESNET50) / 2) == [
        "0.50 x an H200 (samples per second, bf16, same batch; timetrial 0.1.0, 2026-11)"
    ]


def test_the_ratio_of_tokens_per_second(lines, measured_rate):
    assert lines(*GNMT, tokens=measured_rate(*GNMT) * 1.25) == [
        "1.25 x an H200 (tokens per second, bf16, same batch; timetrial 0.1.0, 2026-11)"
    ]


def test_another_mode_of_compilation_is_named(lines):
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
    (line,) = compare_with_references(RunRecord(training=result, config=config))
    assert line.startswith("0.50 x an H200 (samples per second")


@pytest.mark.parametrize("record", [RunRecord(), RunRecord(config={"recipe": None})])
def test_a_run_without_a_result_or_configuration_is_not_compared(record):
    assert compare_with_references(record) == []


@pytest.mark.parametrize("entry", read_reference_throughput(), ids=lambda entry: f"{entry.workload}-{entry.rate:g}")
def test_every_measurement_stands_in_its_source_and_fits_the_recipe(root, compose, entry):
    text = (root / entry.source).read_text()
    written = {f"{entry.rate:,.0f}", f"{entry.rate / 1e6:.0f} M/s"}
    assert any(re.search(rf"(?<![\d,.]){re.escape(number)}(?![\d,])", text) for number in written)
    assert "H200" in text
    network = re.search(r"training.network=(\S+)", entry.settings)
    overrides = [f"workload={entry.workload}", f"scale={entry.scale}", f"data={entry.data}"]
    overrides += [f"accelerator={entry.gpu.lower()}", f"precision={entry.precision}", f"gpus={entry.gpus}"]
    overrides += [f"recipe.global_batch_size={entry.global_batch_size}"]
    config = compose(*overrides, *([f"model={network[1]}"] if network else []))
    assert entry.matches(OmegaConf.to_container(config, resolve=True))
    # Four GPUs trained ResNet-50 compiled, when steps of several could not be captured yet.
    compiled_then = (entry.workload, entry.gpus) == ("resnet50", 4)
    assert ("default" if compiled_then else config.engine.compile or "") == entry.compile

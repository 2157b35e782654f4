"""Training on a GPU: steps that do not wait, captured steps, every precision, two GPUs (`scripts/test --gpu`)."""

import copy
import itertools

import pytest
import torch
from rich.console import Console

from timetrial.runner.core.errors import Exit
from timetrial.runner.hardware import devices
from timetrial.runner.launch.run import launch

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("workload", ["ncf", "gnmt", "transformer", "ssd", "maskrcnn", "gpt", "cifar10"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_steps_do_not_synchronize_with_the_device(build_on_accelerator, precision, workload):
    overrides = ["+recipe.data.cutout_size=8"] if workload == "cifar10" else []
    if workload in ("ssd", "maskrcnn"):  # their loader's thread may wait, and the check is for all threads
        overrides += ["data=synthetic", "recipe.data.generate=null"]
    engine = build_on_accelerator(f"workload={workload}", f"precision={precision}", *overrides, warm_up=True)
    steps = iter(engine.data.train_batches(1))
    engine.train_step(next(steps))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            engine.train_step(next(steps))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    engine.synchronize()


GENERATED = "{num_classes: 4, train_per_class: 100, val_per_class: 20, width: 32, seed: 1}"
MUON_DATA = [f"+recipe.data.generate={GENERATED}", "recipe.data.eval_batch_size=20"]
CAPTURED = {
    "ncf": [],
    "gnmt": ["+recipe.data.pad_to_bucket=true", "recipe.training.dropout=0.1"],
    "transformer": ["recipe.training.dropout=0.1", "tuning.micro_batch_size=512"],
    "transformer compiled": ["recipe.training.dropout=0.1", "engine.compile=default"],
    "gpt": ["tuning.micro_batch_size=8"],
    "cifar10": [],
    "cifar10 muon": ["recipe=cifar10/mini_airbench", "recipe.global_batch_size=20", *MUON_DATA],
    "ssd": [],
    "maskrcnn": [],
    "resnet50": [],
    "resnet50 lars": ["recipe.training.optimizer=lars"],
    "ncf fp16": ["precision=fp16"],
    "gpt fp16": ["precision=fp16", "tuning.micro_batch_size=8"],
    "ssd fp16": ["precision=fp16"],
}


UNMET = {
    "ncf": ["recipe.target.v05.hit_rate=0.99"],
    "transformer": ["recipe.training.dropout=0", "recipe.target.v05.bleu=0.99", "recipe.target.v07.bleu=0.99"],
    "resnet50": ["recipe.target.v05.accuracy=0.99", "recipe.target.v07.accuracy=0.99"],
}


@pytest.fixture
def build(build_on_accelerator):
    """build(name of CAPTURED, capture): an engine after its warm-up, with its data opened."""

    def run(name, capture):
        precision = [] if name.endswith("fp16") else ["precision=bf16"]
        overrides = [f"workload={name.split()[0]}", *precision, *CAPTURED[name], f"engine.capture={capture}"]
        return build_on_accelerator(*overrides, warm_up=True)

    return run


def train(engine, steps):
    """Return the loss of each step."""
    losses = []
    for step in steps:
        engine.train_step(step)
        losses.append(engine.synchronize().loss)
    return losses


@pytest.mark.parametrize("workload", CAPTURED)
def test_captured_steps_equal_eager_ones(build, workload):
    """Losses, weights and qualities are those of eager steps; a state that was saved goes on as if never stopped."""
    captured, eager = build(workload, "true"), build(workload, "false")
    assert captured._captured_steps is not None
    assert eager._captured_steps is None
    batches = [list(itertools.islice(engine.data.train_batches(1), 12)) for engine in (captured, eager)]
    assert all(captured._captured_steps.replay(batch, 1.0) for batch in batches[0][:4])  # their shapes are captured
    captured, eager = build(workload, "true"), build(workload, "false")
    losses = []
    for engine, of_engine in zip((captured, eager), batches, strict=True):
        torch.manual_seed(1)  # engines in one process share the generator that draws dropout
        losses.append(train(engine, of_engine[:8]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for weight, other in zip(captured.model.parameters(), eager.model.parameters(), strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-3, atol=1e-4)
    qualities = [captured.evaluate().quality for _ in range(3)]
    assert qualities[0] == qualities[1] == qualities[2]
    assert qualities[0] == pytest.approx(eager.evaluate().quality, abs=0.05)
    saved = copy.deepcopy(captured.state_dict())
    expected = train(captured, batches[0][8:])
    train(captured, batches[0][:3])
    captured.load_state_dict(saved)
    assert train(captured, batches[0][8:]) == expected
    resumed = build(workload, "true")
    resumed.load_state_dict(saved)
    assert train(resumed, batches[0][8:]) == expected


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_every_precision_reaches_the_embedded_target(compose, tmp_path, precision):
    folders = [f"data_dir={tmp_path}", f"runs_dir={tmp_path}/runs", "launcher=inline"]
    overrides = [f"accelerator={devices.detect_accelerator()}", f"precision={precision}", *folders]
    result = launch(compose(*overrides), Console(quiet=True))
    record = result.run_dir.record()
    assert result.exit_code == Exit.TARGET_REACHED, record.error
    assert record.peak_memory_bytes > 0


@pytest.mark.skipif(torch.accelerator.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("workload", ["ncf", "transformer", "resnet50"])
def test_two_gpus_train_as_one(compose, tmp_path, workload):
    """Captured and eager steps of two GPUs have equal losses, and those of one GPU up to the order of sums."""
    losses = []
    for gpus, capture in ((1, "true"), (2, "true"), (2, "false")):
        overrides = [f"workload={workload}", "scale=embedded", f"gpus={gpus}", f"engine.capture={capture}", "seed=1"]
        overrides += ["precision=fp32", "recipe.max_epochs=3", "launcher=local", *UNMET[workload]]
        overrides += [f"accelerator={devices.detect_accelerator()}", f"data_dir={tmp_path}", f"runs_dir={tmp_path}"]
        result = launch(compose(*overrides), Console(quiet=True))
        record = result.run_dir.record()
        assert result.exit_code == Exit.TARGET_NOT_REACHED, record.error
        losses.append([block.loss for block in record.training.blocks])
    # ResNet-50's learning rate lets the order of sums grow within an epoch; its batch norms see samples of one GPU.
    assert losses[1] == pytest.approx(losses[2], rel=0.1 if workload == "resnet50" else 1e-3)
    if workload != "resnet50":
        assert losses[1] == pytest.approx(losses[0], rel=0.02)

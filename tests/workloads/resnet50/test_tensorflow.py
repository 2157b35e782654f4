"""engine=tensorflow against model.py and the torch engine's optimizers, and through the real loop."""

import io
import math
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from timetrial.datasets.synthetic.images import ClassificationSpec
from timetrial.runner.callbacks.throughput import LimitedBatches
from timetrial.runner.core.errors import ConfigurationError, DataError, DeviceError, Diverged, OutOfMemory
from timetrial.runner.training import events, seeds
from timetrial.runner.training.loop import TrainingPlan, train_to_target
from timetrial.runner.training.workload import Batch, BatchSharding

# Not importorskip: Triton, which torchvision imports, crashes where TensorFlow has been imported before it.
if find_spec("tensorflow") is None:
    pytest.skip("needs TensorFlow", allow_module_level=True)

from timetrial.workloads.common.imagenet.tfdata_loader import TfDataImageNetData
from timetrial.workloads.resnet50 import model, tensorflow_engine, tensorflow_model
from timetrial.workloads.resnet50.tensorflow_engine import TensorFlowEngine
from timetrial.workloads.resnet50.workload import ResNet50

tf = tensorflow_model.tf
READING = """
import hashlib, sys, torch
from timetrial.datasets.synthetic.images import ClassificationSpec
from timetrial.runner.training import seeds
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.common.imagenet.tfdata_loader import TfDataImageNetData
settings = TfDataImageNetData.Settings(sys.argv[1], ClassificationSpec(3, 10, 3, 40), image_size=32, workers=int(sys.argv[2]))
images = TfDataImageNetData(settings, global_batch_size=7, sharding=BatchSharding(), device=torch.device("cpu"), seeds=seeds.derive_streams(1))
digest = hashlib.sha256()
for epoch in (1, 2):
    for (batch,) in images.train_batches(epoch):
        for tensor in batch.inputs:
            digest.update(tensor.contiguous().numpy().tobytes())
print(digest.hexdigest())
"""
STAGES, BATCH, EDGE = [1, 1, 1, 1], 12, 32
# Two CPUs, for two replicas; it must be said before TensorFlow computes anything.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


@pytest.fixture
def data(tmp_path):
    def built(workers=0):
        return TfDataImageNetData(
            TfDataImageNetData.Settings(
                str(tmp_path / "shapes"), ClassificationSpec(3, 10, 3, 40), image_size=EDGE, eval_batch_size=4, workers=workers
            ),
            global_batch_size=BATCH,
            sharding=BatchSharding(),
            device=torch.device("cpu"),
            seeds=seeds.derive_streams(1),
        )

    return built


@pytest.fixture
def build(data):
    def built(*, precision="fp32", gpus=1, accumulation=1, compile_mode=None, steps=0, **changed):
        images = data()
        chosen = {"optimizer": "sgd", "learning_rate": 0.02, "warmup_epochs": 0, "decay_epochs": 50}
        settings = ResNet50.Settings(STAGES, **chosen | {"weight_decay": 1e-2} | changed)
        return TensorFlowEngine(
            ResNet50(settings, images),
            LimitedBatches(images, steps) if steps else images,
            global_batch_size=BATCH,
            accumulation=accumulation,
            precision=precision,
            gpus=gpus,
            compile_mode=compile_mode,
            run_seeds=seeds.derive_streams(1),
        )

    return built


@pytest.fixture
def two_replicas(monkeypatch):
    monkeypatch.setattr(tensorflow_engine, "_devices", lambda *_, **__: ["CPU:0", "CPU:1"])


def copy_of(state):
    """A state as the checkpoint returns it."""
    memory = io.BytesIO()
    torch.save(state, memory)
    memory.seek(0)
    return torch.load(memory, weights_only=True)


def equal(one, two):
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(equal(one[key], two[key]) for key in one)
    return torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two


def differing_torch_model():
    torch.manual_seed(1)
    built = model.build(STAGES, 3)
    for module in built.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for tensor, least, most in ((module.weight, 0.5, 1.5), (module.bias, -0.2, 0.2)):
                torch.nn.init.uniform_(tensor, least, most)
            torch.nn.init.uniform_(module.running_mean, -0.1, 0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 2.0)
    return built


def loaded(state):
    """A Keras model with the values of a torch model's state dict."""
    built = tensorflow_model.build(STAGES, 3)
    tensorflow_model.load_torch(built, state)
    return built


def test_the_model_is_torchs():
    ours = differing_torch_model()
    keras_model = loaded(ours.state_dict())
    pixels = torch.randint(256, (4, 3, 64, 64), dtype=torch.uint8)
    for training in (False, True):
        ours.train(training)
        logits = keras_model(tf.constant(pixels.permute(0, 2, 3, 1).numpy()), training=training)
        expected = ours(pixels).detach().numpy()
        np.testing.assert_allclose(logits.numpy(), expected, atol=1e-4 * max(1, np.abs(expected).max()))
    for mine, theirs in zip(keras_model.weights, loaded(ours.state_dict()).weights, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-4, err_msg=mine.path)


def test_the_reference_network_has_its_parameters_and_initial_values():
    built = tensorflow_model.build([3, 4, 6, 3], 1000, "mixed_bfloat16")
    assert sum(math.prod(weight.shape) for weight in built.trainable_variables) == 25_557_032
    assert built.output.dtype == "float32"
    assert built.get_layer("layer1.0.bn1").output.dtype == "bfloat16"
    one, two = (built.get_layer(f"layer4.{block}.conv2").kernel.numpy() for block in (1, 2))
    assert one.std() == pytest.approx(math.sqrt(2 / (512 * 9)), rel=0.01)
    assert np.abs(one).max() > 4 * one.std()  # not truncated
    assert not np.array_equal(one, two)
    assert built.get_layer("fc").kernel.numpy().std() == pytest.approx(0.01, rel=0.01)


@pytest.mark.parametrize("optimizer", ["sgd", "lars"])
def test_equal_gradients_make_equal_updates(build, optimizer):
    engine, ours = build(optimizer=optimizer, learning_rate=0.5), differing_torch_model()
    tensorflow_model.load_torch(engine.model, ours.state_dict())
    theirs, schedule = engine.workload.build_optimizer(ours, 3)
    mine = tf.function(engine._update_of(0), autograph=False)
    for step in range(3):
        for parameter in ours.parameters():
            parameter.grad = torch.randn_like(parameter)
        gradients = loaded(ours.state_dict() | {name: tensor.grad for name, tensor in ours.named_parameters()})
        mine([variable.value for variable in gradients.trainable_variables], engine.workload.rate(step, 3), 1.0)
        theirs.step()
        schedule.step()
    for one, two in zip(engine.model.trainable_variables, loaded(ours.state_dict()).trainable_variables, strict=True):
        assert one.path == two.path
        np.testing.assert_allclose(one.numpy(), two.numpy(), rtol=1e-4, atol=1e-5, err_msg=one.path)


def test_the_last_batch_norm_of_a_block_starts_at_zero_where_it_is_asked_for(build):
    def zeros(engine):
        return {one.path for one in engine.model.trainable_variables if one.name == "gamma" and not one.numpy().any()}

    assert zeros(build(zero_last_gamma=True)) == {f"layer{stage}.0.bn3/gamma" for stage in (1, 2, 3, 4)}
    assert zeros(build()) == set()


def step_on_both_sides(engine, replicas):
    """Makes one step each, torch's by accumulating over the replicas' shares; nothing may differ but by rounding."""
    ours = differing_torch_model()
    tensorflow_model.load_torch(engine.model, ours.state_dict())
    before = [variable.numpy() for variable in engine.model.trainable_variables]
    update, _ = engine.workload.build_optimizer(ours, engine.data.steps_per_epoch)
    pixels, labels = torch.randint(256, (BATCH, 3, EDGE, EDGE), dtype=torch.uint8), torch.arange(BATCH) % 3
    loss = 0.0
    for parts in zip(pixels.chunk(replicas), labels.chunk(replicas), strict=True):
        part = engine.workload.compute_loss(ours.train(), Batch(parts, len(parts[1]), BATCH, BATCH)) / BATCH
        part.backward()
        loss += part.item()
    update.step()
    engine._train(tf.constant(pixels.permute(0, 2, 3, 1).numpy()), tf.constant(labels.numpy()))
    assert engine.synchronize().loss == pytest.approx(loss, rel=1e-5)
    expected = loaded(ours.state_dict()).trainable_variables
    for mine, theirs, start in zip(engine.model.trainable_variables, expected, before, strict=True):
        # Both sides are up to 0.01 from a step in float64: where rounding flips a ReLU, a gradient changes.
        moved = np.linalg.norm(theirs.numpy() - start)
        assert np.linalg.norm(mine.numpy() - theirs.numpy()) < 0.03 * moved, mine.path


@pytest.mark.parametrize("compile_mode", [None, "default"])
def test_a_step_has_the_loss_and_the_gradients_of_the_torch_side(build, compile_mode):
    step_on_both_sides(build(compile_mode=compile_mode), 1)


@pytest.mark.parametrize("compile_mode", [None, "default"])
def test_two_replicas_share_a_batch_as_two_ranks_do(build, two_replicas, compile_mode):
    step_on_both_sides(build(compile_mode=compile_mode), 2)


def test_two_replicas_stay_alike_but_for_what_their_batch_norms_saw(build, two_replicas):
    engine = build()
    list(engine.train_epoch(1))
    for copies in (*engine._weights.values(), *engine._momenta.values()):
        np.testing.assert_array_equal(*(copy.numpy() for copy in copies))
    name = "bn1/moving_mean"
    one, two = (copy.numpy() for copy in engine._moving[name])
    assert not np.array_equal(one, two)  # each has seen its own images
    saved = copy_of(engine.state_dict())
    engine.evaluate()
    for copy in engine._moving[name]:
        np.testing.assert_allclose(copy.numpy(), (one + two) / 2, rtol=1e-6)
    engine.load_state_dict(saved)
    assert equal(engine.state_dict(), saved)
    assert engine.mlperf_params()["model_bn_span"] == BATCH / 2


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_loop_learns(build, precision):
    engine = build(precision=precision, learning_rate=0.003)
    before = copy_of(engine.state_dict())
    engine.warm_up(1)
    assert equal(engine.state_dict(), before)
    seen = []
    plan = TrainingPlan(target={"accuracy": 1.01}, first_eval_epoch=1, eval_every_epochs=5, max_epochs=6)
    assert not train_to_target(engine, plan, [seen.append])
    assert [event.samples for event in seen if isinstance(event, events.StepEnded)] == [12, 12, 6] * 6
    first, last = (event for event in seen if isinstance(event, events.BlockEnded))
    assert last.loss < first.loss
    assert last.data_wait_seconds > 0
    assert engine.mlperf_params()["model_bn_span"] == BATCH


def test_equal_seeds_and_a_resumed_epoch_give_equal_bits(build):
    whole, broken = build(precision="fp16"), build(precision="fp16")
    assert equal(whole.state_dict(), broken.state_dict())
    list(whole.train_epoch(1))
    steps = broken.train_epoch(1)
    next(steps)
    saved = copy_of(broken.state_dict())
    list(steps)
    resumed = build(precision="fp16")
    resumed.load_state_dict(saved)
    assert [step.samples for step in resumed.train_epoch(1)] == [12, 6]
    assert equal(resumed.state_dict(), whole.state_dict())
    assert resumed.synchronize().loss == whole.synchronize().loss
    assert resumed.evaluate() == whole.evaluate()
    assert list(resumed.train_epoch(0)) == list(resumed.train_epoch(1)) == []


def test_an_overflow_halves_the_scale_and_changes_no_weight(build):
    engine = build(precision="fp16")
    engine._scale.assign(2.0**120)
    before = engine.state_dict()
    next(engine.train_epoch(1))
    after = engine.state_dict()
    assert equal(after["weights"], before["weights"])
    assert equal(after["momenta"], before["momenta"])
    assert after["scale"] == 2.0**119


def test_a_loss_that_is_not_finite_ends_the_run(build):
    engine = build(learning_rate=1e30, end_learning_rate=1e30)
    list(engine.train_epoch(1))
    with pytest.raises(Diverged):
        engine.synchronize()


def test_reading_processes_change_no_batch(data, tmp_path):
    """In a process of its own: one that has run TensorFlow has threads, and must not be forked."""
    digests = []
    for workers in (0, 2):
        done = subprocess.run(
            [sys.executable, "-P", "-c", READING, str(tmp_path), str(workers)],
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        digests.append(done.stdout)
    assert len(digests[0]) == 65
    assert digests[0] == digests[1]


@pytest.mark.parametrize("end", [b"", b"\xff\xd9"])
def test_a_broken_file_ends_the_epoch_by_name(data, tmp_path, end):
    images = data()
    victim = sorted(tmp_path.rglob("train/*/*.*"))[5]
    whole = victim.read_bytes()
    victim.write_bytes(whole[: len(whole) // 2] + end)  # with an end marker, only a decoder sees it
    with pytest.raises(DataError, match=f"{victim.parent.name}/{victim.name} cannot be decoded"):
        list(images.batches(True, 1, images.train_plan(1)[1]))


def test_running_out_of_memory_has_its_sentence(build):
    engine = build()

    def exhausted(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM")

    engine._step = engine._rare_step = engine._count_right = exhausted
    for spent in (lambda: next(engine.train_epoch(1)), engine.evaluate):
        with pytest.raises(OutOfMemory, match="global_batch_size"):
            spent()


def test_what_cannot_be_run_is_refused(build):
    with pytest.raises(ConfigurationError, match="throughput"):
        build(steps=2)
    with pytest.raises(ConfigurationError, match="accumulate"):
        build(accumulation=2)
    with pytest.raises(ConfigurationError, match="basic blocks"):
        build(block="basic")
    with pytest.raises(ConfigurationError, match="XLA"):
        build(compile_mode="max-autotune")
    with pytest.raises(DeviceError, match="one replica"):
        build(gpus=2)
    with pytest.raises(DeviceError, match="TF32"):
        build(precision="tf32")
    with pytest.raises(DeviceError, match="finds"):
        tensorflow_engine._devices(999, "fp32", on_cpu=False)


@pytest.mark.slow
def test_the_embedded_target_is_reached_through_the_same_loop(tmp_path):
    words = [
        "workload=resnet50",
        "engine=tensorflow",
        "accelerator=cpu",
        f"data_dir={tmp_path}",
        f"runs={tmp_path}/runs",
    ]
    done = subprocess.run([sys.executable, "-P", "-m", "timetrial", "run", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "complies" in done.stdout
    (log,) = (tmp_path / "runs").rglob("result_1.txt")
    assert '"timetrial_engine", "value": "tensorflow"' in log.read_text()

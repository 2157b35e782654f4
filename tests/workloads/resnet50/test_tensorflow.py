"""The TensorFlow engine against model.py and the PyTorch optimizers, and in the training loop."""

import io
import math

import numpy as np
import pytest
import torch

from timetrial.datasets.synthetic.images import ClassificationSpec
from timetrial.runner.callbacks.throughput import LimitedBatches
from timetrial.runner.core.errors import ConfigurationError, DeviceError, Diverged, OutOfMemory
from timetrial.runner.training import events, seeds
from timetrial.runner.training.loop import Outcome, TrainingPlan, train_to_target
from timetrial.runner.training.workload import Batch, BatchSharding

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module", autouse=True)
def tensorflow():
    """Import TensorFlow and what imports it when the tests run, not when they are collected."""
    global TfDataImageNetData, model, tensorflow_devices, tensorflow_model, TensorFlowEngine, ResNet50, tf
    from timetrial.workloads.common.imagenet.tfdata_loader import TfDataImageNetData
    from timetrial.workloads.resnet50 import model, tensorflow_devices, tensorflow_model
    from timetrial.workloads.resnet50.tensorflow_engine import TensorFlowEngine
    from timetrial.workloads.resnet50.workload import ResNet50

    tf = tensorflow_model.tf


STAGES, BATCH_SIZE, IMAGE_SIZE = [1, 1, 1, 1], 12, 32


@pytest.fixture
def build(tmp_path):
    def built(*, precision="fp32", gpus=1, accumulation=1, compile_mode=None, steps=0, **changes):
        folder, prepared, shapes = f"{tmp_path}/shapes", f"{tmp_path}/prepared", ClassificationSpec(3, 10, 3, 40)
        chosen = TfDataImageNetData.Settings(
            folder, shapes, prepared, image_size=IMAGE_SIZE, eval_batch_size=4, workers=0
        )
        TfDataImageNetData.prepare_data(chosen, lambda *progress: None)
        common = {"global_batch_size": BATCH_SIZE, "sharding": BatchSharding(), "seeds": seeds.derive_streams(1)}
        images = TfDataImageNetData(chosen, **common, device=torch.device("cpu"))
        images.open()
        settings = {
            "optimizer": "sgd",
            "learning_rate": 0.02,
            "warmup_epochs": 0,
            "end_epoch": 50,
            "weight_decay": 1e-2,
        }
        return TensorFlowEngine(
            ResNet50(ResNet50.Settings(STAGES, **settings | changes), images),
            LimitedBatches(images, steps) if steps else images,
            global_batch_size=BATCH_SIZE,
            accumulation=accumulation,
            precision=precision,
            gpus=gpus,
            compile_mode=compile_mode,
            run_seeds=seeds.derive_streams(1),
        )

    return built


@pytest.fixture
def two_replicas(monkeypatch):
    monkeypatch.setattr(tensorflow_devices, "select_devices", lambda *_, **__: ["CPU:0", "CPU:1"])


def round_trip(state):
    """Return the state as a checkpoint restores it."""
    memory = io.BytesIO()
    torch.save(state, memory)
    memory.seek(0)
    return torch.load(memory, weights_only=True)


def is_equal(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(is_equal(a[key], b[key]) for key in a)
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def random_torch_model():
    torch.manual_seed(2)
    built = model.build_resnet(STAGES, 3)
    for module in built.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for tensor, low, high in ((module.weight, 0.5, 1.5), (module.bias, -0.2, 0.2)):
                torch.nn.init.uniform_(tensor, low, high)
            torch.nn.init.uniform_(module.running_mean, -0.1, 0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 2.0)
    return built


def keras_model_of(state):
    """Return a Keras model with the values of a PyTorch state dict."""
    built = tensorflow_model.build_resnet(STAGES, 3)
    tensorflow_model.load_torch(built, state)
    return built


def test_model_equals_pytorch():
    ours = random_torch_model()
    keras_model = keras_model_of(ours.state_dict())
    pixels = torch.randint(256, (4, 3, 64, 64), dtype=torch.uint8)
    for training in (False, True):
        ours.train(training)
        logits = keras_model(tf.constant(pixels.permute(0, 2, 3, 1).numpy()), training=training)
        expected = ours(pixels).detach().numpy()
        np.testing.assert_allclose(logits.numpy(), expected, atol=1e-4 * max(1, np.abs(expected).max()))
    for weight, expected in zip(keras_model.weights, keras_model_of(ours.state_dict()).weights, strict=True):
        np.testing.assert_allclose(weight.numpy(), expected.numpy(), rtol=1e-4, atol=1e-4, err_msg=weight.path)


def test_reference_network_has_its_parameters_and_initialization():
    built = tensorflow_model.build_resnet([3, 4, 6, 3], 1000, "mixed_bfloat16")
    assert sum(math.prod(weight.shape) for weight in built.trainable_variables) == 25_557_032
    assert built.output.dtype == "float32"
    assert built.get_layer("layer1.0.bn1").output.dtype == "bfloat16"
    first, second = (built.get_layer(f"layer4.{block}.conv2").kernel.numpy() for block in (1, 2))
    assert first.std() == pytest.approx(math.sqrt(2 / (512 * 9)), rel=0.01)
    assert np.abs(first).max() > 4 * first.std()  # not truncated
    assert not np.array_equal(first, second)
    assert built.get_layer("fc").kernel.numpy().std() == pytest.approx(0.01, rel=0.01)


@pytest.mark.parametrize("optimizer", ["sgd", "lars"])
def test_equal_gradients_give_equal_updates(build, optimizer):
    engine, ours = build(optimizer=optimizer, learning_rate=0.5), random_torch_model()
    tensorflow_model.load_torch(engine.model, ours.state_dict())
    optimizer, schedule = engine.workload.build_optimizer(ours, 3)
    update = tf.function(engine._build_update(0), autograph=False)
    for step in range(3):
        for parameter in ours.parameters():
            parameter.grad = torch.randn_like(parameter)
        gradients = keras_model_of(ours.state_dict() | {name: tensor.grad for name, tensor in ours.named_parameters()})
        update(
            [variable.value for variable in gradients.trainable_variables], engine.workload.learning_rate(step, 3), 1.0
        )
        optimizer.step()
        schedule.step()
    expected_variables = keras_model_of(ours.state_dict()).trainable_variables
    for variable, expected in zip(engine.model.trainable_variables, expected_variables, strict=True):
        assert variable.path == expected.path
        np.testing.assert_allclose(variable.numpy(), expected.numpy(), rtol=1e-4, atol=1e-5, err_msg=variable.path)


def test_zero_last_gamma_zeroes_the_last_batch_norm_of_each_block(build):
    def zeros(engine):
        gammas = [variable for variable in engine.model.trainable_variables if variable.name == "gamma"]
        return {gamma.path for gamma in gammas if not gamma.numpy().any()}

    assert zeros(build(zero_last_gamma=True)) == {f"layer{stage}.0.bn3/gamma" for stage in (1, 2, 3, 4)}
    assert zeros(build()) == set()


def assert_equal_steps(engine, replicas):
    """Make one step with each framework, PyTorch's with accumulation, and assert equality up to rounding."""
    ours = random_torch_model()
    tensorflow_model.load_torch(engine.model, ours.state_dict())
    before = [variable.numpy() for variable in engine.model.trainable_variables]
    optimizer, _ = engine.workload.build_optimizer(ours, engine.data.steps_per_epoch)
    pixels, labels = (
        torch.randint(256, (BATCH_SIZE, 3, IMAGE_SIZE, IMAGE_SIZE), dtype=torch.uint8),
        torch.arange(BATCH_SIZE) % 3,
    )
    loss = 0.0
    for parts in zip(pixels.chunk(replicas), labels.chunk(replicas), strict=True):
        part = (
            engine.workload.compute_loss(ours.train(), Batch(parts, len(parts[1]), BATCH_SIZE, BATCH_SIZE)) / BATCH_SIZE
        )
        part.backward()
        loss += part.item()
    optimizer.step()
    engine._train(tf.constant(pixels.permute(0, 2, 3, 1).numpy()), tf.constant(labels.numpy()))
    assert engine.synchronize().loss == pytest.approx(loss, rel=1e-5)
    expected = keras_model_of(ours.state_dict()).trainable_variables
    for variable, target, start in zip(engine.model.trainable_variables, expected, before, strict=True):
        # Both are up to 0.01 from a step in float64: if rounding flips a ReLU, a gradient changes.
        step_length = np.linalg.norm(target.numpy() - start)
        assert np.linalg.norm(variable.numpy() - target.numpy()) < 0.03 * step_length, variable.path


@pytest.mark.parametrize("compile_mode", [None, "default"])
def test_step_equals_pytorch(build, compile_mode):
    assert_equal_steps(build(compile_mode=compile_mode), 1)


@pytest.mark.parametrize("compile_mode", [None, "default"])
def test_two_replicas_split_a_batch_like_two_ranks(build, two_replicas, compile_mode):
    assert_equal_steps(build(compile_mode=compile_mode), 2)


def test_replicas_differ_only_in_batch_norm_statistics(build, two_replicas):
    engine = build()
    list(engine.train_epoch(1))
    for copies in (*engine._weights.values(), *engine._momenta.values()):
        np.testing.assert_array_equal(*(copy.numpy() for copy in copies))
    name = "bn1/moving_mean"
    first, second = (copy.numpy() for copy in engine._statistics[name])
    assert not np.array_equal(first, second)  # each replica has seen its own images
    saved = round_trip(engine.state_dict())
    engine.evaluate()
    for copy in engine._statistics[name]:
        np.testing.assert_allclose(copy.numpy(), (first + second) / 2, rtol=1e-6)
    engine.load_state_dict(saved)
    assert is_equal(engine.state_dict(), saved)
    assert engine.mlperf_params()["model_bn_span"] == BATCH_SIZE / 2


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_training_loop_reduces_the_loss(build, precision):
    engine = build(precision=precision, learning_rate=0.003)
    before = round_trip(engine.state_dict())
    engine.warm_up(1)
    assert is_equal(engine.state_dict(), before)
    observed = []
    plan = TrainingPlan(target={"accuracy": 1.01}, first_eval_epoch=1, eval_every_epochs=5, max_epochs=6)
    assert train_to_target(engine, plan, [observed.append]) is Outcome.TARGET_NOT_REACHED
    assert [event.samples for event in observed if isinstance(event, events.StepEnded)] == [12, 12, 12] * 6
    first, last = (event for event in observed if isinstance(event, events.BlockEnded))
    assert last.loss < first.loss
    assert last.data_wait_seconds > 0
    assert engine.mlperf_params()["model_bn_span"] == BATCH_SIZE


def test_equal_seeds_and_resuming_give_equal_bits(build):
    whole, broken = build(precision="fp16"), build(precision="fp16")
    assert is_equal(whole.state_dict(), broken.state_dict())
    list(whole.train_epoch(1))
    steps = broken.train_epoch(1)
    next(steps)
    saved = round_trip(broken.state_dict())
    list(steps)
    resumed = build(precision="fp16")
    resumed.load_state_dict(saved)
    assert [step.samples for step in resumed.train_epoch(1)] == [12, 12]
    assert is_equal(resumed.state_dict(), whole.state_dict())
    assert resumed.synchronize().loss == whole.synchronize().loss
    assert resumed.evaluate() == whole.evaluate()
    assert list(resumed.train_epoch(0)) == list(resumed.train_epoch(1)) == []


def test_overflow_halves_the_scale_and_changes_no_weight(build):
    engine = build(precision="fp16")
    engine._scale.assign(2.0**120)
    before = engine.state_dict()
    next(engine.train_epoch(1))
    after = engine.state_dict()
    assert is_equal(after["weights"], before["weights"])
    assert is_equal(after["momenta"], before["momenta"])
    assert after["scale"] == 2.0**119


def test_raises_if_the_loss_is_not_finite(build):
    engine = build(learning_rate=1e30, end_learning_rate=1e30)
    list(engine.train_epoch(1))
    with pytest.raises(Diverged):
        engine.synchronize()


def test_reports_exhausted_memory(build):
    engine = build()

    def exhausted(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM")

    engine._step = engine._count_correct = exhausted
    for call in (lambda: next(engine.train_epoch(1)), engine.evaluate):
        with pytest.raises(OutOfMemory, match="global_batch_size"):
            call()


def test_rejects_unsupported_settings(build):
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
        tensorflow_devices.select_devices(999, "fp32", on_cpu=False)

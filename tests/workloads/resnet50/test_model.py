"""The network against torchvision's, its initialization, optimizers and schedule."""

import math

import pytest
import torch
from torch import nn
from torchvision.models import resnet50

from timetrial.runner.config.validation import build_settings, validate
from timetrial.workloads.resnet50 import model
from timetrial.workloads.resnet50.workload import ResNet50


class Sizes:
    num_classes, steps_per_epoch, images_per_statistic = 1000, 10, 32


def workload(compose, *overrides):
    config = validate(compose("workload=resnet50", "scale=reference", *overrides))
    return ResNet50(build_settings(ResNet50, config.recipe.training, ""), Sizes())


def test_parameters_and_norms_equal_torchvision():
    network, reference = model.build_resnet([3, 4, 6, 3], 1000), resnet50()
    assert sum(weight.numel() for weight in network.parameters()) == 25_557_032
    shapes = [{name: tensor.shape for name, tensor in net.state_dict().items()} for net in (network, reference)]
    assert shapes[0] == shapes[1]
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    assert {(norm.momentum, norm.eps) for norm in norms} == {(0.1, 1e-5)}  # 0.9 in the references' convention


def test_logits_equal_torchvision_with_the_same_weights():
    torch.manual_seed(1)
    network, reference = model.build_resnet([3, 4, 6, 3], 10).double(), resnet50(num_classes=10).double()
    reference.load_state_dict(network.state_dict())
    pixels = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)
    normalized = pixels.double() - torch.tensor(model.MEAN, dtype=torch.float64).view(1, 3, 1, 1)
    for training in (True, False):
        network.train(training)
        reference.train(training)
        torch.testing.assert_close(network(pixels), reference(normalized), rtol=1e-4, atol=1e-4)


def test_initialization_equals_the_reference():
    torch.manual_seed(1)
    network = model.build_resnet([3, 4, 6, 3], 1000)
    layer = network.layer4[1].conv2.weight
    assert layer.std().item() == pytest.approx(math.sqrt(2 / (512 * 9)), rel=0.01)
    assert network.fc.weight.std().item() == pytest.approx(0.01, rel=0.01)
    assert not network.fc.bias.any()
    assert all(bool((block.bn3.weight == 1).all()) for block in network.layer1)
    assert all(
        not block.bn3.weight.any() for block in model.build_resnet([1, 1, 1, 1], 10, zero_last_gamma=True).layer1
    )
    assert network.layer1[0].conv2.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("recipe", "optimizer_name", "vectors"), [("reference_256", "SGD", {"fc.bias"}), ("reference", "LARS", set())]
)
def test_weight_decay_excludes_norms_and_with_lars_all_vectors(compose, recipe, optimizer_name, vectors):
    """SGD decays all but batch norms; LARS decays and scales matrices and kernels only.

    Source: docs/mlperf_rules.md, "ResNet-50".
    """
    task = workload(compose, f"recipe=resnet50/{recipe}")
    network = task.build_model()
    optimizer, _ = task.build_optimizer(network, 10)
    assert type(optimizer).__name__ == optimizer_name
    names = {id(weight): name for name, weight in network.named_parameters()}
    decayed = [group for group in optimizer.param_groups if group["weight_decay"] and group.get("adapt", True)]
    decayed_names = {names[id(weight)] for group in decayed for weight in group["params"]}
    assert decayed_names == {name for name, weight in network.named_parameters() if weight.ndim > 1} | vectors


def test_schedule_equals_the_rules(compose):
    """Linear warmup, then (base - end) (1 - step / steps)^2 + end, with the step count of the log."""
    task = workload(compose)
    steps = task.mlperf_params()["lars_opt_learning_rate_decay_steps"]
    assert steps == 35 * 10 + 1
    for step in (0, 7, 19):
        assert task.learning_rate(step, 10) == pytest.approx(7.4 * step / 20)
    for step in (20, 100, 350):
        expected = (7.4 - 1e-4) * (1 - (step - 20) / steps) ** 2 + 1e-4
        assert task.learning_rate(step, 10) == pytest.approx(expected)
    assert task.learning_rate(10_000, 10) == pytest.approx(1e-4)


def test_label_smoothing_and_top_1_accuracy(compose):
    from timetrial.runner.training.workload import Batch

    task = workload(compose)
    logits, labels = torch.randn(4, 10, dtype=torch.float64), torch.tensor([0, 3, 3, 9])
    smooth = torch.full((4, 10), 0.1 / 10, dtype=torch.float64)
    smooth[torch.arange(4), labels] += 0.9
    expected = -(smooth * logits.log_softmax(1)).sum()
    batch = Batch((torch.zeros(4), labels), 4, 4, 4)
    assert task.compute_loss(lambda pixels: logits, batch).item() == pytest.approx(expected.item())
    correct = int((logits.argmax(1) == labels).sum())
    assert task.predict(lambda pixels: logits, [batch, batch]) == (2 * correct, 8)
    assert task.score([(3, 8), (1, 2)]) == {"accuracy": 0.4}

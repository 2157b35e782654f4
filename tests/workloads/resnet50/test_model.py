"""The network against torchvision's, and its start."""

import math

import pytest
import torch
from torch import nn
from torchvision.models import resnet50

from timetrial.runner.config import schema
from timetrial.workloads.resnet50 import model
from timetrial.workloads.resnet50.workload import ResNet50


class Sizes:
    num_classes, steps_per_epoch, images_per_statistic = 1000, 10, 32


def workload(compose, *overrides):
    chosen = schema.check(compose("workload=resnet50", "scale=reference", *overrides))
    return ResNet50(schema.settings_of(ResNet50, chosen.recipe.training, ""), Sizes())


def test_parameters_names_and_norms_are_torchvisions():
    ours, theirs = model.build([3, 4, 6, 3], 1000), resnet50()
    assert sum(weight.numel() for weight in ours.parameters()) == 25_557_032
    shapes = [{name: tensor.shape for name, tensor in each.state_dict().items()} for each in (ours, theirs)]
    assert shapes[0] == shapes[1]
    norms = [module for module in ours.modules() if isinstance(module, nn.BatchNorm2d)]
    assert {(norm.momentum, norm.eps) for norm in norms} == {(0.1, 1e-5)}  # 0.9 in the references' way of counting


def test_logits_are_torchvisions_with_the_same_weights():
    torch.manual_seed(1)
    ours, theirs = model.build([3, 4, 6, 3], 10).double(), resnet50(num_classes=10).double()
    theirs.load_state_dict(ours.state_dict())
    pixels = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)
    normalised = pixels.double() - torch.tensor(model.MEANS, dtype=torch.float64).view(1, 3, 1, 1)
    ours.forward = lambda given: super(model.ImageClassifier, ours).forward(given.double() - ours.means)
    for training in (True, False):
        ours.train(training)
        theirs.train(training)
        torch.testing.assert_close(ours(pixels), theirs(normalised), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("edge", [32, 34, 64, 33])
def test_the_stem_is_a_seven_by_seven_convolution_of_stride_two(edge):
    torch.manual_seed(1)
    stem = model.Stem(3, 8, kernel_size=7, stride=2, padding=3, bias=False).double()
    images = torch.randn(2, 3, edge, edge, dtype=torch.float64, requires_grad=True)
    plain = nn.functional.conv2d(images, stem.weight, stride=2, padding=3)
    torch.testing.assert_close(stem(images), plain)
    gradients = [torch.autograd.grad(out.square().sum(), (images, stem.weight)) for out in (stem(images), plain)]
    torch.testing.assert_close(gradients[0], gradients[1])


def test_the_start_is_the_references():
    torch.manual_seed(1)
    built = model.build([3, 4, 6, 3], 1000)
    layer = built.layer4[1].conv2.weight
    assert layer.std().item() == pytest.approx(math.sqrt(2 / (512 * 9)), rel=0.01)
    assert built.fc.weight.std().item() == pytest.approx(0.01, rel=0.01)
    assert not built.fc.bias.any()
    assert all(bool((block.bn3.weight == 1).all()) for block in built.layer1)
    assert all(not block.bn3.weight.any() for block in model.build([1, 1, 1, 1], 10, zero_last_gamma=True).layer1)
    assert built.layer1[0].conv2.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("recipe", "plain", "vectors"), [("reference_256", "SGD", {"fc.bias"}), ("reference", "LARS", set())]
)
def test_what_is_decayed(compose, recipe, plain, vectors):
    """SGD decays all but batch norms; LARS decays and scales matrices and kernels alone (mlperf.md 12.1)."""
    task = workload(compose, f"recipe=resnet50/{recipe}")
    network = task.build_model()
    optimizer, _ = task.build_optimizer(network, 10)
    assert type(optimizer).__name__ == plain
    names = {id(weight): name for name, weight in network.named_parameters()}
    decayed = [group for group in optimizer.param_groups if group["weight_decay"] and group.get("adapt", True)]
    found = {names[id(weight)] for group in decayed for weight in group["params"]}
    assert found == {name for name, weight in network.named_parameters() if weight.ndim > 1} | vectors


def test_the_schedule_is_the_rules_table(compose):
    """Linear warm-up, then (base - end) (1 - step / steps)^2 + end, of a step count that the log carries."""
    task = workload(compose)
    steps = task.mlperf_params()["lars_opt_learning_rate_decay_steps"]
    assert steps == 33 * 10 + 1
    for step in (0, 7, 19):
        assert task.rate(step, 10) == pytest.approx(7.4 * step / 20)
    for step in (20, 100, 350):
        expected = (7.4 - 1e-4) * (1 - (step - 20) / steps) ** 2 + 1e-4
        assert task.rate(step, 10) == pytest.approx(expected)
    assert task.rate(10_000, 10) == pytest.approx(1e-4)


def test_smoothed_labels_and_top_1(compose):
    from timetrial.runner.training.workload import Batch

    task = workload(compose)
    logits, labels = torch.randn(4, 10, dtype=torch.float64), torch.tensor([0, 3, 3, 9])
    smooth = torch.full((4, 10), 0.1 / 10, dtype=torch.float64)
    smooth[torch.arange(4), labels] += 0.9
    expected = -(smooth * logits.log_softmax(1)).sum()
    batch = Batch((torch.zeros(4), labels), 4, 4, 4)
    assert task.compute_loss(lambda pixels: logits, batch).item() == pytest.approx(expected.item())
    right = int((logits.argmax(1) == labels).sum())
    assert task.predict(lambda pixels: logits, [batch, batch]) == (2 * right, 8)
    assert task.score([(3, 8), (1, 2)]) == {"accuracy": 0.4}

"""The networks of the literature: their published sizes, what they are fed, and what is said where they cannot be."""

import sys

import pytest
import torch

from timetrial.runner.config import schema
from timetrial.runner.core.errors import ConfigurationError

pytest.importorskip("timm")

from timetrial.workloads.cnn import networks
from timetrial.workloads.common.nn.normalized import Normalized

# Parameters with 1000 classes as published with the weights (Keras' trainable ones for NASNet Mobile), and pixels.
SIZES = {
    "vgg16": (138_357_544, 224),
    "resnet50": (25_557_032, 224),
    "resnet152": (60_192_808, 224),
    "densenet161": (28_681_000, 224),
    "inception_v3": (23_834_568, 299),  # 27.16 million with its second head
    "inception_v4": (42_679_816, 299),
    "nasnet": (5_289_978, 224),
    "nasnet_large": (88_753_150, 331),
}


@pytest.mark.parametrize("model", SIZES)
def test_networks_have_their_published_size(model, compose):
    chosen = schema.check(compose(f"model={model}", "scale=reference", "data=synthetic"))
    assert chosen.workload.name == "cnn"
    with torch.device("meta"):
        body = networks.build(chosen.recipe.training["network"], 1000, 331)
    assert (sum(weight.numel() for weight in body.parameters()), chosen.recipe.data["image_size"]) == SIZES[model]


@pytest.mark.parametrize("model", SIZES)
def test_every_weight_learns_from_pixels(model, compose):
    """Ranks would wait for a gradient that never comes."""
    network = compose(f"model={model}").recipe.training.network
    body = networks.build(network, 7, 96)
    logits = body(torch.randint(256, (2, 3, 96, 96), dtype=torch.uint8))
    assert logits.shape == (2, 7)
    logits.square().sum().backward()
    assert all(weight.grad is not None for weight in body.parameters())


@pytest.mark.parametrize("pixels", [5, 8])
def test_a_kernel_as_large_as_the_map_is_a_product_and_computes_what_a_convolution_does(pixels):
    torch.manual_seed(1)
    ours = networks.Convolution(3, 4, 5, dtype=torch.float64)
    theirs = torch.nn.Conv2d(3, 4, 5, dtype=torch.float64)
    theirs.load_state_dict(ours.state_dict())
    images = torch.rand(2, 3, pixels, pixels, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    found = []
    for layer in (ours, theirs):
        seen = images.clone().requires_grad_()
        with torch.profiler.profile() as profile:
            maps = layer(seen)
        maps.square().sum().backward()
        convolved = any(event.name == "aten::convolution" for event in profile.events())
        found.append((convolved, [maps, seen.grad, layer.weight.grad, layer.bias.grad]))
    assert [convolved for convolved, _ in found] == [pixels > 5, True]
    torch.testing.assert_close(found[0][1], found[1][1])


def test_vggs_head_is_made_of_products():
    with torch.device("meta"):
        head = networks.build("vgg16", 1000, 224).body.pre_logits
    assert isinstance(head.fc1, networks.Convolution)
    assert isinstance(head.fc2, networks.Convolution)


def test_pixels_are_normalised():
    pixels = torch.tensor([124, 116, 104], dtype=torch.uint8).view(1, 3, 1, 1)
    seen = Normalized(torch.nn.Identity(), networks.MEANS, networks.DEVIATIONS)(pixels)
    assert seen.abs().max() < 0.01


def test_small_cifar_networks_keep_their_workload(compose):
    node = compose("workload=cifar10", "model=cnn10", "scale=reference")
    assert (node.workload.name, node.recipe.training.network) == ("cifar10", "cnn10")
    with pytest.raises(ConfigurationError, match="network must be one of cnn10"):
        schema.check(compose("workload=cifar10", "model=vgg16", "scale=reference"))


def test_what_cannot_be_built_is_said_in_a_sentence(monkeypatch):
    with pytest.raises(ConfigurationError, match="timm has no network perceptron"):
        networks.build("perceptron", 10, 64)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'timetrial\[cnn\]'"):
        networks.build("vgg16", 10, 64)


def test_pixels_that_are_too_few_are_refused_and_the_trial_leaves_no_trace():
    with pytest.raises(ConfigurationError, match="inception_v3 cannot take images of 64 pixels"):
        networks.build("inception_v3", 10, 64)
    torch.manual_seed(5)
    body = networks.build("test_resnet", 10, 32)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    timm = pytest.importorskip("timm").create_model("test_resnet", num_classes=10)
    assert torch.equal(drawn, torch.rand(1))
    assert all(map(torch.equal, body.body.state_dict().values(), timm.state_dict().values()))


def test_a_skipped_cell_hands_on_the_cell_before_and_networks_begin_in_training():
    assert networks._Skipped()(1, 2) == 2
    assert networks.build("test_resnet", 10, 32).training

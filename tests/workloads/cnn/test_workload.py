"""Networks from the literature: published sizes, input normalization and errors."""

import sys

import pytest
import torch

from timetrial.runner.config.validation import validate
from timetrial.runner.core.errors import ConfigurationError

pytest.importorskip("timm")

from timetrial.workloads.cnn import networks
from timetrial.workloads.common.nn.normalized import Normalized

# Published numbers of parameters with 1000 classes (Keras' trainable ones for NASNet Mobile), and image sizes.
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
    config = validate(compose(f"model={model}", "scale=reference", "data=synthetic"))
    assert config.workload.name == "cnn"
    with torch.device("meta"):
        body = networks.build(config.recipe.training["network"], 1000, 331)
    assert (sum(weight.numel() for weight in body.parameters()), config.recipe.data["image_size"]) == SIZES[model]


@pytest.mark.parametrize("model", SIZES)
def test_every_weight_has_a_gradient(model, compose):
    """Otherwise ranks would wait for a missing gradient."""
    network = compose(f"model={model}").recipe.training.network
    body = networks.build(network, 7, 96)
    logits = body(torch.randint(256, (2, 3, 96, 96), dtype=torch.uint8))
    assert logits.shape == (2, 7)
    logits.square().sum().backward()
    assert all(weight.grad is not None for weight in body.parameters())


@pytest.mark.parametrize("pixels", [5, 8])
def test_kernel_of_the_size_of_the_map_is_a_matrix_product_equal_to_the_convolution(pixels):
    torch.manual_seed(1)
    layer = networks.LinearOrConv2d(3, 4, 5, dtype=torch.float64)
    reference = torch.nn.Conv2d(3, 4, 5, dtype=torch.float64)
    reference.load_state_dict(layer.state_dict())
    images = torch.rand(2, 3, pixels, pixels, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    results = []
    for module in (layer, reference):
        inputs = images.clone().requires_grad_()
        with torch.profiler.profile() as profile:
            maps = module(inputs)
        maps.square().sum().backward()
        used_convolution = any(event.name == "aten::convolution" for event in profile.events())
        results.append((used_convolution, [maps, inputs.grad, module.weight.grad, module.bias.grad]))
    assert [used_convolution for used_convolution, _ in results] == [pixels > 5, True]
    torch.testing.assert_close(results[0][1], results[1][1])


def test_vgg_head_uses_matrix_products():
    with torch.device("meta"):
        head = networks.build("vgg16", 1000, 224).body.pre_logits
    assert isinstance(head.fc1, networks.LinearOrConv2d)
    assert isinstance(head.fc2, networks.LinearOrConv2d)


def test_normalizes_pixels():
    pixels = torch.tensor([124, 116, 104], dtype=torch.uint8).view(1, 3, 1, 1)
    normalized = Normalized(torch.nn.Identity(), networks.MEAN, networks.STD)(pixels)
    assert normalized.abs().max() < 0.01


def test_cifar_networks_keep_their_workload(compose):
    node = compose("workload=cifar10", "model=cnn10", "scale=reference")
    assert (node.workload.name, node.recipe.training.network) == ("cifar10", "cnn10")
    with pytest.raises(ConfigurationError, match="network must be one of cnn10"):
        validate(compose("workload=cifar10", "model=vgg16", "scale=reference"))


def test_rejects_unknown_networks_and_missing_timm(monkeypatch):
    with pytest.raises(ConfigurationError, match="timm has no network perceptron"):
        networks.build("perceptron", 10, 64)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'timetrial\[cnn\]'"):
        networks.build("vgg16", 10, 64)


def test_rejects_small_images_and_the_check_changes_no_state():
    with pytest.raises(ConfigurationError, match="inception_v3 does not accept images of 64 pixels"):
        networks.build("inception_v3", 10, 64)
    torch.manual_seed(5)
    body = networks.build("test_resnet", 10, 32)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    timm = pytest.importorskip("timm").create_model("test_resnet", num_classes=10)
    assert torch.equal(drawn, torch.rand(1))
    assert all(map(torch.equal, body.body.state_dict().values(), timm.state_dict().values()))


def test_skipped_cell_returns_the_previous_cell_and_networks_start_in_training_mode():
    assert networks._SkippedCell()(1, 2) == 2
    assert networks.build("test_resnet", 10, 32).training

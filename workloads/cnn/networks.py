"""Networks that hardware benchmarks have used for years, and any other image classifier of timm."""

import importlib
from types import ModuleType

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ...runner.core.errors import ConfigurationError
from ..common.nn.normalized import Normalized

MEAN = (123.675, 116.28, 103.53)  # RGB of ImageNet, from 0 to 255
STD = (58.395, 57.12, 57.375)
# Cells of NASNet-A Large that NASNet-A Mobile lacks: the last two of each of the three stacks of six.
_LARGE_ONLY_CELLS = (4, 5, 10, 11, 16, 17)


class LinearOrConv2d(nn.Conv2d):
    """A convolution that is computed as a matrix product if its kernel covers the whole map, as in VGG's head.

    Convolution libraries are made for small kernels and can search for minutes for an algorithm for this one.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Return the convolution's output."""
        if images.shape[2:] != self.kernel_size or self.groups > 1 or any(self.padding):
            return super().forward(images)
        rows, weight = (tensor.permute(0, 2, 3, 1).flatten(1) for tensor in (images, self.weight))
        return nn.functional.linear(rows, weight, self.bias)[:, :, None, None]


class _SkippedCell(nn.Module):
    """Replaces a NASNet cell: returns the output of the previous cell, so that the next two cells see no gap."""

    def forward(self, x: Tensor, previous: Tensor) -> Tensor:
        return previous


def build(name: str, classes: int, image_size: int) -> nn.Module:
    """Build `nasnet_mobile` or timm's network `name`, newly initialized, in channels-last format.

    Raises `ConfigurationError` if timm is not installed, does not know the network, or the network does not accept
    images of this size.
    """
    timm = _import_timm()
    if name == "nasnet_mobile":
        body = _nasnet_mobile(classes)
    elif timm.is_model(name):
        layers = {"conv_layer": LinearOrConv2d} if name.startswith("vgg") else {}
        body = timm.create_model(name, num_classes=classes, **layers)
    else:
        raise ConfigurationError(
            f"timm has no network {name}: set recipe.training.network to one of timm.list_models(), or choose a model= "
            "of `timetrial run --help`."
        )
    network = Normalized(body, MEAN, STD).to(memory_format=torch.channels_last)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):  # computes shapes only
            network.eval()(torch.empty(1, 3, image_size, image_size))  # training mode would change batch norms
    except (RuntimeError, AssertionError) as error:
        raise ConfigurationError(
            f"{name} does not accept images of {image_size} pixels: set another recipe.data.image_size ({error})."
        ) from error
    return network.train()


def _nasnet_mobile(classes: int) -> nn.Module:
    """Build NASNet-A (4 @ 1056) of Zoph et al. 2017 of timm's cells: 5,289,978 parameters with 1000 classes."""
    nasnet = importlib.import_module("timm.models.nasnet")
    body: nn.Module = nasnet.NASNetALarge(num_classes=classes, stem_size=32, num_features=1056)
    for number in _LARGE_ONLY_CELLS:
        setattr(body, f"cell_{number}", _SkippedCell())
    return body


def _import_timm() -> ModuleType:
    """Import timm only when a network is built, because it takes seconds."""
    try:
        return importlib.import_module("timm")
    except ImportError as error:
        raise ConfigurationError("workload=cnn needs timm: pip install 'timetrial[cnn]'.") from error

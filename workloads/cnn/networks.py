"""The networks by which cards have been compared for years, and any other image classifier that timm knows by name."""

import importlib
from types import ModuleType

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ...runner.core.errors import ConfigurationError
from ..common.nn.normalized import Normalised

MEANS = (123.675, 116.28, 103.53)  # RGB, of pixels from 0 to 255, over ImageNet
DEVIATIONS = (58.395, 57.12, 57.375)
# The cells of NASNet-A Large that the mobile one lacks: the last two of each of its three stacks of six.
_BEYOND_MOBILE = (4, 5, 10, 11, 16, 17)


class Convolution(nn.Conv2d):
    """A convolution that is a matrix product where its kernel covers the whole map, as the first of VGG's head does.

    Libraries of convolutions are made for small kernels: among algorithms for this one they can search for minutes.
    """

    def forward(self, images: Tensor) -> Tensor:
        """As a convolution's."""
        if images.shape[2:] != self.kernel_size or self.groups > 1 or any(self.padding):
            return super().forward(images)
        rows, weight = (tensor.permute(0, 2, 3, 1).flatten(1) for tensor in (images, self.weight))
        return nn.functional.linear(rows, weight, self.bias)[:, :, None, None]


class _Skipped(nn.Module):
    """In place of a cell: hands on what the cell before the last one gave, so that the next two cells see no gap."""

    def forward(self, last: Tensor, before: Tensor) -> Tensor:
        return before


def build(name: str, classes: int, image_size: int) -> nn.Module:
    """`nasnet_mobile`, or timm's network `name`: newly initialised, one head, channels-last.

    Raises `ConfigurationError` where timm is missing, knows no such network, or one that takes no images of this size.
    """
    timm = _timm()
    if name == "nasnet_mobile":
        body = _nasnet_mobile(classes)
    elif timm.is_model(name):
        layers = {"conv_layer": Convolution} if name.startswith("vgg") else {}
        body = timm.create_model(name, num_classes=classes, **layers)
    else:
        raise ConfigurationError(
            f"timm has no network {name}: see timm.list_models() for recipe.training.network, or choose a model= of "
            "`timetrial run --help`."
        )
    network = Normalised(body, MEANS, DEVIATIONS).to(memory_format=torch.channels_last)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):  # shapes alone
            network.eval()(torch.empty(1, 3, image_size, image_size))  # in training batch norms would count
    except (RuntimeError, AssertionError) as error:
        raise ConfigurationError(
            f"{name} cannot take images of {image_size} pixels: set another recipe.data.image_size ({error})."
        ) from error
    return network.train()


def _nasnet_mobile(classes: int) -> nn.Module:
    """NASNet-A (4 @ 1056) of Zoph et al. 2017, 5,289,978 parameters with 1000 classes, of timm's cells."""
    nasnet = importlib.import_module("timm.models.nasnet")
    body: nn.Module = nasnet.NASNetALarge(num_classes=classes, stem_size=32, num_features=1056)
    for number in _BEYOND_MOBILE:
        setattr(body, f"cell_{number}", _Skipped())
    return body


def _timm() -> ModuleType:
    """The package, imported when a network is wanted: that takes seconds."""
    try:
        return importlib.import_module("timm")
    except ImportError as error:
        raise ConfigurationError("This workload's networks are timm's: pip install 'timetrial[cnn]'.") from error

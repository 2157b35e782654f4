"""Load SSD's backbone from torchvision's ResNet-34 weights, as MLPerf's reference does, or from a resnet50 run."""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ..common.detection import pretrained_weights
from .model import MEAN, STD

RESNET34_URL = "https://download.pytorch.org/models/resnet34-333f7ec4.pth"
# A file must not have other names of this pattern: a deeper network's first blocks would fit.
_WEIGHT_NAMES = re.compile(r"(conv1|bn1|layer[123])\..*(weight|bias|running_mean|running_var)")


def load_backbone(backbone: nn.Module, path: Path) -> None:
    """Load the weights of torchvision's ResNet-34, or of a resnet50 run with basic blocks, into `model.Backbone`.

    Any state dict of these names and shapes is accepted; layer4 and fc are ignored. If the file name ends with a
    SHA-256 prefix, as torchvision's do, the contents must have that hash. Raises `DataError` and leaves the backbone
    unchanged if the file is missing, damaged or of another network.
    """
    loaded = pretrained_weights.load_torch_file(path, RESNET34_URL)
    run_state = pretrained_weights.resnet50_model_state(loaded)
    state = loaded if run_state is None else run_state
    shapes = {name: value.shape for name, value in backbone.state_dict().items() if _WEIGHT_NAMES.fullmatch(name)}
    pretrained_weights.check_weights(state, shapes, _WEIGHT_NAMES, path, RESNET34_URL)
    weights = {name: state[name] for name in shapes}
    pretrained_weights.copy_weights(backbone, weights if run_state is None else _adapt_to_normalized_input(weights))


def _adapt_to_normalized_input(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Adapt the first layers of a resnet50 run, which does not divide by the std, to (pixels - MEAN) / STD.

    The std is multiplied into the first convolution, the difference of the means is subtracted from the first batch
    norm's mean. That is exact except at the border, where the convolution pads with the mean color.
    """
    kernel = weights["conv1.weight"].double()
    mean, std = (255 * torch.tensor(values, dtype=torch.float64) for values in (MEAN, STD))
    shift = kernel.sum((2, 3)) @ (mean - torch.tensor(pretrained_weights.RESNET50_MEAN, dtype=torch.float64))
    return {
        **weights,
        "conv1.weight": kernel * std[:, None, None],
        "bn1.running_mean": weights["bn1.running_mean"].double() - shift,
    }

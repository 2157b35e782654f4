"""SSD's trunk from torchvision's ResNet-34, which MLPerf's reference starts from, or from a run of our own."""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ..common.detection import pretrained_weights
from .model import DEVIATIONS, MEANS

RESNET34 = "https://download.pytorch.org/models/resnet34-333f7ec4.pth"
# Names that must all be wanted: more of them are a deeper network's, whose first blocks would fit.
_NAMES = re.compile(r"(conv1|bn1|layer[123])\..*(weight|bias|running_mean|running_var)")


def load_trunk(trunk: nn.Module, path: Path) -> None:
    """Sets the weights of `trunk` (model.Trunk) to those of torchvision's ResNet-34, or of a run of resnet50.

    Any state dict of these names and shapes will do, and the checkpoint of a run with PyTorch whose blocks are basic;
    layer4 and fc are passed over. Where the name carries a SHA-256, as torchvision's do, the file must have it. Raises
    `DataError` and leaves the trunk as it was where the file is absent, damaged or another network's.
    """
    found = pretrained_weights.saved(path, RESNET34)
    run = pretrained_weights.of_run(found)
    found = found if run is None else run
    wanted = {name: value.shape for name, value in trunk.state_dict().items() if _NAMES.fullmatch(name)}
    pretrained_weights.check(found, wanted, _NAMES, path, RESNET34)
    taken = {name: found[name] for name in wanted}
    pretrained_weights.assign(trunk, taken if run is None else _for_own_input(taken))


def _for_own_input(taken: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What makes of our input, which a deviation divides, what the run made of its own, another mean being subtracted.

    The deviation goes into the first convolution, the means' distance into what its batch norm expects. That is exact
    but for the border, where the convolution pads with the means' colours.
    """
    kernel = taken["conv1.weight"].double()
    mean, deviation = (255 * torch.tensor(values, dtype=torch.float64) for values in (MEANS, DEVIATIONS))
    shift = kernel.sum((2, 3)) @ (mean - torch.tensor(pretrained_weights.RUN_MEANS, dtype=torch.float64))
    return {
        **taken,
        "conv1.weight": kernel * deviation[:, None, None],
        "bn1.running_mean": taken["bn1.running_mean"].double() - shift,
    }

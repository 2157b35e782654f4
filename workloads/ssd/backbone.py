"""SSD's trunk from torchvision's ResNet-34, which MLPerf's reference starts from."""

import re
from pathlib import Path

from torch import nn

from timetrial.workloads.common import weights

RESNET34 = "https://download.pytorch.org/models/resnet34-333f7ec4.pth"
# Names that must all be wanted: more of them are a deeper network's, whose first blocks would fit.
_NAMES = re.compile(r"(conv1|bn1|layer[123])\..*(weight|bias|running_mean|running_var)")


def load_trunk(trunk: nn.Module, path: Path) -> None:
    """Sets the weights of `trunk` (model.Trunk) to those of torchvision's ResNet-34.

    Any state dict of these names and shapes will do; layer4 and fc are passed over. Where the name carries a SHA-256,
    as torchvision's do, the file must have it. Raises `DataError` and leaves the trunk as it was where the file is
    absent, damaged or another network's.
    """
    found = weights.saved(path, RESNET34)
    wanted = {name: value.shape for name, value in trunk.state_dict().items() if _NAMES.fullmatch(name)}
    weights.check(found, wanted, _NAMES, path, RESNET34)
    weights.assign(trunk, {name: found[name] for name in wanted})

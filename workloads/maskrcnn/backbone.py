"""The stem and stages of Mask R-CNN from the file that MLPerf names, or from a run of ResNet-50.

Nothing that a pickle asks for is run.
"""

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..common.detection import pretrained_weights
from .blocks import FrozenNorm

R50 = "https://dl.fbaipublicfiles.com/detectron/ImageNetPretrained/MSRA/R-50.pkl"
RANDOM = "random"  # in place of a file: to measure how fast the network is that the file would make
_EPSILON = 1e-5  # of the batch norms of ResNet-50
# Names that must all be wanted: more of them are a deeper network's, whose first blocks would fit.
_OF_RUN = re.compile(r"(conv1|bn1|layer\d+)\..*(weight|bias|running_mean|running_var)")
_OF_R50 = re.compile(r"(conv1|res\w+)_(w|bn_s|bn_b)")
_OF_TRUNK = re.compile(r"(conv1|bn1|stages)\..*")
_ARCHIVE = b"PK\x03\x04"  # how files of torch.save begin
# What the pickle of an array names; the last is how Python 3 writes bytes in protocol 2.
_OF_ARRAYS = {
    ("numpy.core.multiarray", "_reconstruct"), ("numpy.core.multiarray", "scalar"),
    ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"),
}  # fmt: skip


def load_trunk(trunk: nn.Module, name: str) -> None:
    """Sets stem and stages of `trunk` (model.Backbone); its pyramid stays as it is.

    `name` is the path of Detectron's R-50.pkl, or of the checkpoint of a run of ResNet-50 with PyTorch, or RANDOM.
    Raises `DataError` and leaves the trunk as it was where the file is absent, damaged or another network's.
    """
    if name == RANDOM:
        return _fill_randomly(trunk)
    path = Path(name)
    own = {name: value.shape for name, value in trunk.state_dict().items() if _OF_TRUNK.fullmatch(name)}
    with pretrained_weights.opened(path, R50) as file:
        archive = file.read(len(_ARCHIVE)) == _ARCHIVE
    mean = trunk.get_buffer("mean").flatten().cpu()
    pretrained_weights.assign(trunk, _of_run(own, mean, path) if archive else _of_r50(own, path))


def _fill_randomly(trunk: nn.Module) -> None:
    """Kaiming's weights, and norms that keep activations about as small as trained ones: else training diverges."""
    for name, module in trunk.named_modules():
        if not _OF_TRUNK.fullmatch(f"{name}."):
            continue
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
        elif isinstance(module, FrozenNorm):
            # Pixels deviate from their mean by some 70; a stage's sum grows with what each of its blocks adds.
            module.weight.fill_(1 / 250 if name == "bn1" else 0.25 if name.endswith("bn3") else 1.0)


def _of_r50(own: Mapping[str, torch.Size], path: Path) -> dict[str, Tensor]:
    """Detectron's weights under the trunk's names.

    The stem's input turns from BGR to RGB; batch norms are scales and shifts there too. The convolutions' biases are
    left out, as the reference's network leaves them out: they are zero, the stem's but for rounding.
    """
    found = _pickled(path)
    names = {name: _r50_name(name) for name in own}
    pretrained_weights.check(found, {names[name]: shape for name, shape in own.items()}, _OF_R50, path, R50)
    taken = {name: found[theirs] for name, theirs in names.items()}
    return taken | {"conv1.weight": taken["conv1.weight"].flip(1)}


def _r50_name(own: str) -> str:
    """conv1.weight is conv1_w, bn1.bias is res_conv1_bn_b, stages.0.2.bn3.weight is res2_2_branch2c_bn_s."""
    match = re.fullmatch(r"(?:stages\.(\d+)\.(\d+)\.)?(conv|bn|downsample\.)(\d)\.(weight|bias)", own)
    assert match, own
    stage, block, layer, number, kind = match.groups()
    shortcut = layer == "downsample."
    norm = layer == "bn" or (shortcut and number == "1")
    last = "w" if not norm else "bn_s" if kind == "weight" else "bn_b"
    if stage is None:
        return f"res_conv1_{last}" if norm else f"conv1_{last}"
    branch = "branch1" if shortcut else "branch2" + "abc"[int(number) - 1]
    return f"res{int(stage) + 2}_{block}_{branch}_{last}"


def _of_run(own: Mapping[str, torch.Size], mean: Tensor, path: Path) -> dict[str, Tensor]:
    """The weights of a run of ResNet-50 under the trunk's names, batch norms folded; `mean` [3] is the trunk's own.

    Both take RGB and divide by no deviation, so the other mean becomes part of the stem's shift. That is exact but for
    the border: the stem pads with its mean's colour, and the two are less than 1 of 255 apart. The stages after the
    first were trained with strides in the 3x3 and have them in the 1x1 here: the weights are a start, not the same net.
    """
    found = pretrained_weights.of_run(pretrained_weights.saved(path, R50))
    if found is None:  # torchvision's file has equal names but another input
        raise pretrained_weights.fault_of(path, "is no checkpoint of ResNet-50 trained with PyTorch", R50)
    names = {name: re.sub(r"stages\.(\d+)", lambda match: f"layer{int(match[1]) + 1}", name) for name in own}
    norms = [name for name in own if name.endswith(".bias")]
    wanted = {names[name]: shape for name, shape in own.items()}
    for name in norms:
        for kind in ("running_mean", "running_var"):
            wanted[names[name].removesuffix("bias") + kind] = own[name]
    pretrained_weights.check(found, wanted, _OF_RUN, path, R50)
    taken = {name: found[theirs].double() for name, theirs in names.items()}
    for bias in norms:
        weight, theirs = bias.removesuffix("bias") + "weight", names[bias].removesuffix("bias")
        taken[weight] = taken[weight] / (found[theirs + "running_var"].double() + _EPSILON).sqrt()
        taken[bias] = taken[bias] - found[theirs + "running_mean"].double() * taken[weight]
    apart = mean.double() - torch.tensor(pretrained_weights.RUN_MEANS).double()
    taken["bn1.bias"] = taken["bn1.bias"] + taken["bn1.weight"] * (taken["conv1.weight"].sum((2, 3)) @ apart)
    return taken


class _Stored:
    """Stands for what a pickle calls: keeps the arguments and the state, and does nothing with them."""

    called: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *called: Any) -> None:
        self.called = called

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def tensor(self) -> Tensor:
        """The array of floats that this stands for; raises whatever goes wrong where it is none."""
        _, shape, kind, columns_first, raw = self.state
        code, order = kind.called[0], kind.state[1]
        if code not in ("f2", "f4", "f8") or order not in ("<", ">"):
            raise TypeError(code)
        raw = raw.called[0] if isinstance(raw, _Stored) else raw
        raw = raw.encode("latin1") if isinstance(raw, str) else raw
        found = np.frombuffer(raw, np.dtype(order + code)).reshape(shape, order="F" if columns_first else "C")
        return torch.from_numpy(np.ascontiguousarray(found, code).copy())


class _Refused(pickle.UnpicklingError):
    """A pickle asks for what no array needs."""


class _Unpickler(pickle.Unpickler):
    """Makes `_Stored` of arrays, and refuses whatever is neither an array nor a plain container."""

    def find_class(self, module: str, name: str) -> Any:
        """Called for every name that the pickle asks for, which is never imported."""
        if (module.replace("numpy._core", "numpy.core"), name) not in _OF_ARRAYS:
            raise _Refused(f"asks for {module}.{name}, which no weights need")
        return _Stored


def _pickled(path: Path) -> dict[str, Any]:
    """The trunk's arrays in a pickle of Python 2: of its blobs where they lie in a dictionary of their own."""
    with pretrained_weights.opened(path, R50) as file:
        try:
            found = _Unpickler(file, encoding="latin1").load()
            found = found.get("blobs", found)
            return {str(name): _tensor(value) for name, value in found.items() if _OF_R50.fullmatch(str(name))}
        except _Refused as error:
            raise pretrained_weights.fault_of(path, str(error), R50) from error
        except Exception as error:  # what is cut short fails in many ways
            raise pretrained_weights.fault_of(
                path, "is cut short or neither Detectron's pickle nor a checkpoint", R50
            ) from error


def _tensor(value: object) -> Tensor | None:
    try:
        return value.tensor() if isinstance(value, _Stored) else None
    except Exception:  # the state is the file's, and any part of it may be missing or wrong
        return None

"""Load Mask R-CNN's backbone from the file that MLPerf names, or from a resnet50 run.

No code that a pickle names is run.
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
from .blocks import FrozenBatchNorm2d

R50_URL = "https://dl.fbaipublicfiles.com/detectron/ImageNetPretrained/MSRA/R-50.pkl"
RANDOM = "random"  # in place of a file: random weights, to measure the throughput of the frozen network
_BATCH_NORM_EPSILON = 1e-5  # of ResNet-50
# A file must not have other names of these patterns: a deeper network's first blocks would fit.
_RESNET50_NAMES = re.compile(r"(conv1|bn1|layer\d+)\..*(weight|bias|running_mean|running_var)")
_DETECTRON_NAMES = re.compile(r"(conv1|res\w+)_(w|bn_s|bn_b)")
_PRETRAINED_NAMES = re.compile(r"(conv1|bn1|stages)\..*")  # of `model.Backbone`
_ZIP_MAGIC = b"PK\x03\x04"  # start of the files that torch.save writes
# What pickles of arrays import; the last is how Python 3 writes bytes in protocol 2.
_ARRAY_GLOBALS = {
    ("numpy.core.multiarray", "_reconstruct"), ("numpy.core.multiarray", "scalar"),
    ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"),
}  # fmt: skip


def load_backbone(backbone: nn.Module, name: str) -> None:
    """Load the stem and the stages of `model.Backbone`; its feature pyramid stays unchanged.

    `name` is the path of Detectron's R-50.pkl or of the checkpoint of a resnet50 run with PyTorch, or RANDOM. Raises
    `DataError` and leaves the backbone unchanged if the file is missing, damaged or of another network.
    """
    if name == RANDOM:
        return _initialize_randomly(backbone)
    path = Path(name)
    shapes = {key: value.shape for key, value in backbone.state_dict().items() if _PRETRAINED_NAMES.fullmatch(key)}
    with pretrained_weights.open_weights(path, R50_URL) as file:
        is_torch_file = file.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC
    mean = backbone.get_buffer("mean").flatten().cpu()
    weights = _resnet50_weights(shapes, mean, path) if is_torch_file else _detectron_weights(shapes, path)
    pretrained_weights.copy_weights(backbone, weights)


def _initialize_randomly(backbone: nn.Module) -> None:
    """Initialize so that activations are about as large as those of trained weights; otherwise training diverges."""
    for name, module in backbone.named_modules():
        if not _PRETRAINED_NAMES.fullmatch(f"{name}."):
            continue
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
        elif isinstance(module, FrozenBatchNorm2d):
            # Pixels deviate from the mean by about 70; a stage's sum grows with each of its blocks.
            module.weight.fill_(1 / 250 if name == "bn1" else 0.25 if name.endswith("bn3") else 1.0)


def _detectron_weights(shapes: Mapping[str, torch.Size], path: Path) -> dict[str, Tensor]:
    """Return Detectron's weights under the backbone's names.

    The input of the stem is reordered from BGR to RGB. Batch norms are scales and shifts in the file too. Biases of
    convolutions are ignored, as in the reference; they are zero up to rounding.
    """
    arrays = _load_detectron_pickle(path)
    names = {name: _detectron_name(name) for name in shapes}
    expected_shapes = {names[name]: shape for name, shape in shapes.items()}
    pretrained_weights.check_weights(arrays, expected_shapes, _DETECTRON_NAMES, path, R50_URL)
    weights = {name: arrays[detectron_name] for name, detectron_name in names.items()}
    return weights | {"conv1.weight": weights["conv1.weight"].flip(1)}


def _detectron_name(name: str) -> str:
    """Translate conv1.weight to conv1_w, bn1.bias to res_conv1_bn_b, stages.0.2.bn3.weight to res2_2_branch2c_bn_s."""
    match = re.fullmatch(r"(?:stages\.(\d+)\.(\d+)\.)?(conv|bn|downsample\.)(\d)\.(weight|bias)", name)
    assert match, name
    stage, block, layer, number, kind = match.groups()
    is_shortcut = layer == "downsample."
    is_norm = layer == "bn" or (is_shortcut and number == "1")
    suffix = "w" if not is_norm else "bn_s" if kind == "weight" else "bn_b"
    if stage is None:
        return f"res_conv1_{suffix}" if is_norm else f"conv1_{suffix}"
    branch = "branch1" if is_shortcut else "branch2" + "abc"[int(number) - 1]
    return f"res{int(stage) + 2}_{block}_{branch}_{suffix}"


def _resnet50_weights(shapes: Mapping[str, torch.Size], mean: Tensor, path: Path) -> dict[str, Tensor]:
    """Return the weights of a resnet50 run under the backbone's names, with batch norms folded.

    Both networks take RGB and do not divide by the std, so the difference to the backbone's `mean` [3] is folded into
    the shift of the stem. That is exact except at the border, where the stem pads with its mean color; the means differ
    by less than 1 of 255. Stages 2 to 4 were trained with the stride in the 3x3 convolution and have it in the 1x1
    here: the weights are a starting point, not the same network.
    """
    state = pretrained_weights.resnet50_model_state(pretrained_weights.load_torch_file(path, R50_URL))
    if state is None:  # torchvision's file has the same names but expects another input
        raise pretrained_weights.weights_error(path, "is not a checkpoint of ResNet-50 trained with PyTorch", R50_URL)
    names = {name: re.sub(r"stages\.(\d+)", lambda match: f"layer{int(match[1]) + 1}", name) for name in shapes}
    norm_biases = [name for name in shapes if name.endswith(".bias")]
    expected_shapes = {names[name]: shape for name, shape in shapes.items()}
    for bias in norm_biases:
        for statistic in ("running_mean", "running_var"):
            expected_shapes[names[bias].removesuffix("bias") + statistic] = shapes[bias]
    pretrained_weights.check_weights(state, expected_shapes, _RESNET50_NAMES, path, R50_URL)
    weights = {name: state[run_name].double() for name, run_name in names.items()}
    for bias in norm_biases:
        weight, norm = bias.removesuffix("bias") + "weight", names[bias].removesuffix("bias")
        weights[weight] = weights[weight] / (state[norm + "running_var"].double() + _BATCH_NORM_EPSILON).sqrt()
        weights[bias] = weights[bias] - state[norm + "running_mean"].double() * weights[weight]
    mean_difference = mean.double() - torch.tensor(pretrained_weights.RESNET50_MEAN).double()
    stem_shift = weights["conv1.weight"].sum((2, 3)) @ mean_difference
    weights["bn1.bias"] = weights["bn1.bias"] + weights["bn1.weight"] * stem_shift
    return weights


class _PickledCall:
    """Stands for an object of a pickle: stores arguments and state, and runs nothing."""

    args: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def tensor(self) -> Tensor:
        """Return the array of floats that this stands for; raises any exception if it is none."""
        _, shape, dtype, is_fortran, raw = self.state
        code, byte_order = dtype.args[0], dtype.state[1]
        if code not in ("f2", "f4", "f8") or byte_order not in ("<", ">"):
            raise TypeError(code)
        raw = raw.args[0] if isinstance(raw, _PickledCall) else raw
        raw = raw.encode("latin1") if isinstance(raw, str) else raw
        array = np.frombuffer(raw, np.dtype(byte_order + code)).reshape(shape, order="F" if is_fortran else "C")
        return torch.from_numpy(np.ascontiguousarray(array, code).copy())


class _ForbiddenGlobal(pickle.UnpicklingError):
    """A pickle names something that no array needs."""


class _Unpickler(pickle.Unpickler):
    """Loads arrays as `_PickledCall` and rejects everything but arrays and plain containers."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for a name of the pickle, which is never imported."""
        if (module.replace("numpy._core", "numpy.core"), name) not in _ARRAY_GLOBALS:
            raise _ForbiddenGlobal(f"names {module}.{name}, which no weights need")
        return _PickledCall


def _load_detectron_pickle(path: Path) -> dict[str, Any]:
    """Return the backbone's arrays in a pickle of Python 2, which may hold them in a dictionary "blobs"."""
    with pretrained_weights.open_weights(path, R50_URL) as file:
        try:
            loaded = _Unpickler(file, encoding="latin1").load()
            blobs = {str(name): blob for name, blob in loaded.get("blobs", loaded).items()}
            return {name: _to_tensor(blob) for name, blob in blobs.items() if _DETECTRON_NAMES.fullmatch(name)}
        except _ForbiddenGlobal as error:
            raise pretrained_weights.weights_error(path, str(error), R50_URL) from error
        except Exception as error:  # truncated files fail in many ways
            problem = "is truncated, or neither Detectron's pickle nor a checkpoint"
            raise pretrained_weights.weights_error(path, problem, R50_URL) from error


def _to_tensor(blob: object) -> Tensor | None:
    try:
        return blob.tensor() if isinstance(blob, _PickledCall) else None
    except Exception:  # any part of the file's state may be missing or wrong
        return None

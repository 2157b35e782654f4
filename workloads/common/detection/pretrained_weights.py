"""Load pretrained weights of a detector's backbone from a file.

A file is checked completely, names, shapes and values, before a weight is set. No code that a pickle names is run. The
argument `source` says where the right file can be downloaded; error messages name it.
"""

import hashlib
import re
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ....datasets.registry.missing import missing_data
from ....runner.core.errors import DataError
from ....runner.core.found_files import UnreadableFile, open_regular

# RGB mean that the resnet50 workload subtracts, from 0 to 255. Copied, because workloads do not import each other.
RESNET50_MEAN = (123.68, 116.78, 103.94)


def open_weights(path: Path, source: str) -> BufferedReader:
    """Open the file for reading; raise `DataError` if it is missing or cannot be opened."""
    try:
        return open_regular(path)
    except UnreadableFile as error:
        remedy = f"download {source}, or set recipe.training.backbone=null to train from scratch"
        raise missing_data(path, remedy, "is missing or cannot be opened") from error


def load_torch_file(path: Path, source: str) -> dict[str, Any]:
    """Return the dictionary in a file of `torch.save`, on the CPU.

    Raises `DataError` if the file is missing, damaged or holds something else. If its name ends with a SHA-256 prefix,
    as names of torchvision's files do, its contents must have that hash.
    """
    with open_weights(path, source) as file:
        if expected := re.search(r"-([0-9a-f]{8,64})\.pth$", path.name):
            digest = hashlib.file_digest(file, "sha256").hexdigest()[: len(expected[1])]
            if digest != expected[1]:
                problem = f"is damaged: its SHA-256 starts with {digest}, but its name says {expected[1]}"
                raise weights_error(path, problem, source)
            file.seek(0)
        try:
            loaded = torch.load(file, map_location="cpu", weights_only=True)
            return {str(name): value for name, value in loaded.items()}
        except Exception as error:  # truncated files fail in many ways
            raise weights_error(path, "is truncated or does not hold PyTorch weights", source) from error


def resnet50_model_state(checkpoint: Mapping[str, Any]) -> dict[str, Tensor] | None:
    """Return the model's state dict in a checkpoint of workload=resnet50 with PyTorch; None for any other file."""
    engine = checkpoint.get("engine")
    model = engine.get("model") if isinstance(engine, dict) else None
    return model if isinstance(model, dict) else None


def check_weights(
    weights: Mapping[str, Any], shapes: Mapping[str, torch.Size], pattern: re.Pattern[str], path: Path, source: str
) -> None:
    """Raise `DataError` unless `weights` holds a finite floating-point tensor of each name and shape of `shapes`.

    Names that match `pattern` but are not in `shapes` are errors too: they belong to a deeper network. Other names are
    ignored.
    """
    problems = []
    for name, shape in shapes.items():
        value = weights.get(name)
        if name not in weights:
            problems.append(f"lacks {name}")
        elif not isinstance(value, Tensor) or not value.is_floating_point():
            problems.append(f"has {name}, which is not a floating-point tensor")
        elif value.shape != shape:
            problems.append(f"has {name} of shape {list(value.shape)} instead of {list(shape)}")
        elif not value.isfinite().all():
            problems.append(f"has values in {name} that are not finite")
    unexpected = [name for name in weights if pattern.fullmatch(name) and name not in shapes]
    problems.extend(f"has {name}, which this network lacks" for name in unexpected)
    if problems:
        more = f" (and {len(problems) - 1} more problems)" if len(problems) > 1 else ""
        raise weights_error(path, problems[0] + more, source)


def copy_weights(backbone: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy `weights` into the tensors of `backbone` of the same names, converted to their dtype and device."""
    state = backbone.state_dict()
    for name, value in weights.items():
        state[name].copy_(value)


def weights_error(path: Path, problem: str, source: str) -> DataError:
    """Return the error for a file: the problem, and how to solve it."""
    remedy = f"download {source}, or set recipe.training.backbone=null to train from scratch"
    return DataError(f"{path} {problem}: {remedy}.")

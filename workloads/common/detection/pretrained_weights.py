"""Files of weights for the trunks of detectors: opened, read, checked and set, or refused in one sentence.

A file is checked whole, names, shapes and numbers, before a weight is set, and nothing that a pickle asks for is run.
Whoever calls names the `source` from which the right file comes.
"""

import hashlib
import re
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ....runner.core.errors import DataError

# What a run of resnet50 subtracts from pixels, MEANS of resnet50.model: workloads do not import each other.
RUN_MEANS = (123.68, 116.78, 103.94)  # RGB, of pixels from 0 to 255


def opened(path: Path, source: str) -> BufferedReader:
    """The file, to be read; raises `DataError` where it is absent or cannot be opened."""
    try:
        return path.open("rb")
    except OSError as error:
        raise fault_of(path, "is missing or cannot be opened", source) from error


def saved(path: Path, source: str) -> dict[str, Any]:
    """The dictionary in a file of torch.save, on the CPU.

    Raises `DataError` where it is absent, damaged or something else. Where the name carries a SHA-256, as those of
    torchvision's files do, the file must have it.
    """
    with opened(path, source) as file:
        if named := re.search(r"-([0-9a-f]{8,64})\.pth$", path.name):
            digest = hashlib.file_digest(file, "sha256").hexdigest()[: len(named[1])]
            if digest != named[1]:
                raise fault_of(path, f"is damaged, its SHA-256 begins with {digest} and not as its name says", source)
            file.seek(0)
        try:
            found = torch.load(file, map_location="cpu", weights_only=True)
            return {str(name): value for name, value in found.items()}
        except Exception as error:  # what is cut short fails in many ways
            raise fault_of(path, "is cut short or holds something else than weights of PyTorch", source) from error


def of_run(found: Mapping[str, Any]) -> dict[str, Tensor] | None:
    """The weights in what a run of resnet50 with PyTorch saves; None if `found` is something else."""
    engine = found.get("engine")
    model = engine.get("model") if isinstance(engine, dict) else None
    return model if isinstance(model, dict) else None


def check(
    found: Mapping[str, Any], wanted: Mapping[str, torch.Size], part: re.Pattern[str], path: Path, source: str
) -> None:
    """Raises `DataError` unless all that is `wanted`, and of names like `part` no other, is there as it should be.

    That is: floating-point tensors of the wanted shapes, all of their numbers finite.
    """
    faults = []
    for name, shape in wanted.items():
        value = found.get(name)
        if name not in found:
            faults.append(f"lacks {name}")
        elif not isinstance(value, Tensor) or not value.is_floating_point():
            faults.append(f"holds {name} as something else than floating-point numbers")
        elif value.shape != shape:
            faults.append(f"holds {name} of the shape {list(value.shape)} and not {list(shape)}")
        elif not value.isfinite().all():
            faults.append(f"holds numbers in {name} that are not finite")
    deeper = [name for name in found if part.fullmatch(name) and name not in wanted]
    faults.extend(f"holds {name}, which this network has not" for name in deeper)
    if faults:
        more = f" (and {len(faults) - 1} more names are wrong)" if len(faults) > 1 else ""
        raise fault_of(path, faults[0] + more, source)


def assign(trunk: nn.Module, found: Mapping[str, Tensor]) -> None:
    """Sets what is `found` of `trunk`, by its own names, in its own type and where it lies."""
    own = trunk.state_dict()
    for name, value in found.items():
        own[name].copy_(value)


def fault_of(path: Path, fault: str, source: str) -> DataError:
    """What is wrong with the file, and what to do about it."""
    return DataError(f"{path} {fault}: download {source}, or set recipe.training.backbone=null to start from nothing.")

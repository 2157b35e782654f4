"""torchvision's native libraries without its package, whose import loads models and a compiler and takes 2 to 6 s."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch


@cache
def load_library(name: str) -> None:
    """Load a library, `_C` (`torch.ops.torchvision`) or `image` (`torchvision.io`), unless torchvision has done so."""
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("torchvision is not installed.", name="torchvision")
    for path in Path(spec.origin).parent.glob(f"{name}*.so"):
        torch.ops.load_library(path)

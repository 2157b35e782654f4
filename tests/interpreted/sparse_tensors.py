"""Large tensors that take hardly any memory, for programs of the `interpret_last_program` fixture."""

import math
import tempfile
from pathlib import Path

import torch


def sparse_zeros(*shape, dtype):
    """Return zeros in a sparse file: they take memory only where they are read or written."""
    with tempfile.TemporaryDirectory() as folder:  # the memory stays when the name is gone
        return torch.from_file(str(Path(folder, "zeros")), shared=True, size=math.prod(shape), dtype=dtype).view(shape)


def sparse_maps(count, channels, height, width, dtype=torch.float16):
    """Return zeros [count, channels, height, width] of `sparse_zeros`, channels-last."""
    return sparse_zeros(count, height, width, channels, dtype=dtype).permute(0, 3, 1, 2)

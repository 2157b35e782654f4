"""Tokenized sentences on the device."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class TokenizedSide:
    """All sentences of one language on the device: `ids` int32 [T], and `starts` and `lengths` int64 [P] of each.

    `lengths` count the special tokens, which `ids` do not contain.
    """

    ids: Tensor
    starts: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class TokenizedPairs:
    """Both sides of the sentence pairs on the device, and their `lengths` [2, P] on the host."""

    source: TokenizedSide
    target: TokenizedSide
    lengths: NDArray[np.int64]

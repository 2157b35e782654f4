"""Windows of a sequence of tokens, which is kept on the device if it is of moderate size."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...runner.core.errors import DataError
from ..common.nn.packing import copy_to_device

_MAX_DEVICE_TOKENS = 1 << 28  # of a text that is kept on the device, where a token takes 4 bytes


class TokenWindows:
    """Windows of shards of tokens uint16 [T], which form one sequence; on the device if they fit.

    Raises `DataError` at a token beyond the vocabulary.
    """

    def __init__(self, shards: Sequence[NDArray[np.uint16]], vocab_size: int, device: torch.device) -> None:
        self.sizes, self._shards, self._device = [len(shard) for shard in shards], shards, device
        self._firsts = np.cumsum([0, *self.sizes[:-1]])
        self._vocab_size = vocab_size
        self._ids: Tensor | None = None
        if sum(self.sizes) <= _MAX_DEVICE_TOKENS:
            ids = np.concatenate(shards)
            self._check(ids)
            self._ids = torch.from_numpy(ids.astype(np.int32)).to(device)

    def windows(self, starts: NDArray[np.int64], length: int) -> Tensor:
        """Return the windows int64 [N, length] that begin at `starts` [N]."""
        if self._ids is not None:
            positions = copy_to_device(starts, self._device)[:, None] + torch.arange(length, device=self._device)
            return self._ids[positions].long()
        shards = np.searchsorted(self._firsts, starts, "right") - 1
        places = zip(shards, starts - self._firsts[shards], strict=True)
        ids = np.stack([self._shards[shard][first : first + length] for shard, first in places])
        self._check(ids)
        return copy_to_device(ids.astype(np.int64), self._device)

    def _check(self, ids: NDArray[np.uint16]) -> None:
        if (largest := int(ids.max())) >= self._vocab_size:
            raise DataError(
                f"The text has the token {largest}, beyond a vocabulary of {self._vocab_size}: use shards of this "
                "vocabulary, or set recipe.data.vocabulary_size."
            )

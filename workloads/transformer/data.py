"""The Transformer's batches: so many tokens of sentences of all lengths, one after the other, without padding."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...datasets.text.subwords import EOS, PAD
from ...runner.core.errors import ConfigurationError
from ..common.nn.packing import sentence_major, uploaded
from ..common.translation.parallel_data import ParallelText, Side
from ..common.translation.synthetic import SyntheticText
from .vocabulary import SharedVocabulary

_STEP = 128  # pieces: the sizes of packed batches are multiples of it
_SLACK = 1.02  # parts of a batch do not come out equal
_SHORTEST = 8  # pieces a sentence: a batch has at most as many sentences as would be that short


class Packed(NamedTuple):
    """Pieces int64 [T] of N sentences, one sentence after the other.

    `sentences` and `positions` int64 [T] say whose and which piece each is; `bounds` int32 [N + 1] where sentences
    begin and end. What fills a batch up are sentences of padding, and then sentences of no piece. `longest` is a bound.
    """

    ids: Tensor
    sentences: Tensor
    positions: Tensor
    bounds: Tensor
    longest: int


class Pairs(NamedTuple):
    """A micro-batch; `target` holds the labels, which the decoder reads one later."""

    source: Packed
    target: Packed


class TokenBatches(ParallelText):
    """Global batches of `global_batch_size` tokens on the longer side, from sentences of all lengths."""

    kind = SharedVocabulary
    marks = 1

    def plan(self, epoch: int) -> list[NDArray[np.int64]]:
        """All pairs shuffled, then cut wherever the next would be too many tokens of either language."""
        order = np.random.default_rng(self._seeds.derive("data_order", epoch)).permutation(self.lengths.shape[1])
        ends = self.lengths[:, order].cumsum(1)
        parts = self._sharding.ranks * self._sharding.accumulation
        batches, start, before = [], 0, np.zeros(2, dtype=np.int64)
        while start < len(order):
            stop = min(
                int(np.searchsorted(side, most, "right"))
                for side, most in zip(ends, before + self.global_batch_size, strict=True)
            )
            stop = min(stop, start + self.global_batch_size // _SHORTEST)
            if stop == start:
                raise ConfigurationError(
                    f"recipe.global_batch_size={self.global_batch_size} is less than one pair: raise it."
                )
            if stop - start >= parts:  # else some rank would have none
                batches.append(order[start:stop])
            start, before = stop, ends[:, stop - 1]
        return batches

    def pack(self, numbers: NDArray[np.int64], sides: tuple[Side, Side]) -> Pairs:
        """Both sides in the same order, filled up to one size for all batches but an epoch's last."""
        parts = self._sharding.ranks * self._sharding.accumulation
        used = self.lengths[:, numbers].sum(1)
        # An epoch's last batch is not worth filling up.
        room = self._room() if used.max() > 0.9 * self.global_batch_size / parts else 0
        sentences = max(len(numbers) + 2, -(-room // _SHORTEST)) + -(-room // self._settings.max_length)
        packed = [
            self._packed(numbers, lengths, side, max(room, int(total)), sentences if room else 0)
            for lengths, side, total in zip(self.lengths[:, numbers], sides, used, strict=True)
        ]
        return Pairs(*packed)

    def pack_source(self, numbers: NDArray[np.int64], lengths: NDArray[np.int64], side: Side) -> Packed:
        """The source alone, with nothing to fill it up."""
        return self._packed(numbers, lengths, side, int(lengths.sum()), 0)

    def padding(self) -> float:
        """Of batches that are filled up to one size, but for an epoch's last."""
        if not (room := self._room()):
            return 0.0
        used = [self.lengths[:, numbers].sum() for numbers in self.plan(1)[:-1]]
        return 1 - float(np.mean(used or [2 * room])) / (2 * room * self._sharding.ranks * self._sharding.accumulation)

    def _room(self) -> int:
        """Pieces of a part of a batch, where kernels are compiled for one size, which is worth padding; 0 elsewhere."""
        if self._device.type == "cpu":
            return 0
        parts = self._sharding.ranks * self._sharding.accumulation
        return -(-int(self.global_batch_size / parts * _SLACK) // _STEP) * _STEP

    def _packed(
        self, numbers: NDArray[np.int64], lengths: NDArray[np.int64], side: Side, room: int, sentences: int
    ) -> Packed:
        """Pieces and EOS of each; with `sentences`, filled up to `room` pieces, in steps, and that many sentences."""
        used, longest = int(lengths.sum()), self._settings.max_length
        size = -(-room // _STEP) * _STEP if sentences else used
        rest = size - used
        fill = [longest] * (rest // longest) + [rest % longest] * bool(rest % longest)
        empty = [0] * (sentences - len(lengths) - len(fill)) if sentences else []
        wanted = np.concatenate([lengths, np.array(fill + empty, dtype=np.int64)])
        on_device = uploaded(wanted, self._device)
        sentence, position = sentence_major(on_device, size)
        chosen = uploaded(np.pad(numbers, (0, len(wanted) - len(numbers))), self._device)
        inside = side.ids[(side.starts[chosen][sentence] + position).clamp(max=len(side.ids) - 1)].long()
        ids = torch.where(position == on_device[sentence] - 1, EOS, inside)
        ids = torch.where(torch.arange(size, device=self._device) < used, ids, PAD)
        bounds = torch.nn.functional.pad(on_device.cumsum(0), (1, 0)).int()
        return Packed(ids, sentence, position, bounds, longest if sentences else int(wanted.max()))

    def _sizes(self) -> tuple[int, int]:
        """All pairs; batches differ by one or two from epoch to epoch."""
        return self.lengths.shape[1], -(-int(self.lengths.sum(1).max()) // self.global_batch_size)

    def _weight(self, numbers: NDArray[np.int64]) -> float:
        return float(self.lengths[1, numbers].sum())


class SyntheticTokenBatches(SyntheticText, TokenBatches):
    """data=synthetic."""

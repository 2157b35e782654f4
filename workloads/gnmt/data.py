"""GNMT's batches: so many sentences of about one length, packed time-major as cuDNN's LSTMs read them."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...datasets.text.moses_bpe import BEGIN, END, MosesBPE
from ...runner.core.errors import ConfigurationError
from ..common.nn.packing import time_major, uploaded
from ..common.translation.parallel_data import ParallelText, Side
from ..common.translation.synthetic import SyntheticText

_BUCKETS = 5  # of lengths, equally wide (mlperf.md 12.4: of 10 where a side has at most 50 pieces)


class Packed(NamedTuple):
    """Pieces of N sentences, position after position; the sentences lie in order of falling length.

    `places` int64 [T] are where they belong in a padded [N, longest] whose rows have the order of the batch's source;
    `alive` int64 on the CPU says how many sentences reach each position.
    """

    ids: Tensor
    places: Tensor
    alive: Tensor

    @property
    def longest(self) -> int:
        """Positions."""
        return len(self.alive)


class Pairs(NamedTuple):
    """Source and target of a micro-batch: the decoder reads `target` and is to say `labels`, in the same order.

    `lengths` int64 [2, N] are the source's, falling, and what the decoder reads of each.
    """

    source: Packed
    lengths: Tensor
    target: Packed
    labels: Tensor


class Sentences(ParallelText):
    """Global batches of `global_batch_size` sentences of one bucket of lengths; what fills no batch waits an epoch."""

    kind = MosesBPE
    marks = 2

    def plan(self, epoch: int) -> list[NDArray[np.int64]]:
        """Each bucket shuffled and cut, then the batches shuffled, as the reference orders them."""
        random = np.random.default_rng(self._seeds.derive("data_order", epoch))
        bucket, batches = self._buckets(), []
        for number in np.unique(bucket):
            members = random.permutation(np.flatnonzero(bucket == number))
            whole = len(members) // self.global_batch_size
            batches += np.split(members[: whole * self.global_batch_size], whole) if whole else []
        return [batches[place] for place in random.permutation(len(batches))]

    def pack(self, numbers: NDArray[np.int64], sides: tuple[Side, Side]) -> Pairs:
        """The source's order is that of its falling lengths; the target is packed in the order of its own."""
        source_lengths, target_lengths = self.lengths[:, numbers]
        order = np.argsort(-source_lengths, kind="stable")
        numbers, source_lengths, target_lengths = numbers[order], source_lengths[order], target_lengths[order]
        source = self._packed(numbers, source_lengths, sides[0], np.arange(len(numbers)))
        rows = np.argsort(-target_lengths, kind="stable")
        spoken, labels = self._spoken(numbers[rows], target_lengths[rows], sides[1], rows)
        lengths = np.stack([source_lengths, target_lengths - 1])
        return Pairs(source, uploaded(lengths, self._device), spoken, labels)

    def pack_source(self, numbers: NDArray[np.int64], lengths: NDArray[np.int64], side: Side) -> tuple[Packed, Tensor]:
        """The source alone; `numbers` come in order of falling length."""
        return self._packed(numbers, lengths, side, np.arange(len(numbers))), uploaded(lengths, self._device)

    def _packed(
        self, numbers: NDArray[np.int64], lengths: NDArray[np.int64], side: Side, rows: NDArray[np.int64]
    ) -> Packed:
        """BEGIN, pieces, END of sentences in order of falling `lengths`, which belong in `rows` of the padded."""
        ids, places, alive = self._gather(numbers, lengths, side, rows)
        return Packed(ids[0], places, alive)

    def _spoken(
        self, numbers: NDArray[np.int64], lengths: NDArray[np.int64], side: Side, rows: NDArray[np.int64]
    ) -> tuple[Packed, Tensor]:
        """What the decoder reads, all but the last, and what it is to say, all but the first."""
        ids, places, alive = self._gather(numbers, lengths - 1, side, rows, ahead=1)
        return Packed(ids[0], places, alive), ids[1]

    def _gather(
        self,
        numbers: NDArray[np.int64],
        lengths: NDArray[np.int64],
        side: Side,
        rows: NDArray[np.int64],
        ahead: int = 0,
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """Pieces at each position and up to `ahead` after it, their places, and how many reach each position."""
        longest, total = int(lengths[0]), int(lengths.sum())
        chosen, row = (uploaded(array, self._device) for array in (numbers, rows))
        wanted = uploaded(lengths, self._device)
        sentence, position = time_major(wanted, longest, total)
        first, last = side.starts[chosen][sentence] - 1, side.lengths[chosen][sentence] - 1
        found = []
        for step in range(ahead + 1):
            at = position + step
            inside = side.ids[(first + at).clamp(0, len(side.ids) - 1)].long()
            found.append(torch.where(at == 0, BEGIN, torch.where(at == last, END, inside)))
        alive = (lengths[None] > np.arange(longest)[:, None]).sum(1)
        return found, row[sentence] * longest + position, torch.from_numpy(alive)

    def _buckets(self) -> NDArray[np.int64]:
        """Of each pair the bucket of its longer side."""
        return (self.lengths.max(0) - 1) // -(-self._settings.max_length // _BUCKETS)

    def _sizes(self) -> tuple[int, int]:
        steps = sum(int(count) // self.global_batch_size for count in np.bincount(self._buckets()))
        if not steps:
            raise ConfigurationError(
                f"No bucket of lengths holds {self.global_batch_size} pairs: lower recipe.global_batch_size."
            )
        return steps * self.global_batch_size, steps

    def _weight(self, numbers: NDArray[np.int64]) -> float:
        return float(len(numbers))


class SyntheticSentences(SyntheticText, Sentences):
    """data=synthetic."""

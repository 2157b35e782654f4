"""The Transformer's batches: a number of tokens in sentences of all lengths, packed one after the other."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...datasets.text.prepared_corpus import LengthCount
from ...datasets.text.subwords import EOS, PAD
from ...runner.core.errors import ConfigurationError
from ..common.nn.packing import copy_to_device, sentence_major_indices
from ..common.translation.parallel_data import ParallelTextData
from ..common.translation.synthetic import SyntheticParallelText
from ..common.translation.tokenized_text import TokenizedPairs, TokenizedSide
from .vocabulary import SharedVocabulary

_SIZE_MULTIPLE = 128  # padded sizes of packed batches are multiples of this
# By what fraction of the maximum length a part of a global batch may exceed the mean on the longer side. In 2 to 16
# parts of all batches of an epoch it was at most 0.22 with WMT's lengths and 0.33 with Multi30k's.
_PART_SLACK = 0.5
_MIN_MEAN_LENGTH = 8  # bounds the sentences of a batch: as many as would fill it at this length


class PackedSentences(NamedTuple):
    """Token ids int64 [T] of N sentences, one sentence after the other.

    `sentence_ids` and `positions` int64 [T] are each token's sentence and its position in it. `cu_seqlens` int32
    [N + 1] are the cumulative lengths. No sentence is longer than `max_seqlen`. Sentences of padding and empty
    sentences fill a batch up to a fixed size.
    """

    ids: Tensor
    sentence_ids: Tensor
    positions: Tensor
    cu_seqlens: Tensor
    max_seqlen: int


class PackedPairs(NamedTuple):
    """Source and target of a micro-batch; `target` holds the labels, which are also the next decoder inputs."""

    source: PackedSentences
    target: PackedSentences


class TransformerData(ParallelTextData):
    """Global batches of `global_batch_size` tokens on the longer side, from sentences of all lengths."""

    vocabulary_class = SharedVocabulary
    num_special_tokens = 1

    def plan_batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """Shuffle all pairs and start a new batch whenever the next pair would exceed the token limit of a side."""
        order = np.random.default_rng(self._seeds.derive("data_order", epoch)).permutation(self.lengths.shape[1])
        cumulative = self.lengths[:, order].cumsum(1)
        batches, start, used = [], 0, np.zeros(2, dtype=np.int64)
        while start < len(order):
            stop = min(
                int(np.searchsorted(side, limit, "right"))
                for side, limit in zip(cumulative, used + self.global_batch_size, strict=True)
            )
            stop = min(stop, start + self.global_batch_size // _MIN_MEAN_LENGTH)
            if stop == start:
                raise ConfigurationError(
                    f"recipe.global_batch_size={self.global_batch_size} is less than one pair: raise it."
                )
            if stop - start >= self._num_parts:  # otherwise a micro-batch would be empty
                batches.append(order[start:stop])
            start, used = stop, cumulative[:, stop - 1]
        return batches

    def pack(self, numbers: NDArray[np.int64], corpus: TokenizedPairs) -> PackedPairs:
        """Pack both sides in the same order; all batches of a GPU are filled up to the same size."""
        both_lengths, sizes = corpus.lengths[:, numbers], self._padded_sizes()
        size = max(sizes)
        sentences = max(len(numbers) + 2, -(-size // _MIN_MEAN_LENGTH)) + -(-size // self._settings.max_length)
        packed = [
            self._pack(numbers, lengths, side, max(padded, int(lengths.sum())), sentences if size else 0)
            for lengths, side, padded in zip(both_lengths, (corpus.source, corpus.target), sizes, strict=True)
        ]
        return PackedPairs(*packed)

    def pack_source(
        self, numbers: NDArray[np.int64], lengths: NDArray[np.int64], corpus: TokenizedSide
    ) -> PackedSentences:
        """Pack source sentences alone, without padding."""
        return self._pack(numbers, lengths, corpus, int(lengths.sum()), 0)

    def padding_fraction(self) -> float:
        """Return the fraction of padding in batches of the fixed size that hold `global_batch_size` on the longer side.

        It follows from the tokens of an epoch. The space that no further sentence fills in a batch is neglected.
        """
        if not any(sizes := self._padded_sizes()):
            return 0.0
        source, target = self._num_tokens()
        used = self.global_batch_size * (source + target) / max(source, target)
        return 1 - used / (sum(sizes) * self._num_parts)

    def invented_lengths(self) -> NDArray[np.int64]:
        """Return pairs of all lengths from half of the maximum on in turn, as many as fill half of a global batch.

        They are padded to the fixed sizes, which are those of all batches on a GPU, and of which one side's is smaller.
        """
        lengths = np.arange(self._settings.max_length, self._settings.max_length // 2 - 1, -1)
        lengths = np.resize(lengths, self.global_batch_size)
        pairs = max(self._num_parts, int(np.searchsorted(lengths.cumsum(), self.global_batch_size // 2, "right")))
        return np.stack([lengths[:pairs]] * 2)

    @property
    def _num_parts(self) -> int:
        """Micro-batches of a global batch over all ranks."""
        return self._sharding.ranks * self._sharding.accumulation

    def _padded_sizes(self) -> tuple[int, int]:
        """Return the source and target tokens of a padded micro-batch on devices that compile for fixed sizes, else 0.

        A batch is full when its longer side is. The other side's tokens vary with the pairs' lengths and their ratios:
        by 0.2 to 0.25 / sqrt(pairs) of them, one standard deviation, so that four fit. Parts of a batch differ by less
        than 0.5 / sqrt(pairs) there. If one does not fit, it is larger, and its step is neither compiled nor captured.
        """
        if self._device.type == "cpu":
            return 0, 0
        tokens, full, largest_share = self._num_tokens(), self.global_batch_size / self._num_parts, 1.0
        longer = tokens[self._longer_side]
        deviation = (full * self._num_kept / longer) ** -0.5
        if self._num_parts > 1:
            full += _PART_SLACK * self._settings.max_length
            largest_share += deviation / 2
        shares = [min(largest_share, side / longer * (1 + deviation)) for side in tokens]
        shares[self._longer_side] = 1.0
        sizes = [-(-int(full * share) // _SIZE_MULTIPLE) * _SIZE_MULTIPLE for share in shares]
        return sizes[0], sizes[1]

    def _pack(
        self,
        numbers: NDArray[np.int64],
        lengths: NDArray[np.int64],
        corpus: TokenizedSide,
        size: int,
        num_sentences: int,
    ) -> PackedSentences:
        """Pack words and EOS of each sentence.

        If `num_sentences` is not 0, fill up to that many sentences and to `size` tokens, rounded up.
        """
        used, max_length = int(lengths.sum()), self._settings.max_length
        size = -(-size // _SIZE_MULTIPLE) * _SIZE_MULTIPLE if num_sentences else used
        rest = size - used
        padding = [max_length] * (rest // max_length) + [rest % max_length] * bool(rest % max_length)
        empty = [0] * (num_sentences - len(lengths) - len(padding)) if num_sentences else []
        all_lengths = np.concatenate([lengths, np.array(padding + empty, dtype=np.int64)])
        device_lengths = copy_to_device(all_lengths, self._device)
        sentence, position = sentence_major_indices(device_lengths, size)
        device_numbers = copy_to_device(np.pad(numbers, (0, len(all_lengths) - len(numbers))), self._device)
        words = corpus.ids[(corpus.starts[device_numbers][sentence] + position).clamp(max=len(corpus.ids) - 1)].long()
        ids = torch.where(position == device_lengths[sentence] - 1, EOS, words)
        ids = torch.where(torch.arange(size, device=self._device) < used, ids, PAD)
        cu_seqlens = torch.nn.functional.pad(device_lengths.cumsum(0), (1, 0)).int()
        max_seqlen = max_length if num_sentences else int(all_lengths.max())
        return PackedSentences(ids, sentence, position, cu_seqlens, max_seqlen)

    def _epoch_size(self, counts: Sequence[LengthCount]) -> tuple[int, int]:
        """Return all pairs and about as many batches as an epoch has; their number varies by one or two."""
        return self._num_kept, -(-max(self._num_tokens()) // self.global_batch_size)

    def _loss_weight(self, lengths: NDArray[np.int64]) -> float:
        return float(lengths[1].sum())


class SyntheticTransformerData(SyntheticParallelText, TransformerData):
    """data=synthetic."""

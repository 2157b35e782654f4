"""GNMT's batches: sentences of about the same length, packed time step by time step as cuDNN's LSTMs read them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...datasets.text.moses_bpe import BEGIN, END, PAD, MosesBPE
from ...datasets.text.prepared_corpus import LengthCount
from ...runner.core.errors import ConfigurationError
from ...runner.training.workload import Batch
from ..common.nn.packing import copy_to_device, time_major_indices
from ..common.translation.parallel_data import ParallelTextData
from ..common.translation.synthetic import SyntheticParallelText
from ..common.translation.tokenized_text import TokenizedPairs, TokenizedSide

_NUM_BUCKETS = 5  # of equal width: 10 tokens at a maximum length of 50 (docs/mlperf_rules.md, "GNMT")


class PackedSentences(NamedTuple):
    """Token ids int64 [T] of N sentences, time step by time step; the sentences are in order of descending length.

    `padded_indices` int64 [T] are the positions of the tokens in the flattened padded tensor [N, max_length], whose
    rows are in the order of the batch's source. `batch_sizes` are the sentences that reach each of the `max_length`
    time steps, as in PackedSequence.
    """

    ids: Tensor
    padded_indices: Tensor
    batch_sizes: tuple[int, ...]

    @property
    def max_length(self) -> int:
        """The number of time steps."""
        return len(self.batch_sizes)


class PackedPairs(NamedTuple):
    """Source and target of a micro-batch; `labels` int64 [T] are what the decoder predicts after each `target` token.

    A batch whose sentences are padded to one length has padding among its tokens too; its labels there are -1.
    `lengths` int64 [2, N] are the source lengths, descending, and the numbers of decoder inputs.
    """

    source: PackedSentences
    lengths: Tensor
    target: PackedSentences
    labels: Tensor


class GNMTData(ParallelTextData):
    """Global batches of `global_batch_size` sentences of one length bucket; incomplete batches are dropped."""

    vocabulary_class = MosesBPE
    num_special_tokens = 2

    @dataclass
    class Settings(ParallelTextData.Settings):
        """Settings of parallel text, and how it is packed."""

        pad_to_bucket: bool = False
        """Pad training sentences to the longest of their length bucket, so that batches have few shapes. Small models
        need that: they wait for the host unless their steps are captured."""

    def plan_batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """Shuffle and split each bucket, then shuffle the batches, as the reference does."""
        generator = np.random.default_rng(self._seeds.derive("data_order", epoch))
        buckets, batches = self._bucket(self.lengths.max(0)), []
        for bucket in np.unique(buckets):
            members = generator.permutation(np.flatnonzero(buckets == bucket))
            num_batches = len(members) // self.global_batch_size
            batches += np.split(members[: num_batches * self.global_batch_size], num_batches) if num_batches else []
        return [batches[index] for index in generator.permutation(len(batches))]

    def pack(self, numbers: NDArray[np.int64], corpus: TokenizedPairs) -> PackedPairs:
        """Pack both sides, each in order of its own descending lengths; padded rows are in the order of the source."""
        source_lengths, target_lengths = corpus.lengths[:, numbers]
        padded_length = None
        if self.has_few_shapes:
            padded_length = int(self._longest(corpus.lengths[:, numbers]).max())
        order = np.argsort(-source_lengths, kind="stable")
        numbers, source_lengths, target_lengths = numbers[order], source_lengths[order], target_lengths[order]
        source = self._pack_all(numbers, source_lengths, corpus.source, padded_length)
        rows = np.argsort(-target_lengths, kind="stable")
        target, labels = self._pack_decoder(numbers[rows], target_lengths[rows], corpus.target, rows, padded_length)
        lengths = np.stack([source_lengths, target_lengths - 1])
        return PackedPairs(source, copy_to_device(lengths, self._device), target, labels)

    def pack_source(
        self, numbers: NDArray[np.int64], lengths: NDArray[np.int64], corpus: TokenizedSide
    ) -> tuple[PackedSentences, Tensor]:
        """Pack source sentences alone; `numbers` are in order of descending length."""
        return self._pack_all(numbers, lengths, corpus), copy_to_device(lengths, self._device)

    @property
    def has_few_shapes(self) -> bool:
        """Whether batches have one shape for each length bucket, instead of one for all lengths of its sentences."""
        assert isinstance(self._settings, GNMTData.Settings)
        return self._settings.pad_to_bucket

    def warm_up_steps(self) -> Iterator[Sequence[Batch]]:
        """Yield a step of each bucket that fills a batch, if sentences are padded; else one of the longest."""
        if not self.has_few_shapes:
            yield from super().warm_up_steps()
            return
        for bucket in np.flatnonzero(self._count_batches(self._counts)).tolist():
            lengths = np.full((2, self.global_batch_size), self._longest(bucket * self._bucket_width))
            yield self._micro_batches(np.arange(self.global_batch_size), self._random_corpus(lengths))

    def padding_fraction(self) -> float:
        """Return the fraction of padding in the pairs of an epoch."""
        if not self.has_few_shapes:
            return 0.0
        used = sum(self._num_tokens())
        padded = sum(2 * count.pairs * int(self._longest(count.tokens)) for count in self._counts)
        return 1 - used / padded

    def _pack_all(
        self,
        numbers: NDArray[np.int64],
        lengths: NDArray[np.int64],
        corpus: TokenizedSide,
        padded_length: int | None = None,
    ) -> PackedSentences:
        """Pack BEGIN, words and END of sentences in order of descending `lengths`."""
        rows = np.arange(len(numbers))
        ids, padded_indices, batch_sizes = self._gather(numbers, lengths, corpus, rows, padded_length)
        return PackedSentences(ids[0], padded_indices, batch_sizes)

    def _pack_decoder(
        self,
        numbers: NDArray[np.int64],
        lengths: NDArray[np.int64],
        corpus: TokenizedSide,
        rows: NDArray[np.int64],
        padded_length: int | None,
    ) -> tuple[PackedSentences, Tensor]:
        """Return the decoder inputs, all tokens but the last, and the labels, all tokens but the first."""
        inputs_length = None if padded_length is None else padded_length - 1
        ids, padded_indices, batch_sizes = self._gather(numbers, lengths - 1, corpus, rows, inputs_length, lookahead=1)
        return PackedSentences(ids[0], padded_indices, batch_sizes), ids[1].masked_fill(ids[1] == PAD, -1)

    def _gather(
        self,
        numbers: NDArray[np.int64],
        lengths: NDArray[np.int64],
        corpus: TokenizedSide,
        rows: NDArray[np.int64],
        padded_length: int | None = None,
        lookahead: int = 0,
    ) -> tuple[list[Tensor], Tensor, tuple[int, ...]]:
        """Return the token ids at each position and up to `lookahead` after it, padded indices and batch sizes.

        `rows` are the rows of the padded tensor that the sentences belong to. With a `padded_length`, all sentences
        are that long, by padding after their end.
        """
        if padded_length is not None:
            lengths = np.full_like(lengths, padded_length)
        max_length, total = int(lengths[0]), int(lengths.sum())
        device_numbers, device_rows = (copy_to_device(array, self._device) for array in (numbers, rows))
        device_lengths = copy_to_device(lengths, self._device)
        sentence, position = time_major_indices(device_lengths, max_length, total)
        starts, last = corpus.starts[device_numbers][sentence] - 1, corpus.lengths[device_numbers][sentence] - 1
        ids = []
        for offset in range(lookahead + 1):
            index = position + offset
            words = corpus.ids[(starts + index).clamp(0, len(corpus.ids) - 1)].long()
            words = torch.where(index == 0, BEGIN, torch.where(index == last, END, words))
            ids.append(words if padded_length is None else words.masked_fill(index > last, PAD))
        batch_sizes = (lengths[None] > np.arange(max_length)[:, None]).sum(1)
        return ids, device_rows[sentence] * max_length + position, tuple(batch_sizes.tolist())

    def invented_lengths(self) -> NDArray[np.int64]:
        """Return sentences of all lengths of the longest bucket in turn, the most memory that a batch can take."""
        shortest = min((_NUM_BUCKETS - 1) * self._bucket_width, self._settings.max_length)
        return np.resize(np.arange(shortest, self._settings.max_length + 1), (2, self.global_batch_size))

    @property
    def _bucket_width(self) -> int:
        return -(-self._settings.max_length // _NUM_BUCKETS)

    def _bucket(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bucket of each length, of a pair's longer side; the last one holds the maximum length too."""
        return np.minimum(lengths // self._bucket_width, _NUM_BUCKETS - 1)

    def _longest(self, lengths: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Return the greatest length in the bucket of each length."""
        bucket = self._bucket(np.asarray(lengths))
        longest = (bucket + 1) * self._bucket_width - 1
        return np.where(bucket == _NUM_BUCKETS - 1, self._settings.max_length, longest)

    def _count_batches(self, counts: Sequence[LengthCount]) -> NDArray[np.int64]:
        """Return the global batches of each bucket in an epoch."""
        buckets = self._bucket(np.array([count.tokens for count in counts]))
        pairs = np.bincount(buckets, [count.pairs for count in counts])
        return pairs.astype(np.int64) // self.global_batch_size

    def _epoch_size(self, counts: Sequence[LengthCount]) -> tuple[int, int]:
        steps = int(self._count_batches(counts).sum())
        if not steps:
            raise ConfigurationError(
                f"No length bucket holds {self.global_batch_size} pairs: lower recipe.global_batch_size."
            )
        return steps * self.global_batch_size, steps

    def _loss_weight(self, lengths: NDArray[np.int64]) -> float:
        return float(lengths.shape[1])


class SyntheticGNMTData(SyntheticParallelText, GNMTData):
    """data=synthetic."""

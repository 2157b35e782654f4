"""data=synthetic: random words in sentences as long as those of news; nothing is prepared or learned."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ....datasets.text.prepared_corpus import CorpusStatistics, count_lengths
from ....runner.core.progress import ProgressCallback
from .parallel_data import ParallelTextData
from .tokenized_text import TokenizedPairs, TokenizedSide

_TRAIN_PAIRS, _TEST_SENTENCES = 1 << 19, 3003  # the test set is as large as newstest2014
# Mean and standard deviation of the logarithms of the source length, in tokens of a vocabulary of 32,000, and of the
# ratio of target to source length, which is independent of it. Measured on 39,400 English-German pairs of the WMT
# newstests and Europarl; the mean length is 28 tokens.
_LOG_LENGTH, _LOG_RATIO = (3.15, 0.58), (0.05, 0.20)


class SyntheticParallelText(ParallelTextData):
    """Mixin that replaces the text; list it before the data class. The vocabulary has `vocabulary_size` entries."""

    @classmethod
    def prepare_data(cls, settings: ParallelTextData.Settings, progress: ProgressCallback) -> None:
        """Do nothing: there is nothing to prepare."""

    def references(self) -> list[str]:
        """Return empty references."""
        return [""] * self.eval_size

    def decode(self, ids: Sequence[int]) -> str:
        """Return the ids as text."""
        return " ".join(map(str, ids))

    def _read_statistics(self) -> CorpusStatistics:
        lengths, test_lengths = self._read_lengths()
        counts = count_lengths(lengths - self.num_special_tokens)
        longest_first = np.sort(test_lengths - self.num_special_tokens)[::-1]
        return CorpusStatistics(self._settings.vocabulary_size, {}, counts, tuple(longest_first.tolist()))

    def _read_lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        generator = np.random.default_rng(self._seeds.data_order)
        source = generator.lognormal(*_LOG_LENGTH, _TRAIN_PAIRS + _TEST_SENTENCES)
        pairs = np.stack([source, source * generator.lognormal(*_LOG_RATIO, len(source))])
        lengths = np.maximum(np.rint(pairs).astype(np.int64), 1) + self.num_special_tokens
        return lengths[:, _TEST_SENTENCES:], lengths[0, :_TEST_SENTENCES]

    def _load_train(self) -> TokenizedPairs:
        return self._random_corpus(self.lengths)

    def _load_test(self) -> TokenizedSide:
        return self._random_side(self.test_lengths)

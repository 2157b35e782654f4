"""data=synthetic: sentences of random words in the lengths of news, on the device; nothing is prepared or learned."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ....datasets.text.wmt import Progress
from .parallel_data import ParallelText, Side

_PAIRS, _TESTED = 1 << 19, 3003  # of training; of newstest2014
# Logarithms of the source's length in 32,000 pieces and of the target's by it, mean and deviation, of 39,400 English
# and German pairs of WMT's newstests and Europarl, which do not depend on one another: 28 pieces on average.
_SOURCE, _RATIO = (3.15, 0.58), (0.05, 0.20)


class SyntheticText(ParallelText):
    """To be named before a task's own batches; the vocabulary is as large as the recipe wants it to be."""

    @classmethod
    def prepare_data(cls, settings: ParallelText.Settings, progress: Progress) -> None:
        """There is nothing to prepare."""

    def references(self) -> list[str]:
        """Nothing is right."""
        return [""] * self.eval_size

    def text(self, ids: Sequence[int]) -> str:
        """Words without meaning."""
        return " ".join(map(str, ids))

    def _open(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        random = np.random.default_rng(self._seeds.data_order)
        self.words, self._dropped = self._settings.vocabulary_size, 0
        source = random.lognormal(*_SOURCE, _PAIRS + _TESTED)
        pairs = np.stack([source, source * random.lognormal(*_RATIO, len(source))])
        lengths = np.maximum(np.rint(pairs).astype(np.int64), 1) + self.marks
        return lengths[:, _TESTED:], lengths[0, :_TESTED]

    def _load(self) -> tuple[Side, Side]:
        if self._loaded is None:
            self._loaded = self._random_sides()
        return self._loaded

    def _load_test(self) -> Side:
        return self._random(self.test_lengths)

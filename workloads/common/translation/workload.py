"""What the translation workloads share."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from ....runner.core import execution_paths
from ....runner.training.workload import Batch, TextPredictions
from .beam_search import BeamSearch
from .captured_search import CapturedSearches
from .parallel_data import ParallelTextData

Translations = list[tuple[int, list[int]]]
"""(number of the test sentence, output token ids) for each translated sentence."""
Bleu = Callable[[Sequence[str]], float]
"""Returns the corpus BLEU of hypotheses, as a fraction, against references whose n-grams it keeps."""


class TranslationWorkload:
    """Base class of workloads whose model maps a batch to its summed loss; subclasses search and score."""

    data: ParallelTextData
    settings: Any
    _searches: CapturedSearches | None = None
    _bleu: tuple[list[int], Bleu] | None = None  # with the numbers of the sentences whose references it has

    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the summed loss, which the model computes itself."""
        return model(batch.inputs)

    def predict(self, model: nn.Module, batches: Iterable[Batch]) -> TextPredictions:
        """Translate this rank's sentences; return the `Translations` and the number of source and output tokens."""
        translations: Translations = []
        tokens = 0
        for batch in batches:
            source, numbers = batch.inputs
            outputs = self._translate(model, source)
            tokens += batch.global_tokens + sum(map(len, outputs))
            translations += zip(np.asarray(numbers).tolist(), outputs, strict=True)
        return TextPredictions(translations, tokens)

    def _translate(self, model: Any, source: Any) -> list[list[int]]:
        """Return the token ids of the best translation of each sentence of a packed source."""
        if not (self.settings.capture_search and self.data.has_few_eval_shapes):
            execution_paths.fall_back("beam_search", "not captured")
            return self.start_search(model, source).run()
        if self._searches is None:
            self._searches = CapturedSearches()
        return self._searches.run(lambda own_source: self.start_search(model, own_source), source)

    def score(self, parts: Sequence[TextPredictions]) -> dict[str, float]:
        """Return the corpus BLEU of all translated sentences, as a fraction."""
        translations = sorted(pair for part in parts for pair in part.predictions)
        numbers = [number for number, _ in translations]
        if self._bleu is None or self._bleu[0] != numbers:  # the first evaluation
            references = self.data.references()
            self._bleu = numbers, self.build_bleu([references[number] for number in numbers])
        return {"bleu": self._bleu[1]([self.data.decode(ids) for _, ids in translations])}

    def start_search(self, model: Any, source: Any) -> BeamSearch:
        """Encode a packed source and return the search for the translation of each sentence."""
        raise NotImplementedError

    @staticmethod
    def build_bleu(references: Sequence[str]) -> Bleu:
        """Return the workload's BLEU against these references."""
        raise NotImplementedError

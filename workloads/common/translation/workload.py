"""Settings and steps that both translators share."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from ....runner.training.workload import Batch, TextPredictions
from .parallel_data import ParallelText

Translations = list[tuple[int, list[int]]]  # (number in the test set, output token ids)


class Translation:
    """A task whose model is called with a batch and gives its summed loss; a subclass searches and scores."""

    data: ParallelText

    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The model's own."""
        return model(batch.inputs)

    def predict(self, model: nn.Module, batches: Iterable[Batch]) -> TextPredictions:
        """Translate this rank's sentences; returns `Translations` and the tokens of sources and translations."""
        translations: Translations = []
        tokens = 0
        for batch in batches:
            source, numbers = batch.inputs
            outputs = self.translate(model, source)
            tokens += batch.global_tokens + sum(map(len, outputs))
            translations += zip(np.asarray(numbers).tolist(), outputs, strict=True)
        return TextPredictions(translations, tokens)

    def score(self, parts: Sequence[TextPredictions]) -> dict[str, float]:
        """Return the corpus BLEU of all translated sentences, as a fraction."""
        translations = sorted(pair for part in parts for pair in part.predictions)
        references = self.data.references()
        hypotheses = [self.data.text(ids) for _, ids in translations]
        return {"bleu": self.bleu([references[number] for number, _ in translations], hypotheses)}

    def translate(self, model: Any, source: Any) -> list[list[int]]:
        """The best translation of each sentence of a packed source, as pieces."""
        raise NotImplementedError

    def bleu(self, references: Sequence[str], hypotheses: Sequence[str]) -> float:
        """A fraction."""
        raise NotImplementedError

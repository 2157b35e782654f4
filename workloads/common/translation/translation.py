"""Settings and steps that both translators share."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from ....runner.training.workload import Batch
from .parallel_data import ParallelText

Translated = list[tuple[int, list[int]]]  # sentences of the test set by number, and the pieces found


class Translation:
    """A task whose model is called with a batch and gives its summed loss; a subclass searches and scores."""

    data: ParallelText

    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The model's own."""
        return model(batch.inputs)

    def predict(self, model: nn.Module, batches: Iterable[Batch]) -> Translated:
        """This rank's sentences, translated; a batch's tokens grow by what was said."""
        found: Translated = []
        for batch in batches:
            source, numbers = batch.inputs
            said = self.translate(model, source)
            batch.global_tokens += sum(map(len, said))
            found += zip(np.asarray(numbers).tolist(), said, strict=True)
        return found

    def score(self, parts: Sequence[Translated]) -> dict[str, float]:
        """BLEU of all sentences that were translated, as a fraction."""
        found = sorted(pair for part in parts for pair in part)
        references = self.data.references()
        hypotheses = [self.data.text(ids) for _, ids in found]
        return {"bleu": self.bleu([references[number] for number, _ in found], hypotheses)}

    def translate(self, model: Any, source: Any) -> list[list[int]]:
        """The best translation of each sentence of a packed source, as pieces."""
        raise NotImplementedError

    def bleu(self, references: Sequence[str], hypotheses: Sequence[str]) -> float:
        """A fraction."""
        raise NotImplementedError

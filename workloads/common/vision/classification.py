"""Loss and quality of image classifiers whose batches are (pixels, labels)."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....runner.training.workload import Batch


class Classification:
    """What all of them share; `settings` must have `label_smoothing`."""

    settings: Any

    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross entropy with smoothed labels, summed over the images."""
        pixels, labels = batch.inputs
        return F.cross_entropy(model(pixels), labels, label_smoothing=self.settings.label_smoothing, reduction="sum")

    def predict(self, model: nn.Module, batches: Iterable[Batch]) -> tuple[int, int]:
        """(right first guesses, images) of this rank; waits for the device once."""
        right, images = [], 0
        for batch in batches:
            pixels, labels = batch.inputs
            right.append((model(pixels).argmax(1) == labels).sum())
            images += len(labels)
        return int(torch.stack(right).sum()) if right else 0, images

    def score(self, parts: Sequence[tuple[int, int]]) -> dict[str, float]:
        """Top-1 accuracy over the images of all ranks."""
        return {"accuracy": sum(right for right, _ in parts) / sum(images for _, images in parts)}

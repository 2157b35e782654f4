"""Loss and accuracy of image classifiers, whose batches are (pixels, labels)."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....runner.training.workload import Batch


class Classification:
    """The part of a workload that all image classifiers share; `settings` must have `label_smoothing`."""

    capturable = True

    settings: Any

    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the cross entropy with label smoothing, summed over the images."""
        pixels, labels = batch.inputs
        return F.cross_entropy(model(pixels), labels, label_smoothing=self.settings.label_smoothing, reduction="sum")

    def predict(self, model: nn.Module, batches: Iterable[Batch]) -> tuple[int, int]:
        """Return (correct top-1 predictions, images) of this rank; synchronizes with the device once."""
        correct, images = [], 0
        for batch in batches:
            pixels, labels = batch.inputs
            correct.append((self.classify(model, pixels).argmax(1) == labels).sum())
            images += len(labels)
        return int(torch.stack(correct).sum()) if correct else 0, images

    def classify(self, model: nn.Module, pixels: Tensor) -> Tensor:
        """Return the logits [N, classes] of images that are evaluated."""
        logits: Tensor = model(pixels)
        return logits

    def score(self, parts: Sequence[tuple[int, int]]) -> dict[str, float]:
        """Return the top-1 accuracy over the images of all ranks."""
        return {"accuracy": sum(correct for correct, _ in parts) / sum(images for _, images in parts)}

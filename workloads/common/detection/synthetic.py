"""data=synthetic for detectors: random pixels and boxes on the device; nothing is read or learned."""

from collections.abc import Iterator

import torch

from ....runner.training.workload import Batch
from ..vision.image_data import ImageData, SyntheticBatches


class SyntheticCocoBatches(SyntheticBatches):
    """Repeats one step and one evaluation batch, which is said to be of each image of the validation set in turn."""

    def eval_batches(self, data: ImageData) -> Iterator[Batch]:
        """Yield the same pixels with the indices of this rank's images."""
        *tensors, _ = self.eval_batch(data).inputs
        for span in data.eval_spans():
            indices = torch.arange(span.start, span.stop, device=data.device)
            inputs = (*(tensor[: len(indices)] for tensor in tensors), indices)
            yield Batch(inputs, len(indices), data.eval_size, data.eval_size)


def check_sizes(*sizes: int) -> None:
    """Raise ValueError unless classes, train_count, val_count and boxes are positive."""
    if min(sizes) < 1:
        raise ValueError("classes, train_count, val_count and boxes must be 1 or more.")

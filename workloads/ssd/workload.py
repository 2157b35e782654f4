"""SSD-ResNet34 object detection as MLPerf v0.5 to v1.1 define it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import MISSING
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ...runner.hardware.host_copies import host_copies
from ...runner.training.workload import Batch
from ..common.detection import coco_evaluation
from ..common.detection.coco_evaluation import Detections
from ..common.nn.sgd import sgd
from . import backbone
from .data import SSDData
from .detection import DetectionBatch, detect
from .model import SSD


class SingleShotDetection:
    """Detects objects; the quality is COCO's average precision of boxes at IoU .50 to .95."""

    capturable = True

    @dataclass
    class Settings:
        """The network, and SGD with linear warmup followed by steps."""

        learning_rate: float = MISSING
        """Peak learning rate."""
        warmup_samples: int = MISSING
        """Samples over which the learning rate rises linearly."""
        warmup_factor: int = 0
        """Exponent of the learning rate at the start, 1 - 2**-`warmup_factor` of its peak."""
        lr_milestones: list[int] = field(default_factory=lambda: [40, 50])
        """Epochs after which the learning rate is divided by ten."""
        weight_decay: float = 5e-4
        """Weight decay of all parameters."""
        momentum: float = 0.9
        """Momentum of SGD."""
        width: int = 64
        """Channels of the first convolution, 8 or more."""
        backbone: str | None = None
        """File of torchvision's ResNet-34 weights, or checkpoint of a resnet50 run with basic blocks; null: train from
        scratch."""

        def __post_init__(self) -> None:
            if self.learning_rate <= 0 or not 0 <= self.momentum < 1 or self.weight_decay < 0:
                raise ValueError("learning_rate must be above 0, momentum in [0, 1), weight_decay 0 or more.")
            if self.warmup_samples < 0 or self.warmup_factor < 0:
                raise ValueError("warmup_samples and warmup_factor must be 0 or more.")
            # On CPUs without AVX-512, oneDNN 3.12 writes past the end of a buffer in the backward pass of 1x1
            # convolutions of stride 2, as those of the shortcuts, if they have fewer input channels than eight.
            if self.width < 8:
                raise ValueError("width must be 8 or more.")
            if sorted(self.lr_milestones) != list(self.lr_milestones) or min(self.lr_milestones, default=1) < 1:
                raise ValueError("lr_milestones must be ascending epochs, 1 or more.")

    def __init__(self, settings: Settings, data: SSDData) -> None:
        self.settings, self._data = settings, data
        coco_evaluation.import_evaluation()  # for which the first evaluation would wait on the clock

    def build_model(self) -> nn.Module:
        """Build the model and load its backbone if `backbone` is set."""
        model = SSD(self._data.num_classes + 1, self._data.image_size, self.settings.width)
        if self.settings.backbone is not None:
            backbone.load_backbone(model.backbone, Path(self.settings.backbone))
        return model

    def build_optimizer(self, model: nn.Module, steps_per_epoch: int) -> tuple[Optimizer, LRScheduler]:
        """Build SGD with weight decay of all parameters, including biases and batch norms."""
        settings = self.settings
        rate, momentum, decay = settings.learning_rate, settings.momentum, settings.weight_decay
        optimizer = sgd(model.parameters(), rate, momentum, weight_decay=decay)
        return optimizer, LambdaLR(optimizer, lambda step: self.lr_factor(step, steps_per_epoch))

    def lr_factor(self, step: int, steps_per_epoch: int) -> float:
        """Return the learning rate of update `step` (from 0) over the base rate (docs/mlperf_rules.md, "SSD")."""
        warmup = self._warmup_steps()
        if step < warmup:
            return 1 - (warmup - step) / (warmup * 2**self.settings.warmup_factor)
        return float(0.1 ** sum(step >= epoch * steps_per_epoch for epoch in self.settings.lr_milestones))

    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss summed over the images."""
        return model(*batch.inputs)

    def predict(self, model: nn.Module, batches: Iterable[Batch]) -> Detections:
        """Return the detections on this rank's images."""
        assert isinstance(model, SSD)
        inputs = (batch.inputs for batch in batches)
        outputs = ((detect(*model.predict(pixels), model.priors), indices) for pixels, indices in inputs)
        parts = [self._coco_detections(*output) for output in host_copies(outputs)]
        return coco_evaluation.concatenate([Detections.empty(masks=False), *parts])

    def score(self, parts: Sequence[Detections]) -> dict[str, float]:
        """Return the average precision of all ranks' detections."""
        detections = coco_evaluation.concatenate(parts)
        return {"map": coco_evaluation.average_precision(self._data.truth, detections, "bbox")["AP"]}

    def mlperf_params(self) -> dict[str, Any]:
        """Return the hyperparameters under the keys of ruleset 0.7.0."""
        settings = self.settings
        return {
            "opt_name": "sgd",
            "opt_base_learning_rate": settings.learning_rate,
            "opt_learning_rate_decay_boundary_epochs": list(settings.lr_milestones),
            "opt_learning_rate_warmup_factor": settings.warmup_factor,
            "opt_learning_rate_warmup_steps": self._warmup_steps(),
            "opt_weight_decay": settings.weight_decay,
            "max_samples": self._data.crop_attempts,
            "model_bn_span": self._data.images_per_statistic,
        }

    def _coco_detections(self, detections: DetectionBatch, indices: Tensor) -> Detections:
        """Convert a batch on the CPU to COCO ids and pixels; `indices` [N] are those of the images."""
        dataset, valid = self._data.val_set, detections.valid
        index: NDArray[np.int64] = indices[valid.nonzero()[:, 0]].numpy()
        image_size = np.stack([dataset.width[index], dataset.height[index]] * 2, 1)
        box = (detections.boxes[valid].numpy() * image_size).astype(np.float32)
        box[:, 2:] -= box[:, :2]
        category_id = dataset.category_id[detections.labels[valid].numpy() - 1]
        return Detections(dataset.image_id[index], category_id, box, detections.scores[valid].numpy())

    def _warmup_steps(self) -> int:
        return round(self.settings.warmup_samples / self._data.global_batch_size)

"""SSD-ResNet34 object detection as MLPerf v0.5 to v1.1 define it."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import MISSING
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ...runner.training.workload import Batch
from ..common.detection import coco_evaluation
from ..common.detection.coco_evaluation import Detections
from ..common.nn.sgd import sgd
from . import backbone
from .data import Photographs
from .detection import Chosen, detect
from .model import SSD

_WORTH_PROCESSES = 1000  # images: to score fewer takes less time than to start processes


class SingleShotDetection:
    """Finds objects; quality is COCO's average precision of boxes at overlaps from 0.5 to 0.95."""

    @dataclass
    class Settings:
        """The rate rises over `warmup_samples` from a share 1 - 2**-`warmup_factor` below it; it is a tenth after each
        of the `decay_epochs`. `backbone` is a file of torchvision's ResNet-34, null to start from nothing; `width` is
        that of the first convolution.
        """

        learning_rate: float = MISSING
        warmup_samples: int = MISSING
        warmup_factor: int = 0
        decay_epochs: list[int] = field(default_factory=lambda: [40, 50])
        weight_decay: float = 5e-4
        momentum: float = 0.9
        width: int = 64
        backbone: str | None = None

        def __post_init__(self) -> None:
            if self.learning_rate <= 0 or not 0 <= self.momentum < 1 or self.weight_decay < 0:
                raise ValueError("learning_rate must be above 0, momentum from 0 to below 1, weight_decay 0 or more.")
            if self.warmup_samples < 0 or self.warmup_factor < 0 or self.width < 1:
                raise ValueError("warmup_samples and warmup_factor must be 0 or more, width 1 or more.")
            if sorted(self.decay_epochs) != list(self.decay_epochs) or min(self.decay_epochs, default=1) < 1:
                raise ValueError("decay_epochs must be epochs from 1 on, the smaller number first.")

    def __init__(self, settings: Settings, data: Photographs) -> None:
        self.settings, self._data = settings, data
        self._pool: Executor | None = None

    def build_model(self) -> nn.Module:
        """The network, its trunk from the file where one is given."""
        found = SSD(self._data.num_classes + 1, self._data.image_size, self.settings.width)
        if self.settings.backbone is not None:
            backbone.load_trunk(found.trunk, Path(self.settings.backbone))
        return found

    def build_optimizer(self, model: nn.Module, steps_per_epoch: int) -> tuple[Optimizer, LRScheduler]:
        """SGD that decays everything, biases and batch norms too."""
        chosen = self.settings
        rate, momentum, decay = chosen.learning_rate, chosen.momentum, chosen.weight_decay
        optimizer = sgd(model.parameters(), rate, momentum, weight_decay=decay)
        return optimizer, LambdaLR(optimizer, lambda step: self.factor(step, steps_per_epoch))

    def factor(self, step: int, steps_per_epoch: int) -> float:
        """Of the base rate at update `step` (from 0): a linear warm-up, a tenth at each boundary (mlperf.md 12.2)."""
        warmup = self._warmup_steps()
        if step < warmup:
            return 1 - (warmup - step) / (warmup * 2**self.settings.warmup_factor)
        return float(0.1 ** sum(step >= epoch * steps_per_epoch for epoch in self.settings.decay_epochs))

    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The model's own, summed over images."""
        return model(*batch.inputs)

    def predict(self, model: nn.Module, batches: Iterable[Batch]) -> Detections:
        """What this rank finds on its images."""
        assert isinstance(model, SSD)
        nothing = np.zeros(0, np.int64)
        parts = [Detections(nothing, nothing, np.zeros((0, 4), np.float32), np.zeros(0, np.float32))]
        for batch in batches:
            pixels, numbers = batch.inputs
            chosen = Chosen(*(part.cpu() for part in detect(*model.predict(pixels), model.priors)))
            parts.append(self._detections(chosen, numbers.cpu().numpy()))
        return coco_evaluation.join(parts)

    def score(self, parts: Sequence[Detections]) -> dict[str, float]:
        """The average precision of all ranks' detections."""
        truth = self._data.truth
        if self._pool is None and len(truth) >= _WORTH_PROCESSES:
            self._pool = coco_evaluation.processes()
        return {
            "map": coco_evaluation.average_precision(truth, coco_evaluation.join(parts), "bbox", pool=self._pool)["AP"]
        }

    def mlperf_params(self) -> dict[str, Any]:
        """Hyperparameters under the names that ruleset 0.7.0 has."""
        chosen = self.settings
        return {
            "opt_name": "sgd",
            "opt_base_learning_rate": chosen.learning_rate,
            "opt_learning_rate_decay_boundary_epochs": list(chosen.decay_epochs),
            "opt_learning_rate_warmup_factor": chosen.warmup_factor,
            "opt_learning_rate_warmup_steps": self._warmup_steps(),
            "opt_weight_decay": chosen.weight_decay,
            "max_samples": self._data.crop_tries,
            "model_bn_span": self._data.images_per_statistic,
        }

    def _detections(self, chosen: Chosen, numbers: NDArray[np.int64]) -> Detections:
        """Of a batch on the CPU, the images' numbers being [N], in pixels."""
        coco, exists = self._data.val_set, chosen.exists
        number = numbers[exists.nonzero()[:, 0].numpy()]
        size = np.stack([coco.width[number], coco.height[number]] * 2, 1)
        box = (chosen.boxes[exists].numpy() * size).astype(np.float32)
        box[:, 2:] -= box[:, :2]
        category = coco.category_id[chosen.labels[exists].numpy() - 1]
        return Detections(coco.image_id[number], category, box, chosen.scores[exists].numpy())

    def _warmup_steps(self) -> int:
        return round(self.settings.warmup_samples / self._data.global_batch_size)

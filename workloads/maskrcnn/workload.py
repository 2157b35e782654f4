"""Mask R-CNN R50-FPN as MLPerf v0.5 to v1.1 define it: objects on photographs, with boxes and masks."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
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
from .model import Draws, MaskRCNN
from .pasting import paste_masks

_WORTH_PROCESSES = 1000  # images: to score fewer takes less time than to start processes
_PASTING = 2  # processes of a rank: each pastes some 10,000 masks a second, as many as 100 images can have
_DECAY = 0.1


class InstanceSegmentation:
    """Finds objects; quality is COCO's average precision of boxes and of masks, at overlaps from 0.5 to 0.95."""

    @dataclass
    class Settings:
        """The rate rises from `warmup_factor` of itself over `warmup_samples`, and falls to a tenth after each of the
        two `decay_samples`. `backbone` is a file of ResNet-50, "random" to measure speed without it, null to train all
        of it from nothing; `width`, `pyramid` and `hidden` are channels of the first convolution, of the pyramid, and
        of the box head.
        """

        learning_rate: float = MISSING
        warmup_samples: int = MISSING
        decay_samples: list[int] = MISSING
        warmup_factor: float = 1 / 3
        weight_decay: float = 1e-4
        momentum: float = 0.9
        width: int = 64
        pyramid: int = 256
        hidden: int = 1024
        draws: Draws = field(default_factory=Draws)
        backbone: str | None = None

        def __post_init__(self) -> None:
            if self.learning_rate <= 0 or not 0 <= self.momentum < 1 or self.weight_decay < 0:
                raise ValueError("learning_rate must be above 0, momentum from 0 to below 1, weight_decay 0 or more.")
            if self.warmup_samples < 0 or not 0 < self.warmup_factor <= 1:
                raise ValueError("warmup_samples must be 0 or more, warmup_factor above 0 and at most 1.")
            if len(self.decay_samples) != 2 or not 0 < self.decay_samples[0] < self.decay_samples[1]:
                raise ValueError("decay_samples must be two numbers above 0, the smaller first.")
            if min(self.width, self.pyramid, self.hidden) < 1:
                raise ValueError("width, pyramid and hidden must be 1 or more.")
            if self.pyramid & (self.pyramid - 1):
                raise ValueError("pyramid must be a power of two, as the kernels on a card take their channels.")

    def __init__(self, settings: Settings, data: Photographs) -> None:
        self.settings, self._data = settings, data
        self._scorers: Executor | None = None
        self._pasters: Executor | None = None

    def build_model(self) -> nn.Module:
        """The network, its trunk from the file where one is given."""
        chosen = self.settings
        found = MaskRCNN(
            self._data.num_classes + 1,
            chosen.draws,
            width=chosen.width,
            pyramid=chosen.pyramid,
            hidden=chosen.hidden,
            pretrained=chosen.backbone is not None,
        )
        if chosen.backbone is not None:
            backbone.load_trunk(found.backbone, chosen.backbone)
        return found

    def build_optimizer(self, model: nn.Module, steps_per_epoch: int) -> tuple[Optimizer, LRScheduler]:
        """SGD of what is not frozen; biases have twice the rate and do not decay (mlperf.md 12.3)."""
        chosen = self.settings
        rate, decay = chosen.learning_rate, chosen.weight_decay
        trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
        biases = [weight for name, weight in trained if name.endswith("bias")]
        others = [weight for name, weight in trained if not name.endswith("bias")]
        groups: list[dict[str, Any]] = [
            {"params": others, "weight_decay": decay},
            {"params": biases, "weight_decay": 0.0, "lr": 2 * rate},
        ]
        optimizer = sgd(groups, rate, chosen.momentum)
        return optimizer, LambdaLR(optimizer, self.factor)

    def factor(self, step: int) -> float:
        """Of the base rate at update `step` (from 0): a linear warm-up, and a tenth from each of two steps on."""
        warmup, first = self._steps(self.settings.warmup_samples), self.settings.warmup_factor
        rate = first + (1 - first) * step / warmup if step < warmup else 1.0
        return float(rate * _DECAY ** sum(step >= fall for fall in self._decay_steps()))

    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The model's own, times its images."""
        return model(*batch.inputs)

    def predict(self, model: nn.Module, batches: Iterable[Batch]) -> Detections:
        """What this rank finds on its images, in pixels of the originals."""
        assert isinstance(model, MaskRCNN)
        if self._pasters is None and len(self._data.truth) >= _WORTH_PROCESSES:
            self._pasters = coco_evaluation.processes(_PASTING)
        parts = []
        with ThreadPoolExecutor(1) as behind:  # masks are pasted while the device finds the next ones
            for batch in batches:
                pixels, sizes, numbers = batch.inputs
                chosen, masks = detect(model, pixels, sizes)
                found = Chosen(*(part.cpu() for part in chosen))
                parts.append(behind.submit(self._detections, found, masks.cpu(), sizes.cpu(), numbers.cpu()))
        nothing = np.zeros(0, np.int64)
        none = Detections(nothing, nothing, np.zeros((0, 4), np.float32), np.zeros(0, np.float32), [])
        return coco_evaluation.join([none, *(part.result() for part in parts)])

    def score(self, parts: Sequence[Detections]) -> dict[str, float]:
        """The average precision of all ranks' boxes and masks."""
        truth, found = self._data.truth, coco_evaluation.join(parts)
        if self._scorers is None and len(truth) >= _WORTH_PROCESSES:
            self._scorers = coco_evaluation.processes()
        return {
            "BBOX": coco_evaluation.average_precision(truth, found, "bbox", pool=self._scorers)["AP"],
            "SEGM": coco_evaluation.average_precision(truth, found, "segm", pool=self._scorers)["AP"],
        }

    def mlperf_params(self) -> dict[str, Any]:
        """Hyperparameters under the names that ruleset 0.7.0 has."""
        chosen = self.settings
        return {
            "opt_name": "sgd",
            "opt_base_learning_rate": chosen.learning_rate,
            "opt_learning_rate_warmup_steps": self._steps(chosen.warmup_samples),
            "opt_learning_rate_warmup_factor": chosen.warmup_factor,
            "opt_learning_rate_decay_factor": _DECAY,
            "opt_learning_rate_decay_steps": self._decay_steps(),
            "opt_weight_decay": chosen.weight_decay,
            "num_image_candidates": chosen.draws.proposals * self._data.images_per_statistic,
            "min_image_size": self._data.short_edge,
            "max_image_size": self._data.long_edge,
        }

    def _detections(self, chosen: Chosen, masks: Tensor, sizes: Tensor, numbers: Tensor) -> Detections:
        """Of a batch on the CPU, with its masks [N, D, 28, 28], the images' sizes as given and their numbers [N]."""
        coco, exists = self._data.val_set, chosen.exists
        row = exists.nonzero()[:, 0]
        number, given = numbers[row].numpy(), sizes[row].numpy()
        original = np.stack([coco.height[number], coco.width[number]], 1)
        shares = np.tile(original[:, ::-1] / given[:, ::-1], 2).astype(np.float32)
        corners = chosen.boxes[exists].numpy() * shares
        packed = paste_masks(masks[exists].numpy(), corners, original, self._pasters)
        extent = corners[:, 2:] - corners[:, :2] + 1  # widths are inclusive
        category = coco.category_id[chosen.labels[exists].numpy() - 1]
        box = np.concatenate([corners[:, :2], extent], 1)
        return Detections(coco.image_id[number], category, box, chosen.scores[exists].numpy(), packed)

    def _steps(self, samples: int) -> int:
        return round(samples / self._data.global_batch_size)

    def _decay_steps(self) -> list[int]:
        return [self._steps(samples) for samples in self.settings.decay_samples]

"""Mask R-CNN R50-FPN as MLPerf v0.5 to v1.1 define it: instance segmentation with boxes and masks."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from omegaconf import MISSING
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ...runner.hardware.host_copies import host_copies
from ...runner.training.workload import Batch
from ..common import schedule
from ..common.detection import coco_evaluation
from ..common.detection.coco_evaluation import Detections
from ..common.nn.sgd import sgd
from ..common.nn.triton_support import has_triton, triton_available
from . import backbone
from .data import MaskRCNNData
from .detection import DetectionBatch, detect
from .model import MaskRCNN, SamplingSettings
from .pasting import PastedMasks, paste_by_kernel, paste_masks

_LR_DECAY = 0.1
_BATCHES_AHEAD = 4  # of the conversion of masks, in an evaluation


class InstanceSegmentation:
    """Detects objects; the quality is COCO's average precision of boxes and of masks at IoU .50 to .95."""

    @dataclass
    class Settings:
        """The network, and SGD with linear warmup followed by two steps."""

        learning_rate: float = MISSING
        """Peak learning rate."""
        warmup_samples: int = MISSING
        """Samples over which the learning rate rises linearly."""
        lr_milestone_epochs: list[float] | None = None
        """The two numbers of epochs after which the learning rate is divided by ten."""
        lr_milestone_samples: list[int] | None = None
        """The same in samples; null: `lr_milestone_epochs`."""
        warmup_factor: float = 1 / 3
        """Learning rate at the start as a fraction of its peak."""
        weight_decay: float = 1e-4
        """Weight decay."""
        momentum: float = 0.9
        """Momentum of SGD."""
        width: int = 64
        """Channels of the first convolution, 2 or more."""
        fpn_channels: int = 256
        """Channels of the feature pyramid, a power of two."""
        representation_size: int = 1024
        """Channels of the hidden layers of the box head."""
        sampling: SamplingSettings = field(default_factory=SamplingSettings)
        """Numbers of anchors and proposals per image; the defaults are MLPerf's."""
        backbone: str | None = None
        """File of ResNet-50 weights or checkpoint of a resnet50 run; random: measure throughput without a file; null:
        train all layers from scratch."""

        def __post_init__(self) -> None:
            if self.learning_rate <= 0 or not 0 <= self.momentum < 1 or self.weight_decay < 0:
                raise ValueError("learning_rate must be above 0, momentum in [0, 1), weight_decay 0 or more.")
            if self.warmup_samples < 0 or not 0 < self.warmup_factor <= 1:
                raise ValueError("warmup_samples must be 0 or more, warmup_factor in (0, 1].")
            schedule.check(self, "lr_milestone")
            milestones = self.lr_milestone_samples or self.lr_milestone_epochs or []
            if len(milestones) != 2 or not 0 < milestones[0] < milestones[1]:
                raise ValueError("lr_milestone_epochs or lr_milestone_samples must be two ascending numbers above 0.")
            if min(self.fpn_channels, self.representation_size) < 1:
                raise ValueError("fpn_channels and representation_size must be 1 or more.")
            # Shortcuts of stride 2 have 4 * width input channels or more, and need eight (ssd/workload.py says why).
            if self.width < 2:
                raise ValueError("width must be 2 or more.")
            if self.fpn_channels & (self.fpn_channels - 1):
                raise ValueError("fpn_channels must be a power of two, as the GPU kernels require.")

    def __init__(self, settings: Settings, data: MaskRCNNData) -> None:
        self.settings, self._data = settings, data
        coco_evaluation.import_evaluation()  # for which the first evaluation would wait on the clock

    @property
    def capturable(self) -> bool:
        """Whether kernels replace the operations that wait for the device."""
        return has_triton()

    def build_model(self) -> nn.Module:
        """Build the model and load its backbone if `backbone` is set."""
        settings = self.settings
        model = MaskRCNN(
            self._data.num_classes + 1,
            settings.sampling,
            width=settings.width,
            fpn_channels=settings.fpn_channels,
            representation_size=settings.representation_size,
            pretrained=settings.backbone is not None,
        )
        if settings.backbone is not None:
            backbone.load_backbone(model.backbone, settings.backbone)
        return model

    def build_optimizer(self, model: nn.Module, steps_per_epoch: int) -> tuple[Optimizer, LRScheduler]:
        """Build SGD of the parameters that are not frozen; biases have twice the learning rate and no weight decay.

        Source: docs/mlperf_rules.md, "Mask R-CNN".
        """
        settings = self.settings
        trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
        biases = [weight for name, weight in trained if name.endswith("bias")]
        weights = [weight for name, weight in trained if not name.endswith("bias")]
        groups: list[dict[str, Any]] = [
            {"params": weights, "weight_decay": settings.weight_decay},
            {"params": biases, "weight_decay": 0.0, "lr": 2 * settings.learning_rate},
        ]
        optimizer = sgd(groups, settings.learning_rate, settings.momentum)
        return optimizer, LambdaLR(optimizer, self.lr_factor)

    def lr_factor(self, step: int) -> float:
        """Return the learning rate of update `step` (from 0) over the base rate: linear warmup, then two decays."""
        warmup, start = self._steps(self.settings.warmup_samples), self.settings.warmup_factor
        factor = start + (1 - start) * step / warmup if step < warmup else 1.0
        return float(factor * _LR_DECAY ** sum(step >= milestone for milestone in self._milestone_steps()))

    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss summed over the images."""
        return model(*batch.inputs)

    def predict(self, model: nn.Module, batches: Iterable[Batch]) -> Detections:
        """Return the detections on this rank's images, in pixels of the original images."""
        assert isinstance(model, MaskRCNN)
        dataset = self._data.val_set
        sizes = torch.from_numpy(np.stack([dataset.height, dataset.width], 1).astype(np.int64))
        sizes = sizes.to(next(model.parameters()).device)
        with ThreadPoolExecutor(1) as executor:  # masks are converted while the device computes the next batches
            outputs = host_copies(self._detect(model, sizes, *batch.inputs) for batch in batches)
            parts: list[Future[Detections]] = []
            for output in outputs:
                parts.append(executor.submit(self._coco_detections, *output))
                wait(parts[:-_BATCHES_AHEAD][-1:])  # what waits to be converted takes memory
        return coco_evaluation.concatenate([Detections.empty(masks=True), *(part.result() for part in parts)])

    def score(self, parts: Sequence[Detections]) -> dict[str, float]:
        """Return the average precision of all ranks' boxes and masks."""
        truth, detections = self._data.truth, coco_evaluation.concatenate(parts)
        return {
            "BBOX": coco_evaluation.average_precision(truth, detections, "bbox")["AP"],
            "SEGM": coco_evaluation.average_precision(truth, detections, "segm")["AP"],
        }

    def mlperf_params(self) -> dict[str, Any]:
        """Return the hyperparameters under the keys of ruleset 0.7.0."""
        settings = self.settings
        return {
            "opt_name": "sgd",
            "opt_base_learning_rate": settings.learning_rate,
            "opt_learning_rate_warmup_steps": self._steps(settings.warmup_samples),
            "opt_learning_rate_warmup_factor": settings.warmup_factor,
            "opt_learning_rate_decay_factor": _LR_DECAY,
            "opt_learning_rate_decay_steps": self._milestone_steps(),
            "opt_weight_decay": settings.weight_decay,
            "num_image_candidates": settings.sampling.proposals * self._data.images_per_statistic,
            "min_image_size": self._data.short_edge,
            "max_image_size": self._data.long_edge,
        }

    @staticmethod
    def _detect(
        model: MaskRCNN, original_sizes: Tensor, pixels: Tensor, image_sizes: Tensor, indices: Tensor
    ) -> tuple[Any, ...]:
        """Return detections in pixels of the original images, their masks, and the images' indices and original sizes.

        `original_sizes` [images, 2] (height, width) are those of all images, `image_sizes` [N, 2] those of the resized
        ones, `indices` [N] those of the images.
        """
        detections, probabilities = detect(model, pixels, image_sizes)
        original = original_sizes[indices]
        scale = (original / image_sizes).flip(1).repeat(1, 2)
        boxes = detections.boxes * scale[:, None]
        masks: Tensor | PastedMasks = probabilities.flatten(0, 1)
        if triton_available(probabilities):
            sizes = original.repeat_interleave(boxes.shape[1], 0)
            masks = paste_by_kernel(probabilities.flatten(0, 1), boxes.flatten(0, 1), sizes, detections.valid.flatten())
        return detections._replace(boxes=boxes), masks, indices, original

    def _coco_detections(
        self, detections: DetectionBatch, masks: Tensor | PastedMasks, indices: Tensor, original_sizes: Tensor
    ) -> Detections:
        """Convert the result of `_detect` on the CPU to COCO ids and masks."""
        dataset, valid = self._data.val_set, detections.valid
        row = valid.nonzero()[:, 0]
        rows, index, sizes = valid.flatten().nonzero()[:, 0].numpy(), indices[row].numpy(), original_sizes[row].numpy()
        corners = detections.boxes[valid].numpy()
        if isinstance(masks, PastedMasks):
            rle_masks = masks.rles(rows, sizes)
        else:
            rle_masks = paste_masks(masks[rows], corners, sizes)
        size = corners[:, 2:] - corners[:, :2] + 1  # right and bottom are inclusive
        category_id = dataset.category_id[detections.labels[valid].numpy() - 1]
        box = np.concatenate([corners[:, :2], size], 1)
        return Detections(dataset.image_id[index], category_id, box, detections.scores[valid].numpy(), rle_masks)

    def _steps(self, samples: int) -> int:
        return round(samples / self._data.global_batch_size)

    def _milestone_steps(self) -> list[int]:
        steps: list[int] = schedule.updates(self.settings, "lr_milestone", self._data)
        return steps

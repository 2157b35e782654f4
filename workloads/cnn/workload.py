"""Image classification on ImageNet by a network from the literature; not an MLPerf benchmark."""

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ..common.imagenet.data import ImageNetData
from ..common.nn.sgd import linear_warmup_decay, sgd
from ..common.vision.classification import Classification
from . import networks


class Cnn(Classification):
    """Classifies images; the quality is the top-1 accuracy on the validation images."""

    @dataclass
    class Settings:
        """The network, and SGD with linear warmup and linear decay to zero."""

        network: str = MISSING
        """nasnet_mobile, or a model name of timm."""
        learning_rate: float = MISSING
        """Peak learning rate."""
        momentum: float = 0.9
        """Momentum of SGD."""
        weight_decay: float = MISSING
        """Weight decay."""
        label_smoothing: float = 0.1
        """Label smoothing of the cross-entropy loss."""
        warmup_epochs: float = MISSING
        """Epochs over which the learning rate rises linearly from zero."""
        end_epoch: float = MISSING
        """Epoch at which the learning rate reaches zero."""

        def __post_init__(self) -> None:
            if self.learning_rate <= 0 or not 0 <= self.momentum < 1 or not 0 <= self.label_smoothing < 1:
                raise ValueError("learning_rate must be above 0, momentum and label_smoothing in [0, 1).")
            if not 0 <= self.warmup_epochs < self.end_epoch:
                raise ValueError("warmup_epochs must be 0 or more and below end_epoch.")

    def __init__(self, settings: Settings, data: ImageNetData) -> None:
        self.settings, self._data = settings, data

    def build_model(self) -> nn.Module:
        """Build the newly initialized network."""
        return networks.build(self.settings.network, self._data.num_classes, self._data.image_size)

    def build_optimizer(self, model: nn.Module, steps_per_epoch: int) -> tuple[Optimizer, LRScheduler]:
        """Build SGD with momentum and weight decay of all parameters."""
        settings = self.settings
        optimizer = sgd(
            model.parameters(), settings.learning_rate, settings.momentum, weight_decay=settings.weight_decay
        )
        warmup, end = settings.warmup_epochs, settings.end_epoch
        return optimizer, LambdaLR(optimizer, lambda step: linear_warmup_decay(step / steps_per_epoch, warmup, end))

    def mlperf_params(self) -> dict[str, Any]:
        """Return the network and the hyperparameters of SGD."""
        settings = self.settings
        return {
            "timetrial_network": settings.network,
            "opt_name": "sgd",
            "opt_base_learning_rate": settings.learning_rate,
            "opt_learning_rate_warmup_epochs": settings.warmup_epochs,
            "opt_learning_rate_decay_boundary_epochs": [settings.end_epoch],
            "opt_weight_decay": settings.weight_decay,
            "opt_momentum": settings.momentum,
        }

"""CIFAR-10 image classification, as card comparisons run it: no MLPerf benchmark, but the same loop, log and report."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ..common.nn.sgd import linear_warmup_decay, sgd
from ..common.vision.classification import Classification
from .data import CIFAR10Data
from .networks import NETWORKS


class Cifar10(Classification):
    """Classifies images of ten kinds; quality is the share of test images whose first guess is right."""

    @dataclass
    class Settings:
        """The rate is proportional to the global batch, `learning_rate` at 128.

        It rises linearly over `warmup_epochs`; then it is divided by ten at each of `drops`, or, where there is none,
        falls linearly to zero at `end_epoch`.
        """

        network: str = MISSING
        width: int | None = None
        learning_rate: float = MISSING
        momentum: float = 0.9
        nesterov: bool = False
        weight_decay: float = MISSING
        label_smoothing: float = 0.0
        warmup_epochs: float = 0.0
        drops: list[int] = field(default_factory=list)
        end_epoch: int | None = None

        def __post_init__(self) -> None:
            if self.network not in NETWORKS:
                raise ValueError(f"network must be one of {', '.join(NETWORKS)}, not {self.network}.")
            if bool(self.drops) == (self.end_epoch is not None):
                raise ValueError("name either drops or end_epoch: the learning rate falls by steps or to an end.")
            if self.learning_rate <= 0 or not 0 <= self.momentum < 1 or not 0 <= self.label_smoothing < 1:
                raise ValueError("learning_rate must be above 0, momentum and label_smoothing from 0 to below 1.")
            if self.warmup_epochs < 0 or (self.end_epoch is not None and self.end_epoch <= self.warmup_epochs):
                raise ValueError("warmup_epochs must be 0 or more and below end_epoch.")
            if self.width is not None and self.width < 1:
                raise ValueError("width must be 1 or more, or null for the published one.")

    def __init__(self, settings: Settings, data: CIFAR10Data) -> None:
        self.settings, self._data = settings, data
        self._peak = settings.learning_rate * data.global_batch_size / 128

    def build_model(self) -> nn.Module:
        """The network of the settings, at its published width or another."""
        chosen = self.settings
        build = NETWORKS[chosen.network]
        return build(self._data.num_classes) if chosen.width is None else build(self._data.num_classes, chosen.width)

    def build_optimizer(self, model: nn.Module, steps_per_epoch: int) -> tuple[Optimizer, LRScheduler]:
        """SGD with momentum, all weights decayed."""
        chosen = self.settings
        momentum, decay, nesterov = chosen.momentum, chosen.weight_decay, chosen.nesterov
        optimizer = sgd(model.parameters(), self._peak, momentum, weight_decay=decay, nesterov=nesterov)
        return optimizer, LambdaLR(optimizer, lambda step: self.factor(step / steps_per_epoch))

    def factor(self, epochs: float) -> float:
        """The share of the full learning rate after `epochs` epochs."""
        chosen = self.settings
        if chosen.end_epoch is not None:
            return linear_warmup_decay(epochs, chosen.warmup_epochs, chosen.end_epoch)
        if epochs < chosen.warmup_epochs:
            return epochs / chosen.warmup_epochs
        return 0.1 ** sum(epochs >= drop for drop in chosen.drops)

    def mlperf_params(self) -> dict[str, Any]:
        """The network and SGD's hyperparameters."""
        chosen = self.settings
        return {
            "timetrial_network": chosen.network,
            "opt_name": "sgd",
            "opt_base_learning_rate": self._peak,
            "opt_learning_rate_warmup_epochs": chosen.warmup_epochs,
            "opt_learning_rate_decay_boundary_epochs": list(chosen.drops) or [chosen.end_epoch],
            "opt_weight_decay": chosen.weight_decay,
            "opt_momentum": chosen.momentum,
        }

"""ResNet-50 v1.5 image classification as MLPerf defines it (v0.5 to v4.0)."""

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ..common.imagenet.data import ImageNetData
from ..common.nn.sgd import sgd
from ..common.vision.classification import Classification
from . import model
from .lars import LARS


class ResNet50(Classification):
    """Classifies images; quality is the share of validation images whose first guess is right."""

    @dataclass
    class Settings:
        """`optimizer` is sgd or lars; the rate rises linearly over `warmup_epochs` and falls by a square to the end.

        With `block` basic the stages of ResNet-50 make ResNet-34, a backbone for SSD.
        """

        stages: list[int] = MISSING
        block: str = "bottleneck"
        optimizer: str = MISSING
        learning_rate: float = MISSING
        end_learning_rate: float = 1e-4
        decay_power: float = 2.0
        warmup_epochs: int = MISSING
        decay_epochs: int = MISSING
        weight_decay: float = MISSING
        momentum: float = 0.9
        label_smoothing: float = 0.1
        zero_last_gamma: bool = False

        def __post_init__(self) -> None:
            if self.optimizer not in ("sgd", "lars"):
                raise ValueError(f"optimizer must be sgd or lars, not {self.optimizer}.")
            if self.block not in model.BLOCKS:
                raise ValueError(f"block must be {' or '.join(model.BLOCKS)}, not {self.block}.")
            if len(self.stages) != 4 or min(self.stages) < 1:
                raise ValueError(f"stages={list(self.stages)}: four numbers of blocks, each 1 or more.")
            if self.learning_rate <= 0 or not 0 <= self.momentum < 1 or not 0 <= self.label_smoothing < 1:
                raise ValueError("learning_rate must be above 0, momentum and label_smoothing from 0 to below 1.")
            if self.warmup_epochs < 0 or self.decay_epochs <= self.warmup_epochs:
                raise ValueError("decay_epochs must be above warmup_epochs, and that 0 or more.")

    def __init__(self, settings: Settings, data: ImageNetData) -> None:
        self.settings, self._data = settings, data

    def build_model(self) -> nn.Module:
        """The network, newly initialised."""
        chosen = self.settings
        return model.build(
            chosen.stages, self._data.num_classes, block=chosen.block, zero_last_gamma=chosen.zero_last_gamma
        )

    def build_optimizer(self, model: nn.Module, steps_per_epoch: int) -> tuple[Optimizer, LRScheduler]:
        """SGD decays all but batch norms; LARS neither scales nor decays vectors (mlperf.md 12.1)."""
        chosen = self.settings
        apart = {
            id(weight)
            for module in model.modules()
            for weight in module.parameters(recurse=False)
            if isinstance(module, nn.BatchNorm2d) or (chosen.optimizer == "lars" and weight.ndim == 1)
        }
        usual = [weight for weight in model.parameters() if id(weight) not in apart]
        rest = [weight for weight in model.parameters() if id(weight) in apart]
        optimizer: Optimizer
        if chosen.optimizer == "lars":
            groups: list[dict[str, Any]] = [{"params": usual}, {"params": rest, "adapt": False}]
            optimizer = LARS(groups, chosen.learning_rate, chosen.momentum, chosen.weight_decay)
        else:
            groups = [{"params": usual}, {"params": rest, "weight_decay": 0.0}]
            optimizer = sgd(groups, chosen.learning_rate, chosen.momentum, weight_decay=chosen.weight_decay)
        return optimizer, LambdaLR(optimizer, lambda step: self.rate(step, steps_per_epoch) / chosen.learning_rate)

    def rate(self, step: int, steps_per_epoch: int) -> float:
        """The learning rate of update `step` (from 0): linear warm-up, then polynomial decay (MLPerf's rules table)."""
        chosen = self.settings
        warmup = chosen.warmup_epochs * steps_per_epoch
        if step < warmup:
            return chosen.learning_rate * step / warmup
        left = 1 - min(1.0, (step - warmup) / self._decay_steps(steps_per_epoch))
        return (chosen.learning_rate - chosen.end_learning_rate) * left**chosen.decay_power + chosen.end_learning_rate

    def mlperf_params(self) -> dict[str, Any]:
        """Hyperparameters under the names that ruleset 0.7.0 has for the optimizer."""
        chosen = self.settings
        steps = self._data.steps_per_epoch
        prefix = "lars_opt" if chosen.optimizer == "lars" else "sgd_opt"
        facts: dict[str, Any] = {
            "opt_name": chosen.optimizer,
            f"{prefix}_base_learning_rate": chosen.learning_rate,
            f"{prefix}_end_learning_rate": chosen.end_learning_rate,
            f"{prefix}_learning_rate_decay_poly_power": chosen.decay_power,
            f"{prefix}_learning_rate_decay_steps": self._decay_steps(steps),
            f"{prefix}_weight_decay": chosen.weight_decay,
            f"{prefix}_momentum": chosen.momentum,
            "model_bn_span": self._data.images_per_statistic,
        }
        if chosen.optimizer == "lars":
            return facts | {"lars_epsilon": 0.0, "lars_opt_learning_rate_warmup_epochs": chosen.warmup_epochs}
        return facts | {"opt_learning_rate_warmup_epochs": chosen.warmup_epochs}

    def _decay_steps(self, steps_per_epoch: int) -> int:
        return (self.settings.decay_epochs - self.settings.warmup_epochs) * steps_per_epoch + 1

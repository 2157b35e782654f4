"""ResNet-50 v1.5 image classification as MLPerf v0.5 to v4.0 define it."""

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
    """Classifies images; the quality is the top-1 accuracy on the validation images."""

    @dataclass
    class Settings:
        """The network, and SGD or LARS with linear warmup and polynomial decay."""

        stages: list[int] = MISSING
        """Numbers of blocks of the four stages."""
        block: str = "bottleneck"
        """Residual block: bottleneck or basic; the stages of ResNet-50 with basic blocks make ResNet-34."""
        optimizer: str = MISSING
        """sgd or lars."""
        learning_rate: float = MISSING
        """Peak learning rate."""
        end_learning_rate: float = 1e-4
        """Learning rate at `end_epoch`."""
        decay_power: float = 2.0
        """Power of the polynomial decay."""
        warmup_epochs: int = MISSING
        """Epochs over which the learning rate rises linearly from zero."""
        end_epoch: int = MISSING
        """Epochs from the start of training, warmup included, to the end of the decay of the learning rate."""
        weight_decay: float = MISSING
        """Weight decay of all parameters but those of batch norm."""
        momentum: float = 0.9
        """Momentum of the optimizer."""
        label_smoothing: float = 0.1
        """Label smoothing of the cross-entropy loss."""
        zero_last_gamma: bool = False
        """Initialize the weight of the last batch norm of each block to zero."""

        def __post_init__(self) -> None:
            if self.optimizer not in ("sgd", "lars"):
                raise ValueError(f"optimizer must be sgd or lars, not {self.optimizer}.")
            if self.block not in model.BLOCKS:
                raise ValueError(f"block must be {' or '.join(model.BLOCKS)}, not {self.block}.")
            if len(self.stages) != 4 or min(self.stages) < 1:
                raise ValueError(f"stages must be four numbers of blocks, each 1 or more, not {list(self.stages)}.")
            if self.learning_rate <= 0 or not 0 <= self.momentum < 1 or not 0 <= self.label_smoothing < 1:
                raise ValueError("learning_rate must be above 0, momentum and label_smoothing in [0, 1).")
            if self.warmup_epochs < 0 or self.end_epoch <= self.warmup_epochs:
                raise ValueError("warmup_epochs must be 0 or more and below end_epoch.")

    def __init__(self, settings: Settings, data: ImageNetData) -> None:
        self.settings, self._data = settings, data

    def build_model(self) -> nn.Module:
        """Build the newly initialized network."""
        settings = self.settings
        return model.build_resnet(
            settings.stages, self._data.num_classes, block=settings.block, zero_last_gamma=settings.zero_last_gamma
        )

    def build_optimizer(self, model: nn.Module, steps_per_epoch: int) -> tuple[Optimizer, LRScheduler]:
        """Build SGD with weight decay of all but batch norms, or LARS, which neither scales nor decays vectors.

        Source: docs/mlperf_rules.md, "ResNet-50".
        """
        settings = self.settings
        undecayed_ids = {
            id(weight)
            for module in model.modules()
            for weight in module.parameters(recurse=False)
            if isinstance(module, nn.BatchNorm2d) or (settings.optimizer == "lars" and weight.ndim == 1)
        }
        decayed = [weight for weight in model.parameters() if id(weight) not in undecayed_ids]
        undecayed = [weight for weight in model.parameters() if id(weight) in undecayed_ids]
        optimizer: Optimizer
        if settings.optimizer == "lars":
            groups: list[dict[str, Any]] = [{"params": decayed}, {"params": undecayed, "adapt": False}]
            optimizer = LARS(groups, settings.learning_rate, settings.momentum, settings.weight_decay)
        else:
            groups = [{"params": decayed}, {"params": undecayed, "weight_decay": 0.0}]
            optimizer = sgd(groups, settings.learning_rate, settings.momentum, weight_decay=settings.weight_decay)
        return optimizer, LambdaLR(
            optimizer, lambda step: self.learning_rate(step, steps_per_epoch) / settings.learning_rate
        )

    def learning_rate(self, step: int, steps_per_epoch: int) -> float:
        """Return the learning rate of update `step` (from 0): linear warmup, then polynomial decay (MLPerf's rules)."""
        settings = self.settings
        warmup_steps = settings.warmup_epochs * steps_per_epoch
        if step < warmup_steps:
            return settings.learning_rate * step / warmup_steps
        remaining = 1 - min(1.0, (step - warmup_steps) / self._decay_steps(steps_per_epoch))
        span = settings.learning_rate - settings.end_learning_rate
        return span * remaining**settings.decay_power + settings.end_learning_rate

    def mlperf_params(self) -> dict[str, Any]:
        """Return the hyperparameters under the keys that ruleset 0.7.0 has for the optimizer."""
        settings = self.settings
        prefix = "lars_opt" if settings.optimizer == "lars" else "sgd_opt"
        params: dict[str, Any] = {
            "opt_name": settings.optimizer,
            f"{prefix}_base_learning_rate": settings.learning_rate,
            f"{prefix}_end_learning_rate": settings.end_learning_rate,
            f"{prefix}_learning_rate_decay_poly_power": settings.decay_power,
            f"{prefix}_learning_rate_decay_steps": self._decay_steps(self._data.steps_per_epoch),
            f"{prefix}_weight_decay": settings.weight_decay,
            f"{prefix}_momentum": settings.momentum,
            "model_bn_span": self._data.images_per_statistic,
        }
        if settings.optimizer == "lars":
            return params | {"lars_epsilon": 0.0, "lars_opt_learning_rate_warmup_epochs": settings.warmup_epochs}
        return params | {"opt_learning_rate_warmup_epochs": settings.warmup_epochs}

    def _decay_steps(self, steps_per_epoch: int) -> int:
        return (self.settings.end_epoch - self.settings.warmup_epochs) * steps_per_epoch + 1

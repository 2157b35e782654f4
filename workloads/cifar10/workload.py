"""CIFAR-10 image classification, as hardware comparisons use it; not an MLPerf benchmark."""

from dataclasses import dataclass, field
from typing import Any

import torch
from omegaconf import MISSING
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ..common.nn.sgd import linear_warmup_decay, sgd
from ..common.vision.classification import Classification
from .data import CIFAR10Data, reflected_range
from .muon import Muon
from .networks import NETWORKS, Whitening

_REFERENCE_BATCH_SIZE = 128
# Weights of the views (Jordan 2024): of the image, of those that are shifted, and of the mirror images of these.
_VIEWS = {1: (1.0,), 2: (0.5, 0.5), 6: (0.25, 0.125, 0.125) * 2}


class Cifar10(Classification):
    """Classifies images; the quality is the top-1 accuracy on the test images."""

    @dataclass
    class Settings:
        """The network, and SGD or Muon with linear warmup followed by steps or by linear decay."""

        network: str = MISSING
        """Network: airbench, cnn10, resnet9 or wrn28_10."""
        width: int | None = None
        """Base width in channels; null: the published width."""
        learning_rate: float = MISSING
        """Peak learning rate at a global batch size of 128; it is scaled with the global batch size."""
        momentum: float = 0.9
        """Momentum of SGD."""
        nesterov: bool = False
        """Whether the momentum is Nesterov's."""
        weight_decay: float = MISSING
        """Weight decay of all parameters; with Muon, of all but the filters."""
        filter_learning_rate: float | None = None
        """Peak learning rate of filters that Muon updates, at any batch size; null: SGD for all."""
        filter_momentum: float = 0.6
        """Momentum of Muon."""
        eval_views: int = 1
        """Test-time augmentation: views of an image whose logits are averaged in the evaluation. 1: none; 2: with its
        mirror image; 6: also both shifted diagonally by a pixel to either side."""
        label_smoothing: float = 0.0
        """Label smoothing of the cross-entropy loss."""
        warmup_epochs: float = 0.0
        """Epochs over which the learning rate rises linearly from zero."""
        lr_milestones: list[int] = field(default_factory=list)
        """Epochs at which the learning rate is divided by ten; empty: linear decay until `end_epoch`."""
        end_epoch: int | None = None
        """Epoch at which the learning rate reaches zero; null: `lr_milestones` apply."""

        def __post_init__(self) -> None:
            if self.network not in NETWORKS:
                raise ValueError(f"network must be one of {', '.join(NETWORKS)}, not {self.network}.")
            if bool(self.lr_milestones) == (self.end_epoch is not None):
                raise ValueError("set either lr_milestones, for a step schedule, or end_epoch, for a linear one.")
            if self.learning_rate <= 0 or not 0 <= self.momentum < 1 or not 0 <= self.label_smoothing < 1:
                raise ValueError("learning_rate must be above 0, momentum and label_smoothing in [0, 1).")
            if self.warmup_epochs < 0 or (self.end_epoch is not None and self.end_epoch <= self.warmup_epochs):
                raise ValueError("warmup_epochs must be 0 or more and below end_epoch.")
            if self.filter_learning_rate is not None and not (self.filter_learning_rate > 0 and self.nesterov):
                raise ValueError("filter_learning_rate must be above 0, and needs nesterov=true.")
            if not 0 <= self.filter_momentum < 1 or self.eval_views not in _VIEWS:
                raise ValueError("filter_momentum must be in [0, 1), eval_views 1, 2 or 6.")
            if self.width is not None and self.width < 1:
                raise ValueError("width must be 1 or more, or null for the published width.")

    def __init__(self, settings: Settings, data: CIFAR10Data) -> None:
        self.settings, self._data = settings, data
        self._base_learning_rate = settings.learning_rate * data.global_batch_size / _REFERENCE_BATCH_SIZE

    def build_model(self) -> nn.Module:
        """Build the newly initialized network; whitening filters follow when the clock runs and the data are open."""
        settings = self.settings
        build = NETWORKS[settings.network]
        classes = self._data.num_classes
        network = build(classes) if settings.width is None else build(classes, settings.width)
        for module in network.modules():
            if isinstance(module, Whitening):
                self._data.fit = module.fit
        return network

    def build_optimizer(self, model: nn.Module, steps_per_epoch: int) -> tuple[Optimizer, LRScheduler]:
        """Build SGD with momentum and weight decay, or Muon for the filters beside it."""
        settings = self.settings
        params = [param for param in model.parameters() if param.requires_grad]
        others = {"lr": self._base_learning_rate, "momentum": settings.momentum, "weight_decay": settings.weight_decay}
        optimizer: Optimizer
        if settings.filter_learning_rate is None:
            optimizer = sgd(params, nesterov=settings.nesterov, **others)
        else:
            filters = {"lr": settings.filter_learning_rate, "momentum": settings.filter_momentum, "orthogonal": True}
            optimizer = Muon(
                [
                    {"params": [param for param in params if param.dim() == 4], **filters},
                    {"params": [param for param in params if param.dim() != 4], **others},
                ]
            )
        return optimizer, LambdaLR(optimizer, lambda step: self.lr_factor(step / steps_per_epoch))

    def classify(self, model: nn.Module, pixels: Tensor) -> Tensor:
        """Return the logits [N, classes] of images, averaged over `eval_views` views."""
        views = self.settings.eval_views
        if views == 1:
            return super().classify(model, pixels)
        shifted = [pixels]
        for offset in (-1, 1) if views > 2 else ():
            places = reflected_range(offset, pixels.shape[-1] + offset).to(pixels.device)
            shifted.append(pixels[:, :, places][:, :, :, places])
        every = torch.cat([*shifted, *(view.flip(-1) for view in shifted)])
        weights = torch.tensor(_VIEWS[views], device=pixels.device).view(-1, 1, 1)
        logits: Tensor = model(every.contiguous(memory_format=torch.channels_last))
        return (logits.view(views, len(pixels), -1) * weights).sum(0)

    def lr_factor(self, epochs: float) -> float:
        """Return the learning rate after `epochs` epochs over the base rate."""
        settings = self.settings
        if settings.end_epoch is not None:
            return linear_warmup_decay(epochs, settings.warmup_epochs, settings.end_epoch)
        if epochs < settings.warmup_epochs:
            return epochs / settings.warmup_epochs
        return 0.1 ** sum(epochs >= milestone for milestone in settings.lr_milestones)

    def mlperf_params(self) -> dict[str, Any]:
        """Return the network, the hyperparameters of SGD and, if it trains the filters, of Muon."""
        settings = self.settings
        muon = {}
        if settings.filter_learning_rate is not None:
            muon = {
                "timetrial_filter_learning_rate": settings.filter_learning_rate,
                "timetrial_filter_momentum": settings.filter_momentum,
            }
        views = {"timetrial_eval_views": settings.eval_views} if settings.eval_views > 1 else {}
        return {
            "timetrial_network": settings.network,
            **views,
            "opt_name": "muon" if muon else "sgd",
            **muon,
            "opt_base_learning_rate": self._base_learning_rate,
            "opt_learning_rate_warmup_epochs": settings.warmup_epochs,
            "opt_learning_rate_decay_boundary_epochs": list(settings.lr_milestones) or [settings.end_epoch],
            "opt_weight_decay": settings.weight_decay,
            "opt_momentum": settings.momentum,
        }

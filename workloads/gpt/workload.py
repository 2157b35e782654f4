"""GPT: a language model, judged by its loss on validation text."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import MISSING
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ...runner.training.workload import Batch, TextPredictions
from ..common import schedule
from .data import GPTData
from .model import GPT


class GPTWorkload:
    """Predict the next token; quality is the mean loss of the validation text in nats a token: lower is better."""

    capturable = True

    @dataclass
    class Settings:
        """Sizes of the model, and hyperparameters of AdamW.

        The learning rate rises linearly over the warm-up and falls to `min_learning_rate` along half a cosine.
        """

        hidden_size: int = MISSING
        """Width of embeddings and layers; a multiple of `num_heads`."""
        num_heads: int = MISSING
        """Attention heads."""
        num_layers: int = MISSING
        """Layers."""
        bias: bool = True
        """Whether linear layers and layer norms have a bias, as in GPT-2."""
        dropout: float = 0.0
        """Dropout probability of embeddings, sublayers and attention weights."""
        learning_rate: float = MISSING
        """Learning rate at the end of the warm-up."""
        min_learning_rate: float = MISSING
        """Learning rate after the decay."""
        warmup_samples: int = MISSING
        """Windows over which the learning rate rises."""
        decay_epochs: float | None = None
        """Epochs after which the learning rate has fallen, the warm-up included."""
        decay_samples: int | None = None
        """The same in windows; null: `decay_epochs`."""
        beta_1: float = 0.9
        """AdamW's decay rate of the first moment."""
        beta_2: float = 0.95
        """AdamW's decay rate of the second moment."""
        epsilon: float = 1e-8
        """AdamW's epsilon."""
        weight_decay: float = 0.1
        """Decay of matrices and embeddings; biases and norms do not decay."""

        def __post_init__(self) -> None:
            if min(self.hidden_size, self.num_heads, self.num_layers) < 1 or self.hidden_size % self.num_heads:
                raise ValueError(
                    f"hidden_size={self.hidden_size}, num_heads={self.num_heads} and num_layers={self.num_layers} must "
                    "be 1 or more, hidden_size a multiple of num_heads."
                )
            if not 0 <= self.min_learning_rate <= self.learning_rate or not self.learning_rate or self.epsilon <= 0:
                raise ValueError(
                    "learning_rate and epsilon must be above 0, min_learning_rate from 0 to learning_rate."
                )
            schedule.check(self, "decay")
            if not 0 <= self.warmup_samples < (self.decay_samples or math.inf):
                raise ValueError("warmup_samples must be from 0 to below decay_samples.")
            if not all(0 <= fraction < 1 for fraction in (self.beta_1, self.beta_2, self.dropout)):
                raise ValueError("beta_1, beta_2 and dropout must be from 0 to below 1.")
            if self.weight_decay < 0:
                raise ValueError("weight_decay must be 0 or more.")

    def __init__(self, settings: Settings, data: GPTData) -> None:
        self.settings, self.data = settings, data

    def build_model(self) -> nn.Module:
        """Build GPT for the data's vocabulary and windows."""
        settings = self.settings
        return GPT(
            self.data.padded_vocab_size,
            self.data.context,
            settings.hidden_size,
            settings.num_heads,
            settings.num_layers,
            dropout=settings.dropout,
            bias=settings.bias,
        )

    def build_optimizer(self, model: nn.Module, steps_per_epoch: int) -> tuple[Optimizer, LRScheduler]:
        """Build AdamW, which decays matrices and embeddings only."""
        settings = self.settings
        parameters = list(model.parameters())
        groups: list[dict[str, Any]] = [
            {"params": [parameter for parameter in parameters if parameter.ndim > 1]},
            {"params": [parameter for parameter in parameters if parameter.ndim == 1], "weight_decay": 0.0},
        ]
        betas = (settings.beta_1, settings.beta_2)
        optimizer = AdamW(groups, settings.learning_rate, betas, settings.epsilon, settings.weight_decay, fused=True)
        return optimizer, LambdaLR(optimizer, self.lr_factor)

    def lr_factor(self, step: int) -> float:
        """Return the learning rate factor of the 0-based update `step` (Loshchilov and Hutter 2017, equation 5).

        The first update has 1 / (w + 1) of the learning rate, where w is the number of warm-up updates.
        """
        warmup_steps, decay_steps = self._schedule_steps()
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        lowest = self.settings.min_learning_rate / self.settings.learning_rate
        progress = min(1.0, (step - warmup_steps) / max(1, decay_steps - warmup_steps))
        return lowest + (1 - lowest) * 0.5 * (1 + math.cos(math.pi * progress))

    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the summed loss, which the model computes itself."""
        loss: Tensor = model(batch.inputs)
        return loss

    def predict(self, model: nn.Module, batches: Iterable[Batch]) -> TextPredictions:
        """Return this rank's summed loss and predicted tokens."""
        losses, tokens = [], 0
        for batch in batches:
            losses.append(model(batch.inputs).clone())  # a compiled model reuses its memory
            tokens += batch.inputs[:, 1:].numel()
        return TextPredictions((float(torch.stack(losses).cpu().double().sum()) if losses else 0.0, tokens), tokens)

    def score(self, parts: Sequence[TextPredictions]) -> dict[str, float]:
        """Return the mean loss in nats a token, MLPerf's log perplexity."""
        losses, tokens = zip(*(part.predictions for part in parts), strict=True)
        return {"log_perplexity": sum(losses) / sum(tokens)}

    def mlperf_params(self) -> dict[str, Any]:
        """Return the hyperparameters under their names in MLPerf's language models."""
        settings = self.settings
        warmup_steps, decay_steps = self._schedule_steps()
        return {
            "opt_name": "adamw",
            "opt_base_learning_rate": settings.learning_rate,
            "opt_end_learning_rate": settings.min_learning_rate,
            "opt_learning_rate_warmup_steps": warmup_steps,
            "opt_learning_rate_decay_steps": decay_steps,
            "opt_learning_rate_decay_schedule": "cosine with linear warmup",
            "opt_adamw_beta_1": settings.beta_1,
            "opt_adamw_beta_2": settings.beta_2,
            "opt_adamw_epsilon": settings.epsilon,
            "opt_adamw_weight_decay": settings.weight_decay,
        }

    def _schedule_steps(self) -> tuple[int, int]:
        """Return the updates of the warm-up, and those until the end of the decay."""
        decay_steps = max(1, schedule.updates(self.settings, "decay", self.data))
        return min(decay_steps, round(self.settings.warmup_samples / self.data.global_batch_size)), decay_steps

"""Transformer big as MLPerf v0.5 to v0.7 define it, scored by its reference's own uncased BLEU."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import MISSING
from torch import nn
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ...datasets.text.subwords import EOS, PAD
from ..common.translation.beam_search import EndedGoApart, search
from ..common.translation.translation import Translation
from .bleu import uncased_bleu
from .data import Packed, TokenBatches
from .decoder import Decoder
from .model import Transformer


class AttentionTranslation(Translation):
    """Translates; quality is the Transformer reference's uncased BLEU."""

    @dataclass
    class Settings:
        """The rate rises over `warmup_tokens` of the longer side to `learning_rate`, then falls by the square root."""

        width: int = MISSING
        heads: int = MISSING
        filter: int = MISSING
        layers: int = MISSING
        learning_rate: float = MISSING
        warmup_tokens: int = MISSING
        beta_1: float = 0.9
        beta_2: float = 0.98
        epsilon: float = 1e-9
        dropout: float = 0.1
        label_smoothing: float = 0.1
        beam: int = 4
        length_alpha: float = 0.6
        longer: int = 50  # pieces that a translation may have more than its source

        def __post_init__(self) -> None:
            if min(self.width, self.heads, self.filter, self.layers, self.beam) < 1 or self.longer < 0:
                raise ValueError("width, heads, filter, layers and beam must be 1 or more, longer 0 or more.")
            if self.width % (2 * self.heads):
                raise ValueError(f"width={self.width} must be a multiple of twice the {self.heads} heads.")
            if self.learning_rate <= 0 or self.warmup_tokens < 1 or self.epsilon <= 0:
                raise ValueError("learning_rate, warmup_tokens and epsilon must be above 0.")
            fractions = (self.beta_1, self.beta_2, self.dropout, self.label_smoothing)
            if not all(0 <= fraction < 1 for fraction in fractions):
                raise ValueError("beta_1, beta_2, dropout and label_smoothing must be from 0 to below 1.")

    def __init__(self, settings: Settings, data: TokenBatches) -> None:
        self.settings, self.data = settings, data

    def build_model(self) -> nn.Module:
        """The Transformer at the data's vocabulary."""
        chosen = self.settings
        sizes = (chosen.width, chosen.heads, chosen.filter, chosen.layers)
        return Transformer(self.data.rows, *sizes, dropout=chosen.dropout, smoothing=chosen.label_smoothing)

    def build_optimizer(self, model: nn.Module, steps_per_epoch: int) -> tuple[Optimizer, LRScheduler]:
        """Adam; every row of the embedding gets a gradient from the softmax, so lazy and usual Adam are the same."""
        chosen = self.settings
        betas = (chosen.beta_1, chosen.beta_2)
        optimizer = Adam(model.parameters(), chosen.learning_rate, betas, chosen.epsilon, fused=True)
        return optimizer, LambdaLR(optimizer, self.factor)

    def factor(self, step: int) -> float:
        """Of the peak rate at update `step` (from 0): linear warm-up, then the inverse root (mlperf.md 12.5)."""
        warmup = self._warmup()
        return float(min((step + 1) / warmup, (warmup / (step + 1)) ** 0.5))

    def translate(self, model: Transformer, source: Packed) -> list[list[int]]:
        """Beam search with length penalty; as long as the batch's longest source and `longer` more."""
        count, beam = len(source.bounds) - 1, self.settings.beam
        most = source.longest + self.settings.longer
        beams = EndedGoApart(count, beam, EOS, self.settings.length_alpha, most, source.ids.device)
        begin = torch.full((count * beam,), PAD, device=source.ids.device)
        return search(Decoder(model, source), beams, begin, most)

    def bleu(self, references: Sequence[str], hypotheses: Sequence[str]) -> float:
        """The reference's own."""
        return uncased_bleu(references, hypotheses)

    def mlperf_params(self) -> dict[str, Any]:
        """Hyperparameters under the names that ruleset 0.7.0 has."""
        chosen = self.settings
        return {
            "opt_name": "adam",
            "opt_base_learning_rate": chosen.learning_rate,
            "opt_learning_rate_warmup_steps": self._warmup(),
            "opt_adam_beta_1": chosen.beta_1,
            "opt_adam_beta_2": chosen.beta_2,
            "opt_adam_epsilon": chosen.epsilon,
        }

    def _warmup(self) -> int:
        return max(1, round(self.settings.warmup_tokens / self.data.global_batch_size))

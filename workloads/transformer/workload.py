"""Transformer (big) of MLPerf v0.5 to v0.7, scored by its reference's own uncased BLEU."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import MISSING
from torch import nn
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ...datasets.text.subwords import EOS, PAD
from ..common.translation.beam_search import BeamSearch, SplitBeam
from ..common.translation.workload import Bleu, TranslationWorkload
from .bleu import UncasedBleu
from .data import PackedSentences, TransformerData
from .decoder import TransformerDecoder
from .model import Transformer


class TransformerWorkload(TranslationWorkload):
    """Translation with the Transformer; quality is the reference's uncased BLEU."""

    capturable = True

    @dataclass
    class Settings:
        """Hyperparameters of the Transformer, of Adam and of the beam search.

        The learning rate rises linearly over the warm-up and then falls with the inverse square root of the step.
        """

        hidden_size: int = MISSING
        """Width of embeddings and layers; a multiple of 2 * `num_heads`."""
        num_heads: int = MISSING
        """Attention heads."""
        ffn_dim: int = MISSING
        """Width of the feed-forward layers."""
        num_layers: int = MISSING
        """Layers of the encoder, and of the decoder."""
        learning_rate: float = MISSING
        """Peak learning rate, reached at the end of the warm-up."""
        warmup_tokens: int = MISSING
        """Tokens of the longer side over which the learning rate rises."""
        beta_1: float = 0.9
        """Adam's decay rate of the first moment."""
        beta_2: float = 0.98
        """Adam's decay rate of the second moment."""
        epsilon: float = 1e-9
        """Adam's epsilon."""
        dropout: float = 0.1
        """Dropout probability of embeddings, sublayers, attention weights and ReLU."""
        label_smoothing: float = 0.1
        """Probability mass spread over all words but the label."""
        beam_size: int = 4
        """Hypotheses per sentence in the beam search."""
        length_penalty: float = 0.6
        """Exponent alpha of the length penalty ((5 + length) / 6) ** alpha."""
        extra_decode_length: int = 50
        """Tokens that a translation may be longer than the longest source of its batch."""
        capture_search: bool = False
        """Capture the beam search in device graphs, if an evaluation has at most four batches; recipes of small models
        take it from `engine.capture`."""

        def __post_init__(self) -> None:
            sizes = (self.hidden_size, self.num_heads, self.ffn_dim, self.num_layers, self.beam_size)
            if min(sizes) < 1 or self.extra_decode_length < 0:
                raise ValueError(
                    "hidden_size, num_heads, ffn_dim, num_layers and beam_size must be 1 or more, "
                    "extra_decode_length 0 or more."
                )
            if self.hidden_size % (2 * self.num_heads):
                raise ValueError(
                    f"hidden_size={self.hidden_size} must be a multiple of twice num_heads={self.num_heads}."
                )
            if self.learning_rate <= 0 or self.warmup_tokens < 1 or self.epsilon <= 0:
                raise ValueError("learning_rate, warmup_tokens and epsilon must be above 0.")
            fractions = (self.beta_1, self.beta_2, self.dropout, self.label_smoothing)
            if not all(0 <= fraction < 1 for fraction in fractions):
                raise ValueError("beta_1, beta_2, dropout and label_smoothing must be from 0 to below 1.")

    def __init__(self, settings: Settings, data: TransformerData) -> None:
        self.settings, self.data = settings, data

    def build_model(self) -> nn.Module:
        """Build the Transformer for the data's vocabulary."""
        settings = self.settings
        return Transformer(
            self.data.padded_vocab_size,
            settings.hidden_size,
            settings.num_heads,
            settings.ffn_dim,
            settings.num_layers,
            dropout=settings.dropout,
            label_smoothing=settings.label_smoothing,
        )

    def build_optimizer(self, model: nn.Module, steps_per_epoch: int) -> tuple[Optimizer, LRScheduler]:
        """Build Adam, which equals the reference's lazy Adam here: the softmax gives every embedding row a gradient."""
        settings = self.settings
        betas = (settings.beta_1, settings.beta_2)
        optimizer = Adam(model.parameters(), settings.learning_rate, betas, settings.epsilon, fused=True)
        return optimizer, LambdaLR(optimizer, self.lr_factor)

    def lr_factor(self, step: int) -> float:
        """Return the learning rate factor of the 0-based update `step` (docs/mlperf_rules.md, "Transformer")."""
        warmup_steps = self._warmup_steps()
        return float(min((step + 1) / warmup_steps, (warmup_steps / (step + 1)) ** 0.5))

    def start_search(self, model: Transformer, source: PackedSentences) -> BeamSearch:
        """Start a beam search with a length penalty."""
        count, beam_size = len(source.cu_seqlens) - 1, self.settings.beam_size
        max_length = source.max_seqlen + self.settings.extra_decode_length
        beam = SplitBeam(count, beam_size, EOS, self.settings.length_penalty, max_length, source.ids.device)
        start_ids = torch.full((count * beam_size,), PAD, device=source.ids.device)
        return BeamSearch(TransformerDecoder(model, source), beam, start_ids, max_length)

    @staticmethod
    def build_bleu(references: Sequence[str]) -> Bleu:
        """Return the reference's uncased BLEU."""
        return UncasedBleu(references).score

    def mlperf_params(self) -> dict[str, Any]:
        """Return the hyperparameters under their names in ruleset 0.7.0."""
        settings = self.settings
        return {
            "opt_name": "adam",
            "opt_base_learning_rate": settings.learning_rate,
            "opt_learning_rate_warmup_steps": self._warmup_steps(),
            "opt_adam_beta_1": settings.beta_1,
            "opt_adam_beta_2": settings.beta_2,
            "opt_adam_epsilon": settings.epsilon,
        }

    def _warmup_steps(self) -> int:
        return max(1, round(self.settings.warmup_tokens / self.data.global_batch_size))

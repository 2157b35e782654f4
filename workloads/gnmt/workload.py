"""GNMT of MLPerf v0.5 to v0.7: recurrent translation, scored by sacreBLEU."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import MISSING
from torch import Tensor, nn
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ...datasets.text.moses_bpe import BEGIN, END
from ..common import schedule
from ..common.translation.beam_search import BeamSearch, ScoreFunction, SharedBeam, length_penalty
from ..common.translation.workload import Bleu, TranslationWorkload
from .data import GNMTData, PackedSentences
from .model import GNMT, Memory, State

_WARMUP_START = 0.01  # learning rate factor of the first update


class GNMTWorkload(TranslationWorkload):
    """Translation with GNMT; quality is BLEU of lower-cased text with international tokenization."""

    data: GNMTData

    @dataclass
    class Settings:
        """Hyperparameters of GNMT, of Adam and of the beam search.

        The learning rate rises exponentially in the warm-up, is then constant up to `remain_epochs`, where it is halved
        for the first time, and is halved again after every `decay_interval_epochs`. Both may be stated in samples.
        """

        hidden_size: int = MISSING
        """Width of embeddings, LSTM layers and attention."""
        learning_rate: float = MISSING
        """Learning rate after the warm-up."""
        warmup_samples: int = MISSING
        """Sentences over which the learning rate rises from 1% to `learning_rate`."""
        remain_epochs: float | None = None
        """Epochs after which the learning rate is first halved."""
        remain_samples: int | None = None
        """The same in sentences; null: `remain_epochs`."""
        decay_interval_epochs: float | None = None
        """Epochs between two halvings."""
        decay_interval_samples: int | None = None
        """The same in sentences; null: `decay_interval_epochs`."""
        num_halvings: int = 4
        """Number of times the learning rate is halved."""
        dropout: float = 0.2
        """Dropout probability of the inputs of all LSTM layers."""
        label_smoothing: float = 0.1
        """Probability mass spread over the whole vocabulary."""
        beam_size: int = 5
        """Hypotheses per sentence in the beam search."""
        max_decode_length: int = 149
        """Longest translation in tokens, including the end token."""
        length_penalty: float = 0.6
        """Exponent alpha of the length penalty ((5 + length) / 6) ** alpha."""
        coverage_penalty: float = 0.1
        """Factor beta of the coverage penalty."""
        capture_search: bool = False
        """Capture the beam search in device graphs, if an evaluation has at most four batches; recipes of small models
        take it from `engine.capture`."""

        def __post_init__(self) -> None:
            if self.hidden_size < 1 or self.learning_rate <= 0:
                raise ValueError("hidden_size and learning_rate must be above 0.")
            schedule.check(self, "remain")
            schedule.check(self, "decay_interval")
            if self.num_halvings < 0:
                raise ValueError("num_halvings must be 0 or more.")
            if not 0 <= self.dropout < 1 or not 0 <= self.label_smoothing < 1:
                raise ValueError("dropout and label_smoothing must be from 0 to below 1.")
            if self.beam_size < 1 or self.max_decode_length < 1 or self.warmup_samples < 0:
                raise ValueError("beam_size and max_decode_length must be 1 or more, warmup_samples 0 or more.")

    def __init__(self, settings: Settings, data: GNMTData) -> None:
        self.settings, self.data = settings, data
        self.build_bleu([""])  # imports what the first evaluation would wait for on the clock

    @property
    def capturable(self) -> bool:
        """Whether batches have few shapes, so that steps can be captured."""
        return self.data.has_few_shapes

    def build_model(self) -> nn.Module:
        """Build GNMT for the data's vocabulary."""
        settings = self.settings
        return GNMT(self.data.padded_vocab_size, settings.hidden_size, settings.dropout, settings.label_smoothing)

    def build_optimizer(self, model: nn.Module, steps_per_epoch: int) -> tuple[Optimizer, LRScheduler]:
        """Build Adam with PyTorch's default betas and the learning rate schedule."""
        optimizer = Adam(model.parameters(), self.settings.learning_rate, (0.9, 0.999), 1e-8, fused=True)
        return optimizer, LambdaLR(optimizer, self.lr_factor)

    def lr_factor(self, step: int) -> float:
        """Return the learning rate factor of the 0-based update `step` (docs/mlperf_rules.md, "GNMT").

        The reference steps its schedule before each update, so the first update has the schedule's second value.
        """
        warmup_steps, remain_steps, decay_interval = self._schedule_steps()
        position = step + 1
        if position <= warmup_steps:
            return float(_WARMUP_START ** ((warmup_steps - position) / warmup_steps))
        if position < remain_steps:
            return 1.0
        return float(0.5 ** min(self.settings.num_halvings, (position - remain_steps) // decay_interval + 1))

    def start_search(self, model: GNMT, source: tuple[PackedSentences, Tensor]) -> BeamSearch:
        """Start a beam search whose score has a length and a coverage penalty (Wu et al. 2016, equation 14)."""
        sentences, lengths = source
        memory = model.encode(sentences, lengths)
        beam_size, count = self.settings.beam_size, len(lengths)
        score = length_coverage_score(self.settings.length_penalty, self.settings.coverage_penalty)
        beam = SharedBeam(count, beam_size, END, score, sentences.max_length, lengths.device)
        start_ids = torch.full((count * beam_size,), BEGIN, device=lengths.device)
        return BeamSearch(GNMTDecoder(model, memory), beam, start_ids, self.settings.max_decode_length)

    @staticmethod
    def build_bleu(references: Sequence[str]) -> Bleu:
        """Return sacreBLEU of lower-cased text with international tokenization.

        The reference reads it from sacreBLEU's output, which has two decimals of percent.
        """
        from sacrebleu.metrics.bleu import BLEU

        scorer = BLEU(lowercase=True, tokenize="intl", force=True, references=[references])
        return lambda hypotheses: round(float(scorer.corpus_score(hypotheses, None).score), 2) / 100

    def mlperf_params(self) -> dict[str, Any]:
        """Return the hyperparameters under their names in ruleset 0.7.0."""
        warmup_steps, remain_steps, decay_interval = self._schedule_steps()
        return {
            "opt_name": "adam",
            "opt_base_learning_rate": self.settings.learning_rate,
            "opt_adam_beta_1": 0.9,
            "opt_adam_beta_2": 0.999,
            "opt_adam_epsilon": 1e-8,
            "opt_learning_rate_alt_decay_func": True,
            "opt_learning_rate_alt_warmup_func": True,
            "opt_learning_rate_decay_factor": 0.5,
            "opt_learning_rate_decay_interval": decay_interval,
            "opt_learning_rate_decay_steps": self.settings.num_halvings,
            "opt_learning_rate_remain_steps": remain_steps,
            "opt_learning_rate_warmup_steps": warmup_steps,
        }

    def _schedule_steps(self) -> tuple[int, int, int]:
        """Return warm-up, start of the halvings and interval between them, in updates."""
        settings, data = self.settings, self.data
        remain, interval = (schedule.updates(settings, key, data) for key in ("remain", "decay_interval"))
        return min(remain, round(settings.warmup_samples / data.global_batch_size)), remain, max(1, interval)


def length_coverage_score(alpha: float, beta: float) -> ScoreFunction:
    """Return the reference's score: the begin token counts as length, and sources without attention cost nothing."""

    def score(log_probabilities: Tensor, lengths: Tensor, coverage: Tensor) -> Tensor:
        log_coverage = coverage.clamp(max=1.0).log()
        coverage_penalty = beta * log_coverage.masked_fill(log_coverage.isneginf(), 0.0).sum(2)
        return log_probabilities / length_penalty(lengths + 1, alpha) + coverage_penalty

    return score


class GNMTDecoder:
    """GNMT with its decoding state."""

    def __init__(self, model: GNMT, memory: Memory) -> None:
        self._model, self._memory = model, memory
        self._state: State | None = None

    def step(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits [R, V] and the attention [R, S] after the tokens `ids` [R]."""
        logits, self._state, attention = self._model.decode_step(ids, self._state, self._memory)
        return logits, attention

    def fork(self) -> "GNMTDecoder":
        """Return a decoder that goes on from this state."""
        return copy.copy(self)

    def reorder(self, rows: Tensor) -> None:
        """Replace the state of each row r with that of row `rows[r]`."""
        assert self._state is not None
        self._state = [(hidden[:, rows], cell[:, rows]) for hidden, cell in self._state]

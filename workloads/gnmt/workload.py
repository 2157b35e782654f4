"""GNMT as MLPerf v0.5 to v0.7 define it: recurrent translation, scored by sacreBLEU."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import MISSING
from torch import Tensor, nn
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ...datasets.text.moses_bpe import BEGIN, END
from ..common.translation.beam_search import EndedStay, Rank, length_penalty, search
from ..common.translation.translation import Translation
from .data import Packed, Sentences
from .model import GNMT, Memory, State

_START = 0.01  # of the rate, at the first update


class RecurrentTranslation(Translation):
    """Translates; quality is lower-cased BLEU with international tokenisation."""

    @dataclass
    class Settings:
        """The rate warms up over `warmup_samples`, stays, and is halved `halvings` times in the rest of the schedule.

        That rest begins after the share `remain` of `schedule_epochs`.
        """

        width: int = MISSING
        learning_rate: float = MISSING
        warmup_samples: int = MISSING
        schedule_epochs: float = MISSING
        remain: float = 0.666
        halvings: int = 4
        dropout: float = 0.2
        label_smoothing: float = 0.1
        beam: int = 5
        longest: int = 150
        length_alpha: float = 0.6
        coverage_beta: float = 0.1

        def __post_init__(self) -> None:
            if self.width < 1 or self.learning_rate <= 0 or self.schedule_epochs <= 0 or self.halvings < 0:
                raise ValueError("width, learning_rate and schedule_epochs must be above 0, halvings 0 or more.")
            if not 0 <= self.dropout < 1 or not 0 <= self.label_smoothing < 1 or not 0 <= self.remain <= 1:
                raise ValueError("dropout and label_smoothing must be from 0 to below 1, remain at most 1.")
            if self.beam < 1 or self.longest < 1 or self.warmup_samples < 0:
                raise ValueError("beam and longest must be 1 or more, warmup_samples 0 or more.")

    def __init__(self, settings: Settings, data: Sentences) -> None:
        self.settings, self.data = settings, data

    def build_model(self) -> nn.Module:
        """GNMT at the data's vocabulary."""
        chosen = self.settings
        return GNMT(self.data.rows, chosen.width, chosen.dropout, chosen.label_smoothing)

    def build_optimizer(self, model: nn.Module, steps_per_epoch: int) -> tuple[Optimizer, LRScheduler]:
        """Adam with torch's usual betas."""
        optimizer = Adam(model.parameters(), self.settings.learning_rate, (0.9, 0.999), 1e-8, fused=True)
        return optimizer, LambdaLR(optimizer, self.factor)

    def factor(self, step: int) -> float:
        """Of the base rate at update `step` (from 0): exponential warm-up, plateau, halvings (mlperf.md 12.4)."""
        warmup, remain, interval = self._iterations()
        if step < warmup:
            return float(_START ** ((warmup - step) / warmup))
        if step < remain:
            return 1.0
        return float(0.5 ** min(self.settings.halvings, (step - remain) // interval + 1))

    def translate(self, model: GNMT, source: tuple[Packed, Tensor]) -> list[list[int]]:
        """Beam search; the best by length and coverage (Wu et al. 2016, equation 14)."""
        packed, lengths = source
        memory = model.encode(packed, lengths)
        beam, count = self.settings.beam, len(lengths)
        decoder = _Decoder(model, memory)
        rank = ranked(self.settings.length_alpha, self.settings.coverage_beta)
        beams = EndedStay(count, beam, END, rank, packed.longest, lengths.device)
        begin = torch.full((count * beam,), BEGIN, device=lengths.device)
        return search(decoder, beams, begin, self.settings.longest)

    def bleu(self, references: Sequence[str], hypotheses: Sequence[str]) -> float:
        """sacreBLEU, lower-cased, international tokenisation: MLPerf's options."""
        from sacrebleu.metrics.bleu import BLEU

        scorer = BLEU(lowercase=True, tokenize="intl", force=True)
        return float(scorer.corpus_score(list(hypotheses), [list(references)]).score) / 100

    def mlperf_params(self) -> dict[str, Any]:
        """Hyperparameters under the names that ruleset 0.7.0 has."""
        warmup, remain, interval = self._iterations()
        return {
            "opt_name": "adam",
            "opt_base_learning_rate": self.settings.learning_rate,
            "opt_adam_beta_1": 0.9,
            "opt_adam_beta_2": 0.999,
            "opt_adam_epsilon": 1e-8,
            "opt_learning_rate_alt_decay_func": True,
            "opt_learning_rate_alt_warmup_func": True,
            "opt_learning_rate_decay_factor": 0.5,
            "opt_learning_rate_decay_interval": interval,
            "opt_learning_rate_decay_steps": self.settings.halvings,
            "opt_learning_rate_remain_steps": remain,
            "opt_learning_rate_warmup_steps": warmup,
        }

    def _iterations(self) -> tuple[int, int, int]:
        """The schedule, kept in samples and epochs, in updates: warm-up, begin of the halvings, between two of them."""
        chosen, data = self.settings, self.data
        steps = int(chosen.schedule_epochs * data.steps_per_epoch)
        remain = int(chosen.remain * steps)
        warmup = min(remain, round(chosen.warmup_samples / data.global_batch_size))
        return warmup, remain, max(1, (steps - remain) // max(1, chosen.halvings))


def ranked(alpha: float, beta: float) -> Rank:
    """What hypotheses are worth, as the reference has it: BEGIN counts, pieces that were never looked at do not."""

    def rank(sums: Tensor, lengths: Tensor, coverage: Tensor) -> Tensor:
        seen = coverage.clamp(max=1.0).log()
        return sums / length_penalty(lengths + 1, alpha) + beta * seen.masked_fill(seen.isneginf(), 0.0).sum(2)

    return rank


class _Decoder:
    """GNMT in the middle of a search."""

    def __init__(self, model: GNMT, memory: Memory) -> None:
        self._model, self._memory = model, memory
        self._state: State | None = None

    def step(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and attention after one more piece."""
        logits, self._state, attention = self._model.decode(ids, self._state, self._memory)
        return logits, attention

    def keep(self, rows: Tensor) -> None:
        """Row r becomes what row `rows`[r] was."""
        assert self._state is not None
        self._state = [(hidden[:, rows], cell[:, rows]) for hidden, cell in self._state]

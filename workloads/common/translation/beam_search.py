"""Beam search over a batch of sentences on the device, with two ways to treat finished hypotheses.

A search has parts of some steps each; between them the host asks whether it has finished.

Shapes: N sentences, K hypotheses (beams) per sentence, R = N * K rows ordered by sentence, W words that can continue a
hypothesis, V vocabulary, S source tokens, L tokens of a hypothesis so far.
"""

import copy
from collections.abc import Callable
from typing import Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from .top_words import TopWords, top_words

_STEPS_PER_PART = 8  # a check whether the search has finished waits for the device

ScoreFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(log probabilities [N, K], lengths [N, K], coverage [N, K, S]) -> scores [N, K]."""


class TokenDecoder(Protocol):
    """A model with its decoding state for R hypotheses."""

    def step(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the logits [R, V] after the tokens `ids` [R], and the attention [R, S] if the model has one."""
        ...

    def reorder(self, rows: Tensor) -> None:
        """Replace the state of each row r with that of row `rows[r]`; `rows` is int64 [R]."""
        ...

    def fork(self) -> Self:
        """Return a decoder that goes on from this state and leaves this object, but not its buffers, as it is."""
        ...


class Beam(Protocol):
    """The hypotheses of all sentences."""

    @property
    def num_words(self) -> int:
        """How many words can continue a hypothesis: no others are among the best of their sentence."""
        ...

    def advance(self, words: TopWords, attention: Tensor | None) -> tuple[Tensor, Tensor]:
        """Append one of its W words to each hypothesis; return the parent rows and the new tokens, int64 [R] each."""
        ...

    def is_finished(self) -> bool:
        """Return whether no sentence can improve further; waits for the device."""
        ...

    def best(self) -> list[list[int]]:
        """Return the best hypothesis of each sentence, including its end token if it has one."""
        ...


class BeamSearch:
    """A search of at most `max_length` tokens; `start_ids` int64 [R] are the first inputs of the decoder."""

    def __init__(self, decoder: TokenDecoder, beam: Beam, start_ids: Tensor, max_length: int) -> None:
        self._decoder, self._beam, self._ids = decoder, beam, start_ids
        self._remaining = max_length

    def run(self) -> list[list[int]]:
        """Search to the end and return the best hypothesis of each sentence."""
        self.run_part()
        while not self.is_finished():
            self.run_part()
        return self.best()

    def run_part(self) -> None:
        """Do the next steps. Nothing here waits for the device."""
        steps = min(_STEPS_PER_PART, self._remaining)
        for _ in range(steps):
            logits, attention = self._decoder.step(self._ids)
            rows, self._ids = self._beam.advance(top_words(logits, self._beam.num_words), attention)
            self._decoder.reorder(rows)
        self._remaining -= steps

    @property
    def at_max_length(self) -> bool:
        """Whether all steps are done."""
        return not self._remaining

    def is_finished(self) -> bool:
        """Return whether another part would change nothing; waits for the device."""
        return self.at_max_length or self._beam.is_finished()

    def best(self) -> list[list[int]]:
        """Return the best hypothesis of each sentence, including its end token if it has one."""
        return self._beam.best()

    def fork(self) -> "BeamSearch":
        """Return a search that goes on from here and leaves this object, but not its decoder's buffers, as it is."""
        forked = copy.copy(self)
        forked._decoder, forked._beam = self._decoder.fork(), copy.copy(self._beam)
        return forked


def length_penalty(lengths: Tensor, alpha: float) -> Tensor:
    """Return ((5 + length) / 6) ** alpha (Wu et al. 2016, equation 14)."""
    return ((5.0 + lengths) / 6.0) ** alpha


class SharedBeam:
    """Finished hypotheses stay in the beam and compete by log probability until all have finished, as in GNMT.

    At the end `score` chooses among the K hypotheses. It takes their log probabilities, their lengths (the end token
    counts) and the coverage, the sum of the attention that each source token received. As in MLPerf's reference, the
    coverage belongs to a place in the beam and does not move with the hypotheses, which Wu et al. 2016 intend.
    """

    def __init__(
        self,
        num_sentences: int,
        beam_size: int,
        end_id: int,
        score: ScoreFunction,
        source_length: int,
        device: torch.device,
    ) -> None:
        self._end_id, self._score = end_id, score
        self._log_probabilities = _initial_log_probabilities(num_sentences, beam_size, device)
        self._finished = torch.zeros(num_sentences, beam_size, dtype=torch.bool, device=device)
        self._lengths = torch.zeros(num_sentences, beam_size, device=device)
        self._coverage = torch.zeros(num_sentences, beam_size, source_length, device=device)
        self._ids = torch.zeros(num_sentences, beam_size, 0, dtype=torch.int64, device=device)

    @property
    def num_words(self) -> int:
        """The number of hypotheses: all the best can continue one."""
        return self._log_probabilities.shape[1]

    def advance(self, words: TopWords, attention: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keep the K best continuations; a finished hypothesis continues as itself."""
        assert attention is not None
        num_sentences, beam_size = self._log_probabilities.shape
        is_finished = self._finished.view(-1, 1)
        only_end = torch.full_like(words.log_probabilities[:1], float("-inf"))
        only_end[:, 0] = 0.0
        words = TopWords(
            torch.where(is_finished, only_end, words.log_probabilities),
            words.ids.masked_fill(is_finished, self._end_id),
        )
        self._log_probabilities, parent, ids = _best_continuations(self._log_probabilities, words, beam_size)
        unfinished = ~self._finished.gather(1, parent)
        attention = attention.view(num_sentences, beam_size, -1) * ~self._finished[..., None]
        self._coverage = self._coverage + attention
        self._lengths = self._lengths.gather(1, parent) + unfinished
        self._ids = torch.cat([_select_beams(self._ids, parent), ids[..., None]], 2)
        self._finished = ~unfinished | (ids == self._end_id)
        return _flat_rows(parent), ids.flatten()

    def is_finished(self) -> bool:
        """Return whether all hypotheses have finished."""
        return bool(self._finished.all())

    def best(self) -> list[list[int]]:
        """Return the hypothesis of each sentence with the best score."""
        chosen = self._score(self._log_probabilities, self._lengths, self._coverage).argmax(1, keepdim=True)
        return _truncate(_select_beams(self._ids, chosen)[:, 0], self._end_id)


class SplitBeam:
    """Finished hypotheses leave the beam for a second one, ranked by log probability / penalty, as in Transformer.

    The penalty is ((5 + length) / 6) ** `alpha`, where the end token counts. The search finishes when no unfinished
    hypothesis of at most `max_length` tokens can beat a finished one.
    """

    def __init__(
        self, num_sentences: int, beam_size: int, end_id: int, alpha: float, max_length: int, device: torch.device
    ) -> None:
        self._end_id, self._alpha, self._max_length = end_id, alpha, max_length
        self._log_probabilities = _initial_log_probabilities(num_sentences, beam_size, device)
        self._finished_scores = torch.full((num_sentences, beam_size), float("-inf"), device=device)
        self._ids = torch.zeros(num_sentences, beam_size, 0, dtype=torch.int64, device=device)
        self._finished_ids = self._ids

    @property
    def num_words(self) -> int:
        """Twice the number of hypotheses, since as many continuations can end."""
        return 2 * self._log_probabilities.shape[1]

    def advance(self, words: TopWords, attention: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keep the K best unfinished continuations; they are among the 2 K best, of which at most K end."""
        beam_size = self._log_probabilities.shape[1]
        length = self._ids.shape[2] + 1
        sums, parent, ids = _best_continuations(self._log_probabilities, words, 2 * beam_size)
        extended_ids = torch.cat([_select_beams(self._ids, parent), ids[..., None]], 2)
        has_ended = ids == self._end_id
        scores = (sums / self._penalty(length)).masked_fill(~has_ended, float("-inf"))
        # Earlier finished hypotheses are padded to the present length with the end token.
        finished_ids = F.pad(self._finished_ids, (0, 1), value=self._end_id)
        self._finished_scores, chosen = torch.cat([self._finished_scores, scores], 1).topk(beam_size)
        self._finished_ids = _select_beams(torch.cat([finished_ids, extended_ids], 1), chosen)
        self._log_probabilities, chosen = sums.masked_fill(has_ended, float("-inf")).topk(beam_size)
        self._ids = _select_beams(extended_ids, chosen)
        return _flat_rows(parent.gather(1, chosen)), ids.gather(1, chosen).flatten()

    def is_finished(self) -> bool:
        """Return whether the worst finished score beats the best score that an unfinished hypothesis can reach."""
        bound = self._log_probabilities[:, 0] / self._penalty(self._max_length)
        return bool((self._finished_scores.amin(1) > bound).all())

    def best(self) -> list[list[int]]:
        """Return the finished hypothesis with the best score, or the best unfinished one if none has finished."""
        none_finished = self._finished_scores[:, :1].isneginf()[..., None]
        return _truncate(torch.where(none_finished, self._ids[:, :1], self._finished_ids[:, :1])[:, 0], self._end_id)

    def _penalty(self, length: int) -> float:
        return float(length_penalty(torch.tensor(float(length)), self._alpha))


def _initial_log_probabilities(num_sentences: int, beam_size: int, device: torch.device) -> Tensor:
    """Return [N, K]: 0 for the first hypothesis and -inf for the others, since all K start out equal."""
    log_probabilities = torch.full((num_sentences, beam_size), float("-inf"), device=device)
    log_probabilities[:, 0] = 0.0
    return log_probabilities


def _best_continuations(log_probabilities: Tensor, words: TopWords, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest sums of hypotheses [N, K] and their words, in descending order, with their beams and tokens.

    All three are [N, count].
    """
    num_sentences, beam_size = log_probabilities.shape
    sums = log_probabilities[..., None] + words.log_probabilities.view(num_sentences, beam_size, -1)
    best, indices = sums.flatten(1).topk(count)
    return best, indices // sums.shape[2], words.ids.view(num_sentences, -1).gather(1, indices)


def _select_beams(x: Tensor, beams: Tensor) -> Tensor:
    """Return x [N, K, L] at the beams [N, J]: [N, J, L]."""
    return x.gather(1, beams[..., None].expand(-1, -1, x.shape[2]))


def _flat_rows(beams: Tensor) -> Tensor:
    """Return the row numbers [R] of the beams [N, K]."""
    num_sentences, beam_size = beams.shape
    return (beams + torch.arange(num_sentences, device=beams.device)[:, None] * beam_size).flatten()


def _truncate(ids: Tensor, end_id: int) -> list[list[int]]:
    """Return the rows of `ids` [N, L] as lists, each up to and including its first end token."""
    return [row[: row.index(end_id) + 1] if end_id in row else row for row in ids.tolist()]

"""Beam search over a batch of sentences on the device; two ways to treat a hypothesis that has ended.

Shapes: N sentences, K hypotheses of each, R = N * K rows in order of sentence, V vocabulary, S pieces of a source.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

_LOOK = 8  # steps between two looks whether all have ended: looking waits for the device
Rank = Callable[[Tensor, Tensor, Tensor], Tensor]  # scores [N, K] of sums, lengths and coverage (`EndedStay`)


class Decoder(Protocol):
    """A model in the middle of R hypotheses."""

    def step(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits [R, V] after the pieces `ids` [R], and attention [R, S] where the model has one."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Row r becomes what row `rows`[r] was: int64 [R]."""
        ...


class Hypotheses(Protocol):
    """The beams of all sentences."""

    def advance(self, log_probabilities: Tensor, attention: Tensor | None) -> tuple[Tensor, Tensor]:
        """Takes one more piece in: (rows to go on from, pieces to go on with), int64 [R] each."""
        ...

    def over(self) -> bool:
        """Whether no sentence can get better; waits for the device."""
        ...

    def best(self) -> list[list[int]]:
        """The best hypothesis of each sentence, with its end where it has one."""
        ...


def search(decoder: Decoder, hypotheses: Hypotheses, begin: Tensor, most: int) -> list[list[int]]:
    """The best translations of N sentences of at most `most` pieces; `begin` int64 [R] are the pieces to start from."""
    ids = begin
    for step in range(1, most + 1):
        logits, attention = decoder.step(ids)
        rows, ids = hypotheses.advance(logits.float().log_softmax(1), attention)
        decoder.keep(rows)
        if step % _LOOK == 0 and hypotheses.over():
            break
    return hypotheses.best()


def length_penalty(lengths: Tensor, alpha: float) -> Tensor:
    """((5 + length) / 6) ** alpha (Wu et al. 2016, equation 14)."""
    return ((5.0 + lengths) / 6.0) ** alpha


class EndedStay:
    """Ended hypotheses stay in the beam and are measured by their sums until all have ended: GNMT's reference.

    `rank` makes the scores [N, K] that choose in the end from sums, lengths (the end counts) and coverage [N, K, S],
    the attention that each piece of the source has had.
    """

    def __init__(
        self,
        sentences: int,
        beam: int,
        end: int,
        rank: Rank,
        pieces: int,
        device: torch.device,
    ) -> None:
        self._end, self._rank = end, rank
        self._sums = torch.full((sentences, beam), float("-inf"), device=device)
        self._sums[:, 0] = 0.0  # all begin alike: one of them is enough
        self._ended = torch.zeros(sentences, beam, dtype=torch.bool, device=device)
        self._lengths = torch.zeros(sentences, beam, device=device)
        self._coverage = torch.zeros(sentences, beam, pieces, device=device)
        self._ids = torch.zeros(sentences, beam, 0, dtype=torch.int64, device=device)

    def advance(self, log_probabilities: Tensor, attention: Tensor | None) -> tuple[Tensor, Tensor]:
        """The K best continuations, an ended hypothesis going on as itself."""
        assert attention is not None
        count, beam = self._sums.shape
        words = log_probabilities.view(count, beam, -1)
        stay = torch.full_like(words[:1, :1], float("-inf"))
        stay[..., self._end] = 0.0
        words = torch.where(self._ended[..., None], stay, words)
        self._sums, parent, ids = _best(self._sums[..., None] + words, beam)
        going = ~self._ended.gather(1, parent)
        self._coverage = _of(self._coverage + attention.view(count, beam, -1) * ~self._ended[..., None], parent)
        self._lengths = self._lengths.gather(1, parent) + going
        self._ids = torch.cat([_of(self._ids, parent), ids[..., None]], 2)
        self._ended = ~going | (ids == self._end)
        return _rows(parent), ids.flatten()

    def over(self) -> bool:
        """Whether all have ended."""
        return bool(self._ended.all())

    def best(self) -> list[list[int]]:
        """By `rank`."""
        chosen = self._rank(self._sums, self._lengths, self._coverage).argmax(1, keepdim=True)
        return _cut(_of(self._ids, chosen)[:, 0], self._end)


class EndedGoApart:
    """Ended hypotheses are kept apart, ranked by sum / penalty, until no other can pass them: Transformer's reference.

    The penalty is ((5 + length) / 6) ** `alpha`, the end counting; no hypothesis has more than `most` pieces.
    """

    def __init__(self, sentences: int, beam: int, end: int, alpha: float, most: int, device: torch.device) -> None:
        self._end, self._alpha, self._most = end, alpha, most
        self._sums = torch.full((sentences, beam), float("-inf"), device=device)
        self._sums[:, 0] = 0.0
        self._scores = torch.full((sentences, beam), float("-inf"), device=device)  # of the ended
        self._ids = torch.zeros(sentences, beam, 0, dtype=torch.int64, device=device)
        self._done = self._ids

    def advance(self, log_probabilities: Tensor, attention: Tensor | None) -> tuple[Tensor, Tensor]:
        """The K best continuations that go on, found among the 2 K best, of which at most K end."""
        count, beam = self._sums.shape
        length = self._ids.shape[2] + 1
        sums, parent, ids = _best(self._sums[..., None] + log_probabilities.view(count, beam, -1), 2 * beam)
        grown = torch.cat([_of(self._ids, parent), ids[..., None]], 2)
        ends = ids == self._end
        scores = (sums / self._penalty(length)).masked_fill(~ends, float("-inf"))
        # What ended before is as long as all the others: its end is repeated.
        before = F.pad(self._done, (0, 1), value=self._end)
        self._scores, chosen = torch.cat([self._scores, scores], 1).topk(beam)
        self._done = _of(torch.cat([before, grown], 1), chosen)
        self._sums, chosen = sums.masked_fill(ends, float("-inf")).topk(beam)
        self._ids = _of(grown, chosen)
        return _rows(parent.gather(1, chosen)), ids.gather(1, chosen).flatten()

    def over(self) -> bool:
        """Whether the worst that ended is better than the best that goes on could become."""
        return bool((self._scores.amin(1) > self._sums[:, 0] / self._penalty(self._most)).all())

    def best(self) -> list[list[int]]:
        """By sum / penalty; the best that goes on where none has ended."""
        none = self._scores[:, :1].isneginf()[..., None]
        return _cut(torch.where(none, self._ids[:, :1], self._done[:, :1])[:, 0], self._end)

    def _penalty(self, length: int) -> float:
        return float(length_penalty(torch.tensor(float(length)), self._alpha))


def _best(sums: Tensor, wanted: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `wanted` best of sums [N, K, V]: their sums, hypotheses and pieces, [N, wanted] each, falling."""
    few, ids = sums.topk(min(wanted, sums.shape[2]))  # of each hypothesis: no more can be among the best
    best, places = few.flatten(1).topk(wanted)
    return best, places // few.shape[2], ids.flatten(1).gather(1, places)


def _of(x: Tensor, chosen: Tensor) -> Tensor:
    """x [N, K, L] at hypotheses `chosen` [N, J]: [N, J, L]."""
    return x.gather(1, chosen[..., None].expand(-1, -1, x.shape[2]))


def _rows(parent: Tensor) -> Tensor:
    """Rows of hypotheses `parent` [N, K]."""
    count, beam = parent.shape
    return (parent + torch.arange(count, device=parent.device)[:, None] * beam).flatten()


def _cut(ids: Tensor, end: int) -> list[list[int]]:
    """[N, L] as lists up to the first end, that included."""
    return [row[: row.index(end) + 1] if end in row else row for row in ids.tolist()]

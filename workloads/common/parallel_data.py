"""How one rank takes its share of parallel text, whatever a task packs it into."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import MISSING
from torch import Tensor

from timetrial.datasets import wmt
from timetrial.datasets.generate import language
from timetrial.datasets.wmt import Corpus, Prepared, Progress, Vocabulary
from timetrial.runner.errors import ConfigurationError
from timetrial.runner.seeds import Seeds
from timetrial.runner.workload import Batch, Share

_ROWS = 8  # an embedding has a multiple of so many rows: matrix units are filled, as the published submissions do


@dataclass(frozen=True)
class Side:
    """The ids of one language on the device, and where sentences lie in them: int32 [T], int64 [P] and [P]."""

    ids: Tensor
    starts: Tensor
    lengths: Tensor


class ParallelText:
    """Cuts an epoch into global batches of sentence numbers, the same on every rank, and deals them out.

    A subclass names its vocabulary's `kind`, how many `marks` (begin, end) a sentence gains on a side, plans an epoch
    and packs sentences. Lengths are in pieces with their marks; the ids lie on the device.
    """

    kind: ClassVar[type[Vocabulary]]
    marks: ClassVar[int]

    @dataclass
    class Settings:
        """Text files, source and target with equal lines; `generate` makes them where they are absent.

        Pairs with a side of more than `max_length` pieces are left out. `vocabulary` names one that is there already;
        else `vocabulary_size` merges or sub-tokens are learnt. `workers` prepare, null for one a core.
        """

        source: list[str] = MISSING
        target: list[str] = MISSING
        test_source: str = MISSING
        test_target: str = MISSING
        prepared: str = MISSING
        max_length: int = MISSING
        vocabulary_size: int = MISSING
        vocabulary: str | None = None
        languages: list[str] = field(default_factory=lambda: ["en", "de"])
        generate: language.Grammar | None = None
        eval_batch_size: int = 128
        workers: int | None = None

        def __post_init__(self) -> None:
            if len(self.source) != len(self.target) or not self.source or len(self.languages) != 2:
                raise ValueError("source and target must name as many files each, and languages two.")
            if min(self.eval_batch_size, self.vocabulary_size) < 1 or self.max_length < 3:
                raise ValueError("eval_batch_size and vocabulary_size must be 1 or more, max_length 3 or more.")

    def __init__(
        self, settings: Settings, *, global_batch_size: int, share: Share, device: torch.device, seeds: Seeds
    ) -> None:
        self._settings, self._share, self._device, self._seeds = settings, share, device, seeds
        self.global_batch_size = global_batch_size
        self._prepared = self.prepare(settings)
        self.vocabulary = self.kind.read(self._prepared.folder / "vocabulary")
        self.rows = -(-len(self.vocabulary) // _ROWS) * _ROWS
        lengths = [np.diff(self._prepared.tokens("train", side).offsets) + self.marks for side in ("source", "target")]
        self._kept = np.flatnonzero(np.maximum(*lengths) <= settings.max_length)
        self.lengths = np.stack(lengths)[:, self._kept]  # [2, P]: sizes, not samples
        self.eval_size = self._prepared.test_pairs
        self._loaded: tuple[Side, Side] | None = None
        if not self._kept.size:
            raise ConfigurationError(
                f"No pair has at most {settings.max_length} pieces: raise recipe.data.max_length or take other text."
            )
        self.train_size, self.steps_per_epoch = self._sizes()

    @classmethod
    def prepare(cls, settings: Settings, progress: Progress = lambda doing, lines: None) -> Prepared:
        """The text as ids on disk, made once; generates it before that, where the recipe says so."""
        files = [[Path(name) for name in names] for names in (settings.source, settings.target)]
        test = [Path(settings.test_source), Path(settings.test_target)]
        if settings.generate is not None:
            folder = language.path_of(files[0][0].parent, settings.generate)
            if not folder.exists():
                language.write_pairs(folder, settings.generate)
            files = [[folder / path.name for path in paths] for paths in files]
            test = [folder / path.name for path in test]
        corpus = Corpus(
            tuple(zip(*files, strict=True)), (test[0], test[1]), (settings.languages[0], settings.languages[1])
        )
        given = Path(settings.vocabulary) if settings.vocabulary else None
        workers = settings.workers or os.cpu_count() or 1
        size, folder = settings.vocabulary_size, Path(settings.prepared)
        return wmt.prepare(corpus, cls.kind, size, folder, given=given, workers=workers, progress=progress)

    def references(self) -> list[str]:
        """The test set's translations as they stand in the file."""
        return self._prepared.references()

    def text(self, ids: Sequence[int]) -> str:
        """A translation's text."""
        return self.vocabulary.decode(ids, self._settings.languages[1])

    def train(self, epoch: int) -> Iterable[Sequence[Batch]]:
        """This rank's micro-batches of every global batch of the epoch's plan."""
        sides = self._load()
        for numbers in self.plan(epoch):
            yield self._micro_batches(numbers, sides)

    def eval(self) -> Iterable[Batch]:
        """This rank's test sentences, each once, the longest first; every rank has some of each length."""
        tokens = self._prepared.tokens("test", "source")
        order = np.argsort(-np.diff(tokens.offsets), kind="stable")[self._share.rank :: self._share.ranks]
        side = self._on_device(tokens, np.arange(len(tokens)))
        size = self._settings.eval_batch_size
        for numbers in (order[start : start + size] for start in range(0, len(order), size)):
            lengths = np.diff(tokens.offsets)[numbers] + self.marks
            content = self.pack_source(numbers, lengths, side)
            yield Batch((content, numbers), len(numbers), self.eval_size, self.eval_size)

    def synthetic_train(self) -> Sequence[Batch]:
        """Random ids in the lengths of the first step."""
        return self._micro_batches(self.plan(1)[0], self._random_sides())

    def synthetic_eval(self) -> Batch:
        """Random ids in the lengths of two training sentences: decoding compiles nothing."""
        numbers = np.argsort(-self.lengths[0, :2], kind="stable")
        content = self.pack_source(numbers, self.lengths[0, numbers], self._random_sides()[0])
        return Batch((content, numbers), len(numbers), len(numbers), len(numbers))

    def facts(self) -> dict[str, Any]:
        """Sizes of text and vocabulary; pairs that were dropped are on record."""
        dropped = sum(self._prepared.dropped.values()) + self._prepared.pairs - len(self._kept)
        return {
            "max_sequence_length": self._settings.max_length,
            "timetrial_vocabulary": len(self.vocabulary),
            "timetrial_dropped_pairs": dropped,
        }

    def plan(self, epoch: int) -> list[NDArray[np.int64]]:
        """The numbers of the pairs of every global batch, shuffled anew each epoch."""
        raise NotImplementedError

    def pack(self, numbers: NDArray[np.int64], sides: tuple[Side, Side]) -> Any:
        """What the model reads of these pairs."""
        raise NotImplementedError

    def pack_source(self, numbers: NDArray[np.int64], lengths: NDArray[np.int64], side: Side) -> Any:
        """What decoding reads of these sentences."""
        raise NotImplementedError

    def _sizes(self) -> tuple[int, int]:
        """Pairs and global batches of an epoch."""
        raise NotImplementedError

    def _weight(self, numbers: NDArray[np.int64]) -> float:
        """What the loss of these pairs is a sum over."""
        raise NotImplementedError

    def _micro_batches(self, numbers: NDArray[np.int64], sides: tuple[Side, Side]) -> list[Batch]:
        weight, tokens = self._weight(numbers), int(self.lengths[:, numbers].sum())
        return [
            Batch(self.pack(part, sides), self._weight(part), len(numbers), weight, tokens)
            for part in self._deal(numbers)
        ]

    def _deal(self, numbers: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """This rank's parts of a global batch. The longest are dealt first, to and fro, so that parts weigh alike."""
        parts = self._share.ranks * self._share.accumulation
        order = numbers[np.argsort(-self.lengths[:, numbers].sum(0), kind="stable")]
        turn = np.arange(len(order)) % (2 * parts)
        owner = np.minimum(turn, 2 * parts - 1 - turn)
        first = self._share.rank * self._share.accumulation
        return [order[owner == part] for part in range(first, first + self._share.accumulation)]

    def _load(self) -> tuple[Side, Side]:
        """The training text on the device; the first call reads it, which is on the clock."""
        if self._loaded is None:
            source, target = (
                self._on_device(self._prepared.tokens("train", side), self._kept) for side in ("source", "target")
            )
            self._loaded = (source, target)
        return self._loaded

    def _on_device(self, tokens: wmt.Tokens, kept: NDArray[np.int64]) -> Side:
        ids = torch.from_numpy(tokens.ids.astype(np.int32)).to(self._device)
        starts = torch.from_numpy(tokens.offsets[:-1][kept]).to(self._device)
        lengths = torch.from_numpy(np.diff(tokens.offsets)[kept] + self.marks).to(self._device)
        return Side(ids, starts, lengths)

    def _random_sides(self) -> tuple[Side, Side]:
        made = []
        for lengths in self.lengths:
            size = torch.from_numpy(lengths).to(self._device)
            ids = torch.randint(4, len(self.vocabulary), (int(lengths.max()),), dtype=torch.int32, device=self._device)
            made.append(Side(ids, torch.zeros_like(size), size))
        return made[0], made[1]

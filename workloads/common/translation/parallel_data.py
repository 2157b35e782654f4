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

from ....datasets.synthetic import language
from ....datasets.text import wmt
from ....datasets.text.wmt import Corpus, Prepared, Progress, Vocabulary
from ....runner.core.errors import ConfigurationError
from ....runner.training.seeds import Seeds
from ....runner.training.workload import Batch, BatchSharding

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
        self, settings: Settings, *, global_batch_size: int, sharding: BatchSharding, device: torch.device, seeds: Seeds
    ) -> None:
        self._settings, self._sharding, self._device, self._seeds = settings, sharding, device, seeds
        self.global_batch_size = global_batch_size
        self._loaded: tuple[Side, Side] | None = None
        lengths, self.test_lengths = self._open()
        self.rows = -(-self.words // _ROWS) * _ROWS
        self._kept = np.flatnonzero(lengths.max(0) <= settings.max_length)
        self._dropped += lengths.shape[1] - len(self._kept)
        self.lengths = lengths[:, self._kept]  # [2, P]: sizes, not samples
        self.eval_size = len(self.test_lengths)
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

    def _open(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Lengths of all pairs [2, P] and of the test's sources; sets the number of `words` and of dropped pairs."""
        self._prepared = self.prepare(self._settings)
        self.vocabulary = self.kind.read(self._prepared.folder / "vocabulary")
        self.words, self._dropped = len(self.vocabulary), sum(self._prepared.dropped.values())
        train = [np.diff(self._prepared.tokens("train", side).offsets) for side in ("source", "target")]
        return np.stack(train) + self.marks, np.diff(self._prepared.tokens("test", "source").offsets) + self.marks

    def references(self) -> list[str]:
        """The test set's translations as they stand in the file."""
        return self._prepared.references()

    @classmethod
    def prepare_data(cls, settings: Settings, progress: Progress) -> None:
        """Prepares the text before the first run on it."""
        cls.prepare(settings, progress)

    def text(self, ids: Sequence[int]) -> str:
        """A translation's text."""
        return self.vocabulary.decode(ids, self._settings.languages[1])

    def train_batches(self, epoch: int) -> Iterable[Sequence[Batch]]:
        """This rank's micro-batches of every global batch of the epoch's plan."""
        sides = self._load()
        for numbers in self.plan(epoch):
            yield self._micro_batches(numbers, sides)

    def eval_batches(self) -> Iterable[Batch]:
        """This rank's test sentences, each once, the longest first; every rank has some of each length."""
        order = np.argsort(-self.test_lengths, kind="stable")[self._sharding.rank :: self._sharding.ranks]
        side, size = self._load_test(), self._settings.eval_batch_size
        for numbers in (order[start : start + size] for start in range(0, len(order), size)):
            content = self.pack_source(numbers, self.test_lengths[numbers], side)
            tokens = int(self.test_lengths[numbers].sum())
            yield Batch((content, numbers), len(numbers), self.eval_size, self.eval_size, tokens)

    def synthetic_train_batches(self) -> Sequence[Batch]:
        """Random ids in the lengths of the first step."""
        return self._micro_batches(self.plan(1)[0], self._random_sides())

    def synthetic_eval_batch(self) -> Batch:
        """Random ids in the lengths of two training sentences: decoding compiles nothing."""
        numbers = np.argsort(-self.lengths[0, :2], kind="stable")
        content = self.pack_source(numbers, self.lengths[0, numbers], self._random_sides()[0])
        return Batch((content, numbers), len(numbers), len(numbers), len(numbers))

    def mlperf_params(self) -> dict[str, Any]:
        """Sizes of text and vocabulary; pairs that were dropped are on record."""
        return {
            "max_sequence_length": {"value": self._settings.max_length, "metadata": {"method": "discard"}},
            "timetrial_vocabulary": self.words,
            "timetrial_dropped_pairs": self._dropped,
            "timetrial_padding": round(self.padding(), 4),
        }

    def plan(self, epoch: int) -> list[NDArray[np.int64]]:
        """The numbers of the pairs of every global batch, shuffled anew each epoch."""
        raise NotImplementedError

    def pack(self, numbers: NDArray[np.int64], sides: tuple[Side, Side]) -> Any:
        """What the model reads of these pairs."""
        raise NotImplementedError

    def padding(self) -> float:
        """The share of pieces in training batches that only fill them up; packed sentences need none."""
        return 0.0

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
        parts = self._sharding.ranks * self._sharding.accumulation
        order = numbers[np.argsort(-self.lengths[:, numbers].sum(0), kind="stable")]
        turn = np.arange(len(order)) % (2 * parts)
        owner = np.minimum(turn, 2 * parts - 1 - turn)
        first = self._sharding.rank * self._sharding.accumulation
        return [order[owner == part] for part in range(first, first + self._sharding.accumulation)]

    def _load(self) -> tuple[Side, Side]:
        """The training text on the device; the first call reads it, which is on the clock."""
        if self._loaded is None:
            source, target = (
                self._on_device(self._prepared.tokens("train", side), self._kept) for side in ("source", "target")
            )
            self._loaded = (source, target)
        return self._loaded

    def _load_test(self) -> Side:
        """The sentences to translate, on the device."""
        return self._on_device(self._prepared.tokens("test", "source"), np.arange(self.eval_size))

    def _on_device(self, tokens: wmt.Tokens, kept: NDArray[np.int64]) -> Side:
        ids = torch.from_numpy(tokens.ids.astype(np.int32)).to(self._device)
        starts = torch.from_numpy(tokens.offsets[:-1][kept]).to(self._device)
        lengths = torch.from_numpy(np.diff(tokens.offsets)[kept] + self.marks).to(self._device)
        return Side(ids, starts, lengths)

    def _random_sides(self) -> tuple[Side, Side]:
        """Of training."""
        return self._random(self.lengths[0]), self._random(self.lengths[1])

    def _random(self, lengths: NDArray[np.int64]) -> Side:
        """Sentences of these lengths that say nothing."""
        size = torch.from_numpy(lengths).to(self._device)
        ids = torch.randint(4, self.words, (int(lengths.sum()),), dtype=torch.int32, device=self._device)
        return Side(ids, size.cumsum(0) - size, size)

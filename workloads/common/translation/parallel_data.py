"""The base class of data classes for parallel text: planning global batches and sharding them over ranks."""

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
from ....datasets.synthetic.spec_digest import path_with_digest
from ....datasets.text import wmt
from ....datasets.text.wmt import Corpus, PreparedCorpus, Vocabulary
from ....runner.core.errors import ConfigurationError
from ....runner.core.progress import ProgressCallback, no_progress
from ....runner.training.seeds import Seeds
from ....runner.training.workload import Batch, BatchSharding, Data

_VOCAB_MULTIPLE = 8  # embeddings are padded to a multiple of 8 rows for the matrix units, as in published submissions


@dataclass(frozen=True)
class TokenizedCorpus:
    """All sentences of one language on the device: `ids` int32 [T], and `starts` and `lengths` int64 [P] of each.

    `lengths` count the special tokens, which `ids` do not contain.
    """

    ids: Tensor
    starts: Tensor
    lengths: Tensor


class ParallelTextData(Data):
    """Divides an epoch into global batches of sentence pairs, the same on every rank, and shards each over the ranks.

    A subclass sets `vocabulary_class` and `num_special_tokens` (begin and end tokens per sentence), plans an epoch and
    packs sentences. All lengths are in tokens and include the special tokens.
    """

    vocabulary_class: ClassVar[type[Vocabulary]]
    num_special_tokens: ClassVar[int]

    @dataclass
    class Settings:
        """Settings of parallel text: files with one sentence per line, where source and target have equal lines."""

        source: list[str] = MISSING
        """Training files of the source language."""
        target: list[str] = MISSING
        """Training files of the target language, with the same number of lines."""
        test_source: str = MISSING
        """Source file of the test set."""
        test_target: str = MISSING
        """Reference translations of the test set."""
        cache_dir: str = MISSING
        """Folder of the cache of tokenized text."""
        max_length: int = MISSING
        """Training pairs with more tokens on either side are discarded."""
        vocabulary_size: int = MISSING
        """Size of the vocabulary to learn: BPE merges (GNMT) or sub-tokens (Transformer)."""
        vocabulary: str | None = None
        """Path of an existing vocabulary; null: learn one from the training files."""
        languages: list[str] = field(default_factory=lambda: ["en", "de"])
        """Language codes of source and target."""
        generate: language.TranslationSpec | None = None
        """Grammar of a synthetic language pair, generated if the files do not exist; null: real files."""
        eval_batch_size: int = 128
        """Sentences of a rank decoded at a time."""
        workers: int | None = None
        """Processes that prepare the text; null: one per CPU core."""

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
        self._train_corpora: tuple[TokenizedCorpus, TokenizedCorpus] | None = None
        lengths, self.test_lengths = self._open()
        self.padded_vocab_size = -(-self.vocab_size // _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE
        self._kept = np.flatnonzero(lengths.max(0) <= settings.max_length)
        self._num_dropped += lengths.shape[1] - len(self._kept)
        self.lengths = lengths[:, self._kept]  # [2, P]; reading sizes is allowed before the clock starts
        self.eval_size = len(self.test_lengths)
        if not self._kept.size:
            raise ConfigurationError(
                f"No pair has at most {settings.max_length} tokens: raise recipe.data.max_length or use other text."
            )
        self.train_size, self.steps_per_epoch = self._epoch_size()

    @classmethod
    def prepare_data(cls, settings: Settings, progress: ProgressCallback) -> None:
        """Tokenize the text before the first run on it."""
        cls._prepare(settings, progress)

    @classmethod
    def _prepare(cls, settings: Settings, progress: ProgressCallback = no_progress) -> PreparedCorpus:
        """Return the tokenized text on disk; generate and tokenize the text if that has not been done yet."""
        files = [[Path(name) for name in names] for names in (settings.source, settings.target)]
        test = [Path(settings.test_source), Path(settings.test_target)]
        if settings.generate is not None:
            folder = path_with_digest(files[0][0].parent, settings.generate)
            if not folder.exists():
                language.write_parallel_text(folder, settings.generate)
            files = [[folder / path.name for path in paths] for paths in files]
            test = [folder / path.name for path in test]
        corpus = Corpus(
            tuple(zip(*files, strict=True)), (test[0], test[1]), (settings.languages[0], settings.languages[1])
        )
        return wmt.prepare(
            corpus,
            cls.vocabulary_class,
            settings.vocabulary_size,
            Path(settings.cache_dir),
            vocabulary_path=Path(settings.vocabulary) if settings.vocabulary else None,
            workers=settings.workers or os.cpu_count() or 1,
            progress=progress,
        )

    def _open(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the lengths of all pairs [2, P] and of the test sources; set `vocab_size` and the dropped pairs."""
        self._prepared = self._prepare(self._settings)
        self.vocabulary = self.vocabulary_class.read(self._prepared.folder / "vocabulary")
        self.vocab_size, self._num_dropped = len(self.vocabulary), sum(self._prepared.dropped.values())
        train = np.stack([self._read_lengths("train", side) for side in ("source", "target")])
        return train, self._read_lengths("test", "source")

    def _read_lengths(self, split: str, side: str) -> NDArray[np.int64]:
        return np.diff(self._prepared.tokens(split, side).offsets) + self.num_special_tokens

    def references(self) -> list[str]:
        """Return the reference translations of the test set, as they stand in the file."""
        return self._prepared.references()

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a translation."""
        return self.vocabulary.decode(ids, self._settings.languages[1])

    def train_batches(self, epoch: int) -> Iterable[Sequence[Batch]]:
        """Yield this rank's micro-batches of every global batch of the epoch."""
        corpora = self._load_train()
        for numbers in self.plan_batches(epoch):
            yield self._micro_batches(numbers, corpora)

    def eval_batches(self) -> Iterable[Batch]:
        """Yield this rank's test sentences, each once, longest first; every rank gets sentences of all lengths."""
        order = np.argsort(-self.test_lengths, kind="stable")[self._sharding.rank :: self._sharding.ranks]
        corpus, size = self._load_test(), self._settings.eval_batch_size
        for numbers in (order[start : start + size] for start in range(0, len(order), size)):
            source = self.pack_source(numbers, self.test_lengths[numbers], corpus)
            tokens = int(self.test_lengths[numbers].sum())
            yield Batch((source, numbers), len(numbers), self.eval_size, self.eval_size, tokens)

    def synthetic_train_batches(self) -> Sequence[Batch]:
        """Return random ids in the shapes of the first step."""
        return self._micro_batches(self.plan_batches(1)[0], self._random_train_corpora())

    def synthetic_eval_batch(self) -> Batch:
        """Return random ids in the lengths of two training sentences; decoding compiles nothing."""
        numbers = np.argsort(-self.lengths[0, :2], kind="stable")
        source = self.pack_source(numbers, self.lengths[0, numbers], self._random_train_corpora()[0])
        return Batch((source, numbers), len(numbers), len(numbers), len(numbers))

    def mlperf_params(self) -> dict[str, Any]:
        """Return maximum length and vocabulary size, the number of dropped pairs and the fraction of padding."""
        return {
            "max_sequence_length": {"value": self._settings.max_length, "metadata": {"method": "discard"}},
            "timetrial_vocabulary": self.vocab_size,
            "timetrial_dropped_pairs": self._num_dropped,
            "timetrial_padding": round(self.padding_fraction(), 4),
        }

    def plan_batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the pair numbers of every global batch, in an order that each epoch shuffles anew."""
        raise NotImplementedError

    def pack(self, numbers: NDArray[np.int64], corpora: tuple[TokenizedCorpus, TokenizedCorpus]) -> Any:
        """Return the model inputs for these pairs."""
        raise NotImplementedError

    def pack_source(self, numbers: NDArray[np.int64], lengths: NDArray[np.int64], corpus: TokenizedCorpus) -> Any:
        """Return the decoder inputs for these sentences."""
        raise NotImplementedError

    def padding_fraction(self) -> float:
        """Return the fraction of padding in training batches; packed sentences need none."""
        return 0.0

    def _epoch_size(self) -> tuple[int, int]:
        """Return the number of pairs and of global batches in an epoch."""
        raise NotImplementedError

    def _loss_weight(self, numbers: NDArray[np.int64]) -> float:
        """Return what the summed loss of these pairs is divided by: sentences or tokens."""
        raise NotImplementedError

    def _micro_batches(
        self, numbers: NDArray[np.int64], corpora: tuple[TokenizedCorpus, TokenizedCorpus]
    ) -> list[Batch]:
        global_weight, tokens = self._loss_weight(numbers), int(self.lengths[:, numbers].sum())
        return [
            Batch(self.pack(part, corpora), self._loss_weight(part), len(numbers), global_weight, tokens)
            for part in self._partition(numbers)
        ]

    def _partition(self, numbers: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return this rank's parts of a global batch: pairs by descending length, dealt to the parts back and forth."""
        parts = self._sharding.ranks * self._sharding.accumulation
        order = numbers[np.argsort(-self.lengths[:, numbers].sum(0), kind="stable")]
        turn = np.arange(len(order)) % (2 * parts)
        owner = np.minimum(turn, 2 * parts - 1 - turn)
        first = self._sharding.rank * self._sharding.accumulation
        return [order[owner == part] for part in range(first, first + self._sharding.accumulation)]

    def _load_train(self) -> tuple[TokenizedCorpus, TokenizedCorpus]:
        """Return the training text on the device; the first call reads it, with the clock running."""
        if self._train_corpora is None:
            source, target = (
                self._to_device(self._prepared.tokens("train", side), self._kept) for side in ("source", "target")
            )
            self._train_corpora = (source, target)
        return self._train_corpora

    def _load_test(self) -> TokenizedCorpus:
        """Return the sources of the test set on the device."""
        return self._to_device(self._prepared.tokens("test", "source"), np.arange(self.eval_size))

    def _to_device(self, tokens: wmt.Tokens, kept: NDArray[np.int64]) -> TokenizedCorpus:
        ids = torch.from_numpy(tokens.ids.astype(np.int32)).to(self._device)
        starts = torch.from_numpy(tokens.offsets[:-1][kept]).to(self._device)
        lengths = torch.from_numpy(np.diff(tokens.offsets)[kept] + self.num_special_tokens).to(self._device)
        return TokenizedCorpus(ids, starts, lengths)

    def _random_train_corpora(self) -> tuple[TokenizedCorpus, TokenizedCorpus]:
        return self._random_corpus(self.lengths[0]), self._random_corpus(self.lengths[1])

    def _random_corpus(self, lengths: NDArray[np.int64]) -> TokenizedCorpus:
        """Return sentences of random words with these lengths."""
        on_device = torch.from_numpy(lengths).to(self._device)
        ids = torch.randint(4, self.vocab_size, (int(lengths.sum()),), dtype=torch.int32, device=self._device)
        return TokenizedCorpus(ids, on_device.cumsum(0) - on_device, on_device)

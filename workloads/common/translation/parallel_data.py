"""The base class of data classes for parallel text: planning global batches and sharding them over ranks."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import MISSING

from ....datasets.synthetic import language
from ....datasets.synthetic.spec_digest import path_with_digest
from ....datasets.text import wmt
from ....datasets.text.prepared_corpus import CorpusStatistics, LengthCount, PreparedCorpus, Tokens
from ....datasets.text.wmt import Corpus, Vocabulary
from ....runner.core.errors import ConfigurationError
from ....runner.core.progress import ProgressCallback, no_progress
from ....runner.hardware.device_graphs import supports_graphs
from ....runner.hardware.side_stream import SideStream
from ....runner.training.seeds import Seeds
from ....runner.training.workload import Batch, BatchSharding, Data
from .captured_search import MAX_SHAPES
from .planned_epochs import PlannedEpochs
from .tokenized_text import TokenizedPairs, TokenizedSide

_VOCAB_MULTIPLE = 8  # embeddings are padded to a multiple of 8 rows for the matrix units, as in published submissions


class ParallelTextData(Data):
    """Divides an epoch into global batches of sentence pairs, the same on every rank, and shards each over the ranks.

    A subclass sets `vocabulary_class` and `num_special_tokens` (begin and end tokens per sentence), plans an epoch and
    packs sentences. All lengths are in tokens and include the special tokens. Sizes come from the distribution of
    lengths in the manifest; the lengths of the sentences, in their order, are read by `open`.
    """

    vocabulary_class: ClassVar[type[Vocabulary]]
    num_special_tokens: ClassVar[int]

    dataset_keys = ("source", "target", "test_source", "test_target")

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
        statistics = self._read_statistics()
        self.vocab_size, self.eval_size = statistics.vocab_size, len(statistics.test_lengths)
        self._sorted_test_lengths = np.array(statistics.test_lengths, dtype=np.int64) + self.num_special_tokens
        self.padded_vocab_size = -(-self.vocab_size // _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE
        counts = map(self._add_special_tokens, statistics.lengths)
        self._counts = [count for count in counts if count.tokens <= settings.max_length]
        self._num_kept = sum(count.pairs for count in self._counts)
        self._num_dropped, self._num_too_long = sum(statistics.dropped.values()), statistics.pairs - self._num_kept
        if not self._counts:
            raise ConfigurationError(
                f"No pair has at most {settings.max_length} tokens: raise recipe.data.max_length or use other text."
            )
        self._longer_side = int(np.diff(self._num_tokens())[0] > 0)
        self.train_size, self.steps_per_epoch = self._epoch_size(self._counts)
        self._side_stream = SideStream(device)
        self.has_few_eval_shapes = len(self._eval_shards(self._sorted_test_lengths)) <= MAX_SHAPES

    @classmethod
    def prepare_data(cls, settings: Settings, progress: ProgressCallback) -> None:
        """Tokenize the text before the first run on it."""
        cls._prepare(settings, progress)

    @classmethod
    def prepared_content(cls, settings: Settings) -> Iterator[Path | bytes]:
        """Yield the vocabulary, the ids and the references."""
        yield from cls._prepare(settings).content()

    @classmethod
    def _prepare(cls, settings: Settings, progress: ProgressCallback = no_progress) -> PreparedCorpus:
        """Return the tokenized text on disk; generate and tokenize the text if that has not been done yet."""
        files = [[Path(name) for name in names] for names in (settings.source, settings.target)]
        test = (Path(settings.test_source), Path(settings.test_target))
        if settings.generate is not None:
            folder = path_with_digest(files[0][0].parent, settings.generate)
            if not folder.exists():
                language.write_parallel_text(folder, settings.generate)
            files = [[folder / path.name for path in paths] for paths in files]
            test = (folder / test[0].name, folder / test[1].name)
        corpus = Corpus(tuple(zip(*files, strict=True)), test, (settings.languages[0], settings.languages[1]))
        return wmt.prepare(
            corpus,
            cls.vocabulary_class,
            settings.vocabulary_size,
            Path(settings.cache_dir),
            vocabulary_path=Path(settings.vocabulary) if settings.vocabulary else None,
            workers=settings.workers or os.cpu_count() or 1,
            progress=progress,
        )

    def _read_statistics(self) -> CorpusStatistics:
        """Return the statistics in the manifest of the prepared corpus."""
        self._prepared = self._prepare(self._settings)
        return self._prepared.statistics

    def _add_special_tokens(self, count: LengthCount) -> LengthCount:
        added = self.num_special_tokens
        tokens = (side + added * count.pairs for side in (count.source_tokens, count.target_tokens))
        return LengthCount(count.tokens + added, count.pairs, *tokens)

    def open(self) -> None:
        """Read lengths and vocabulary, and put the text on the device."""
        lengths, self.test_lengths = self._read_lengths()
        self._kept = np.flatnonzero(lengths.max(0) <= self._settings.max_length)
        self.lengths = lengths[:, self._kept]  # [2, P]
        self._epochs = PlannedEpochs(self.plan_batches)
        self._train, self._test = self._load_train(), self._load_test()

    def _read_lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the lengths of all training pairs [2, P] and of the test sources [N]; read the vocabulary too."""
        self.vocabulary = self.vocabulary_class.read(self._prepared.folder / "vocabulary")
        source, target, test = (
            np.diff(self._prepared.tokens(*part).offsets) + self.num_special_tokens
            for part in (("train", "source"), ("train", "target"), ("test", "source"))
        )
        return np.stack([source, target]), test

    def references(self) -> list[str]:
        """Return the reference translations of the test set, as they stand in the file."""
        return self._prepared.references()

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a translation."""
        return self.vocabulary.decode(ids)

    def train_batches(self, epoch: int) -> Iterable[Sequence[Batch]]:
        """Yield this rank's micro-batches of every global batch of the epoch.

        On a GPU, a batch is packed while the step before it runs.
        """
        batches = self._epochs.batches(epoch)
        return self._side_stream.make_ahead(self._micro_batches(numbers, self._train) for numbers in batches)

    def eval_batches(self) -> Iterable[Batch]:
        """Yield this rank's test sentences, each once, longest first; every rank gets sentences of all lengths."""
        order = np.argsort(-self.test_lengths, kind="stable")
        for numbers in self._eval_shards(order):
            source = self.pack_source(numbers, self.test_lengths[numbers], self._test)
            tokens = int(self.test_lengths[numbers].sum())
            yield Batch((source, numbers), len(numbers), self.eval_size, self.eval_size, tokens)

    def warm_up_steps(self) -> Iterator[Sequence[Batch]]:
        """Yield random words in sentences of invented lengths, which fill a global batch of the recipe."""
        lengths = self.invented_lengths()
        yield self._micro_batches(np.arange(lengths.shape[1]), self._random_corpus(lengths))

    def warm_up_eval_batches(self) -> Iterator[Batch]:
        """Yield random words in sentences as long as those of an evaluation, if its searches can be captured.

        Otherwise yield two sentences, one as long as those of training can be, the other half as long.
        """
        shards = self._eval_shards(self._sorted_test_lengths)
        if not (self.has_few_eval_shapes and supports_graphs(self._device)):
            shards = [np.array([self._settings.max_length, self._settings.max_length // 2])]
        for lengths in shards:
            numbers = np.arange(len(lengths))
            source = self.pack_source(numbers, lengths, self._random_side(lengths))
            yield Batch((source, numbers), len(numbers), len(numbers), len(numbers))

    def _eval_shards(self, in_order: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return this rank's part of each evaluation batch of what is in order of descending length."""
        own = in_order[self._sharding.rank :: self._sharding.ranks]
        size = self._settings.eval_batch_size
        return [own[start : start + size] for start in range(0, len(own), size)]

    def mlperf_params(self) -> dict[str, Any]:
        """Return maximum length, vocabulary size, the pairs that each filter dropped, and the fraction of padding."""
        return {
            "max_sequence_length": {"value": self._settings.max_length, "metadata": {"method": "discard"}},
            "timetrial_vocabulary": self.vocab_size,
            "timetrial_dropped_pairs": self._num_dropped,
            "timetrial_dropped_long_pairs": self._num_too_long,
            "timetrial_padding": round(self.padding_fraction(), 4),
        }

    def invented_lengths(self) -> NDArray[np.int64]:
        """Return lengths [2, n] of a full global batch, chosen by the recipe's limits without looking at the data."""
        raise NotImplementedError

    def plan_batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the pair numbers of every global batch, in an order that each epoch shuffles anew."""
        raise NotImplementedError

    def pack(self, numbers: NDArray[np.int64], corpus: TokenizedPairs) -> Any:
        """Return the model inputs for these pairs."""
        raise NotImplementedError

    def pack_source(self, numbers: NDArray[np.int64], lengths: NDArray[np.int64], corpus: TokenizedSide) -> Any:
        """Return the decoder inputs for these sentences."""
        raise NotImplementedError

    def padding_fraction(self) -> float:
        """Return the fraction of padding in training batches; packed sentences need none."""
        return 0.0

    def _num_tokens(self) -> tuple[int, int]:
        """Return the source and target tokens of an epoch."""
        source, target = zip(*((count.source_tokens, count.target_tokens) for count in self._counts), strict=True)
        return sum(source), sum(target)

    def _epoch_size(self, counts: Sequence[LengthCount]) -> tuple[int, int]:
        """Return the number of pairs and of global batches in an epoch of the pairs that `counts` describe."""
        raise NotImplementedError

    def _loss_weight(self, lengths: NDArray[np.int64]) -> float:
        """Return what the summed loss of pairs of these lengths [2, n] is divided by: sentences or tokens."""
        raise NotImplementedError

    def _micro_batches(self, numbers: NDArray[np.int64], corpus: TokenizedPairs) -> list[Batch]:
        lengths = corpus.lengths[:, numbers]
        global_weight, tokens = self._loss_weight(lengths), int(lengths.sum())
        parts = self._partition(lengths)
        weights = [self._loss_weight(lengths[:, part]) for part in parts]
        return [
            Batch(self.pack(numbers[part], corpus), weight, len(numbers), global_weight, tokens)
            for part, weight in zip(parts, weights, strict=True)
        ]

    def _partition(self, lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return this rank's parts of a global batch: pairs by descending length, dealt to the parts back and forth.

        The length is that on the side with more tokens in an epoch, so that there no two parts differ by more than the
        longest sentence. Among equal lengths, those of the other side rise and fall in turn, which nearly balances it
        too.
        """
        parts = self._sharding.ranks * self._sharding.accumulation
        main, other = lengths[self._longer_side], lengths[1 - self._longer_side]
        order = np.lexsort((np.where(main % 2, other, -other), -main))
        turn = np.arange(len(order)) % (2 * parts)
        owner = np.minimum(turn, 2 * parts - 1 - turn)
        first = self._sharding.rank * self._sharding.accumulation
        return [order[owner == part] for part in range(first, first + self._sharding.accumulation)]

    def _load_train(self) -> TokenizedPairs:
        """Return the training text on the device."""
        tokens = self._prepared.tokens
        source, target = (self._to_device(tokens("train", side), self._kept) for side in ("source", "target"))
        return TokenizedPairs(source, target, self.lengths)

    def _load_test(self) -> TokenizedSide:
        """Return the sources of the test set on the device."""
        return self._to_device(self._prepared.tokens("test", "source"), np.arange(self.eval_size))

    def _to_device(self, tokens: Tokens, kept: NDArray[np.int64]) -> TokenizedSide:
        ids = torch.from_numpy(tokens.ids.astype(np.int32)).to(self._device)
        starts = torch.from_numpy(tokens.offsets[:-1][kept]).to(self._device)
        lengths = torch.from_numpy(np.diff(tokens.offsets)[kept] + self.num_special_tokens).to(self._device)
        return TokenizedSide(ids, starts, lengths)

    def _random_corpus(self, lengths: NDArray[np.int64]) -> TokenizedPairs:
        """Return pairs of random words with these lengths [2, P]."""
        return TokenizedPairs(self._random_side(lengths[0]), self._random_side(lengths[1]), lengths)

    def _random_side(self, lengths: NDArray[np.int64]) -> TokenizedSide:
        on_device = torch.from_numpy(lengths).to(self._device)
        ids = torch.randint(4, self.vocab_size, (int(lengths.sum()),), dtype=torch.int32, device=self._device)
        return TokenizedSide(ids, on_device.cumsum(0) - on_device, on_device)

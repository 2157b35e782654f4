"""Preparation of parallel text for training: cleaned, tokenized, and stored as memory-mapped ids."""

import contextlib
import functools
import hashlib
import itertools
import json
import multiprocessing
import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ...runner.core.atomic_files import atomic_directory
from ...runner.core.errors import DataError
from ...runner.core.progress import ProgressCallback, no_progress
from ..formats import parallel_text
from ..formats.parallel_text import Pair
from ..registry.missing import missing_data
from .prepared_corpus import MANIFEST, CorpusStatistics, PreparedCorpus, count_lengths

_CACHE_VERSION = 4  # increase it to discard older caches
_CHUNK_PAIRS = 1000  # per task of a worker process
_MIN_BYTES_FOR_WORKERS = 2_000_000  # less text is processed faster without worker processes
_MAX_TEST_TOKENS = 2000  # twenty times the longest sentence of newstest2014
_SIDES = ("source", "target")


class Vocabulary(Protocol):
    """How a task converts text to ids and back. It is learned from `split_words` of `normalize`d lines."""

    name: str

    @staticmethod
    def normalize(line: str, language: str) -> str:
        """Return the line in the form that `encode` and `split_words` take."""
        ...

    @staticmethod
    def split_words(normalized: str) -> Sequence[str]:
        """Return the words that are counted to learn a vocabulary."""
        ...

    @staticmethod
    def rejection_reason(source: str, target: str) -> str | None:
        """Return why a pair of normalized lines is dropped from training, or None."""
        ...

    @classmethod
    def learn(cls, counts: Mapping[str, int], size: int) -> Self:
        """Learn a vocabulary of `size` from the counts of words of both languages."""
        ...

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read what `write` writes."""
        ...

    def write(self, folder: Path) -> None:
        """Write the vocabulary's files."""
        ...

    def encode(self, normalized: str) -> list[int]:
        """Return the ids of a normalized line, without begin and end tokens."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids up to the first end token."""
        ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Corpus:
    """Parallel files: pairs (source, target) for training, one pair for testing, and the two language codes.

    A pair of the same file twice is one that holds both languages.
    """

    train: tuple[tuple[Path, Path], ...]
    test: tuple[Path, Path]
    languages: tuple[str, str]


def prepare(
    corpus: Corpus,
    vocabulary_class: type[Vocabulary],
    size: int,
    folder: Path,
    *,
    vocabulary_path: Path | None = None,
    workers: int = 1,
    progress: ProgressCallback = no_progress,
) -> PreparedCorpus:
    """Convert `corpus` to ids in a folder below `folder`, cached while files and settings are unchanged.

    `vocabulary_class` learns a vocabulary of `size` (merges or subtokens) from the training text, or reads the one at
    `vocabulary_path`. Training pairs that `vocabulary_class` rejects are dropped and counted by reason. Raises
    `DataError` for unreadable files, for an unusable test sentence, and if no training pair is left. Equal files give
    equal bytes for any number of workers.
    """
    digest = _digest(corpus, vocabulary_class, size, vocabulary_path)
    target = folder / f"{corpus.train[0][0].stem}-{vocabulary_class.name}-{digest}"
    if not target.exists():
        with atomic_directory(target) as temporary, _worker_pool(corpus, workers) as pool:
            _Preparation(corpus, vocabulary_class, temporary, pool, progress).run(size, vocabulary_path)
    try:
        manifest = json.loads((target / MANIFEST).read_text(encoding="utf-8"))
        return PreparedCorpus(target, CorpusStatistics.from_dict(manifest))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{target} is incomplete ({error}): delete it, and it is prepared again.") from error


class _Preparation:
    """Two passes over the training text: normalized lines and word counts, then ids."""

    def __init__(
        self,
        corpus: Corpus,
        vocabulary_class: type[Vocabulary],
        folder: Path,
        pool: Executor | None,
        progress: ProgressCallback,
    ) -> None:
        self._corpus, self._vocabulary_class, self._folder = corpus, vocabulary_class, folder
        self._pool, self._progress = pool, progress
        self._dropped: dict[str, int] = {}

    def run(self, size: int, vocabulary_path: Path | None) -> None:
        test = parallel_text.read_test(*self._corpus.test, self._corpus.languages)
        counts, pairs = self._normalize()
        if not pairs:
            first = self._corpus.train[0][0]
            reasons = "; ".join(f"{count} {reason}" for reason, count in self._dropped.items()) or "no line"
            raise DataError(f"{first} and its translation leave no pair to train on ({reasons}): use other files.")
        self._progress("learning the vocabulary", 0)
        vocabulary_class = self._vocabulary_class
        vocabulary = vocabulary_class.read(vocabulary_path) if vocabulary_path else vocabulary_class.learn(counts, size)
        if len(vocabulary) > 2**16:
            raise DataError(
                f"A vocabulary of {len(vocabulary):,} exceeds 65,536: set a smaller recipe.data.vocabulary_size."
            )
        (self._folder / "vocabulary").mkdir()
        vocabulary.write(self._folder / "vocabulary")
        self._encode(vocabulary, "train", self._read_normalized())
        source_language, target_language = self._corpus.languages
        normalized = (
            (
                vocabulary_class.normalize(pair.source, source_language),
                vocabulary_class.normalize(pair.target, target_language),
            )
            for pair in test
        )
        self._encode(vocabulary, "test", normalized)
        self._check_test_lengths()
        references = "".join(f"{pair.target}\n" for pair in test)
        (self._folder / "test.reference").write_text(references, encoding="utf-8", newline="\n")
        for side in _SIDES:
            self._normalized_path(side).unlink()
        train_lengths = np.stack([np.diff(self._read_offsets("train", side)) for side in _SIDES])
        test_lengths = tuple(sorted(np.diff(self._read_offsets("test", "source")).tolist(), reverse=True))
        statistics = CorpusStatistics(len(vocabulary), self._dropped, count_lengths(train_lengths), test_lengths)
        (self._folder / MANIFEST).write_text(json.dumps(asdict(statistics)) + "\n", encoding="utf-8")

    def _normalize(self) -> tuple[Counter[str], int]:
        """Write the normalized lines of the kept pairs; return the counts of their words and the number of pairs."""
        counts, kept, read = Counter[str](), 0, 0
        task = functools.partial(_normalize_pairs, self._vocabulary_class, self._corpus.languages)
        with contextlib.ExitStack() as files:
            sides = [files.enter_context(open(self._normalized_path(side), "w", encoding="utf-8")) for side in _SIDES]
            read_pairs = functools.partial(parallel_text.read_pairs, languages=self._corpus.languages)
            pairs = itertools.chain.from_iterable(itertools.starmap(read_pairs, self._corpus.train))
            for lines, words, dropped in self._map(task, pairs):
                for line in lines:
                    for file, text in zip(sides, line, strict=True):
                        file.write(f"{text}\n")
                counts.update(words)
                for reason, count in dropped.items():
                    self._dropped[reason] = self._dropped.get(reason, 0) + count
                kept += len(lines)
                read += len(lines) + sum(dropped.values())
                self._progress("cleaning and tokenizing text", read)
        return counts, kept

    def _encode(self, vocabulary: Vocabulary, split: str, lines: Iterable[tuple[str, str]]) -> None:
        offsets: tuple[list[int], list[int]] = ([0], [0])
        with contextlib.ExitStack() as files:
            stores = [files.enter_context(open(self._folder / f"{split}.{side}.ids", "wb")) for side in _SIDES]
            for sides in self._map(functools.partial(_encode, vocabulary), lines):
                for store, ends, (ids, lengths) in zip(stores, offsets, sides, strict=True):
                    store.write(ids)
                    ends += (np.cumsum(lengths) + ends[-1]).tolist()
                self._progress("writing ids", len(offsets[0]) - 1)
        for side, ends in zip(_SIDES, offsets, strict=True):
            np.array(ends, dtype="<i8").tofile(self._folder / f"{split}.{side}.offsets")

    def _check_test_lengths(self) -> None:
        """Reject overlong test sentences, such as a word of thousands of letters: beam search would take hours."""
        ends = self._read_offsets("test", "source")
        for number in np.flatnonzero(np.diff(ends) > _MAX_TEST_TOKENS):
            raise DataError(
                f"{self._corpus.test[0]} line {number + 1} has {ends[number + 1] - ends[number]:,} tokens: a "
                f"test sentence has at most {_MAX_TEST_TOKENS:,}."
            )

    def _read_offsets(self, split: str, side: str) -> NDArray[np.int64]:
        return np.fromfile(self._folder / f"{split}.{side}.offsets", dtype="<i8")

    def _map(self, task: Callable[[list[Any]], Any], items: Iterable[Any]) -> Iterator[Any]:
        """Yield `task(chunk)` for chunks of items, in order, reading ahead only what keeps the workers busy."""
        source = iter(items)
        chunks = iter(lambda: list(itertools.islice(source, _CHUNK_PAIRS)), [])
        if self._pool is None:
            yield from map(task, chunks)
            return
        pending: deque[Future[Any]] = deque()
        for chunk in chunks:
            pending.append(self._pool.submit(task, chunk))
            if len(pending) > 4 * (os.cpu_count() or 1):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def _normalized_path(self, side: str) -> Path:
        return self._folder / f"normalized.{side}"

    def _read_normalized(self) -> Iterator[tuple[str, str]]:
        with contextlib.ExitStack() as files:
            source, target = (
                files.enter_context(open(self._normalized_path(side), encoding="utf-8", newline="\n"))
                for side in _SIDES
            )
            for source_line, target_line in zip(source, target, strict=True):
                yield source_line[:-1], target_line[:-1]


def _normalize_pairs(
    vocabulary_class: type[Vocabulary], languages: tuple[str, str], pairs: list[Pair]
) -> tuple[list[tuple[str, str]], Counter[str], dict[str, int]]:
    """Return the normalized lines of kept pairs, their word counts, and the counts of dropped pairs by reason."""
    kept, words, dropped = [], Counter[str](), Counter[str]()
    for pair in pairs:
        source = vocabulary_class.normalize(pair.source, languages[0])
        target = vocabulary_class.normalize(pair.target, languages[1])
        if reason := vocabulary_class.rejection_reason(source, target):
            dropped[reason] += 1
            continue
        kept.append((source, target))
        words.update(vocabulary_class.split_words(source))
        words.update(vocabulary_class.split_words(target))
    return kept, words, dict(dropped)


def _encode(vocabulary: Vocabulary, lines: list[tuple[str, str]]) -> list[tuple[bytes, list[int]]]:
    """Return for each side of the pairs of normalized lines all ids as bytes, and the length of each line."""
    encoded = []
    for side in zip(*lines, strict=True):
        ids = [vocabulary.encode(line) for line in side]
        flat = np.fromiter(itertools.chain.from_iterable(ids), dtype="<u2")
        encoded.append((flat.tobytes(), [len(line) for line in ids]))
    return encoded


@contextlib.contextmanager
def _worker_pool(corpus: Corpus, workers: int) -> Iterator[Executor | None]:
    """Yield a process pool if the text is large enough. Processes are spawned, as the caller may have threads."""
    size = sum(path.stat().st_size for pair in corpus.train for path in pair if path.is_file())
    if workers < 2 or size < _MIN_BYTES_FOR_WORKERS:
        yield None
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _ignore_interrupt)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _ignore_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _digest(corpus: Corpus, vocabulary_class: type[Vocabulary], size: int, vocabulary_path: Path | None) -> str:
    """Return a digest of everything that the ids depend on."""
    files = [path for pair in (*corpus.train, corpus.test) for path in pair]
    if vocabulary_path:
        if not vocabulary_path.exists():
            raise missing_data(vocabulary_path, "name another with recipe.data.vocabulary, or null to learn one")
        files += sorted(vocabulary_path.iterdir()) if vocabulary_path.is_dir() else [vocabulary_path]
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files if path.is_file()]
    key = (_CACHE_VERSION, vocabulary_class.name, size, str(vocabulary_path), asdict(corpus), stats)
    return hashlib.sha256(repr(key).encode()).hexdigest()[:16]

"""Parallel text made ready to train on: cleaned, cut into pieces, and stored as numbers that need not be read whole."""

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

_VERSION = 2  # of the prepared form: another is prepared anew
_CHUNK = 1000  # pairs handed to a process at a time
_WORTH_PROCESSES = 2_000_000  # bytes of text: less is done sooner by this process alone
_MOST_TEST_PIECES = 2000  # twenty times the longest of newstest2014
_SIDES = ("source", "target")


class Vocabulary(Protocol):
    """How one task turns text into ids and back; `words` of `normal` lines are what it is learnt from."""

    name: str

    @staticmethod
    def normal(line: str, language: str) -> str:
        """The line as `encode` and `words` want it."""
        ...

    @staticmethod
    def words(normal: str) -> Sequence[str]:
        """What is counted to learn from."""
        ...

    @staticmethod
    def unfit(source: str, target: str) -> str | None:
        """Why a pair of normal lines is dropped from training; None where it is kept."""
        ...

    @classmethod
    def learn(cls, counts: Mapping[str, int], size: int) -> Self:
        """Learns from words and how often they occur, both languages together."""
        ...

    @classmethod
    def read(cls, folder: Path) -> Self:
        """What `write` wrote."""
        ...

    def write(self, folder: Path) -> None:
        """Writes the vocabulary's files."""
        ...

    def encode(self, normal: str) -> list[int]:
        """The ids of a normal line, without begin and end."""
        ...

    def decode(self, ids: Iterable[int], language: str) -> str:
        """Text from ids up to the first end."""
        ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Corpus:
    """Files of equal lines: `train` in pairs (source, target), one pair to `test` on, and two languages' codes."""

    train: tuple[tuple[Path, Path], ...]
    test: tuple[Path, Path]
    languages: tuple[str, str]


@dataclass(frozen=True)
class Tokens:
    """Sentences one after the other: `ids` uint16 [T], and where each begins and ends: `offsets` int64 [N + 1]."""

    ids: NDArray[np.uint16]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True)
class PreparedCorpus:
    """A prepared corpus: how many pairs were kept and dropped, and where its parts lie."""

    folder: Path
    pairs: int
    test_pairs: int
    dropped: Mapping[str, int]

    def tokens(self, split: str, side: str) -> Tokens:
        """`split` is train or test, `side` source or target; the ids are mapped from the disk, not read."""
        stem = self.folder / f"{split}.{side}"
        try:
            offsets = np.fromfile(stem.with_suffix(f".{side}.offsets"), dtype="<i8")
            return Tokens(np.memmap(stem.with_suffix(f".{side}.ids"), dtype="<u2", mode="r"), offsets)
        except (OSError, ValueError) as error:
            raise DataError(f"{self.folder} is incomplete ({error}): delete it, and it is prepared again.") from error

    def references(self) -> list[str]:
        """The test set's translations as they stand in the file."""
        return (self.folder / "test.reference").read_text(encoding="utf-8").split("\n")[:-1]


def prepare(
    corpus: Corpus,
    kind: type[Vocabulary],
    size: int,
    folder: Path,
    *,
    given: Path | None = None,
    workers: int = 1,
    progress: ProgressCallback = no_progress,
) -> PreparedCorpus:
    """`corpus` as ids in a folder below `folder`, made once and read again while files and settings are unchanged.

    `kind` learns a vocabulary of `size` (merges or sub-tokens) from the training text, or reads the one that is
    `given`. Unfit training pairs are dropped and counted by reason; raises `DataError` for what cannot be read, for a
    test set with an unfit line, and where nothing is left. Equal bytes come of equal files, whatever the workers.
    """
    place = folder / f"{corpus.train[0][0].stem}-{kind.name}-{_digest(corpus, kind, size, given)}"
    if not place.exists():
        with atomic_directory(place) as temporary, _processes(corpus, workers) as pool:
            _Preparation(corpus, kind, temporary, pool, progress).run(size, given)
    try:
        facts = json.loads((place / "facts.json").read_text())
        return PreparedCorpus(place, facts["pairs"], facts["test_pairs"], facts["dropped"])
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{place} is incomplete ({error}): delete it, and it is prepared again.") from error


class _Preparation:
    """Two passes over the training text: normal lines and counts of words, then ids."""

    def __init__(
        self, corpus: Corpus, kind: type[Vocabulary], folder: Path, pool: Executor | None, progress: ProgressCallback
    ) -> None:
        self._corpus, self._kind, self._folder = corpus, kind, folder
        self._pool, self._progress = pool, progress
        self._dropped: dict[str, int] = {}

    def run(self, size: int, given: Path | None) -> None:
        test = parallel_text.read_test(*self._corpus.test)
        counts, pairs = self._normalise()
        if not pairs:
            first = self._corpus.train[0][0]
            why = "; ".join(f"{count} {reason}" for reason, count in self._dropped.items()) or "no line"
            raise DataError(f"{first} and its translation leave no pair to train on ({why}): take other files.")
        self._progress("learning the vocabulary", 0)
        vocabulary = self._kind.read(given) if given else self._kind.learn(counts, size)
        if len(vocabulary) > 2**16:
            raise DataError(f"A vocabulary of {len(vocabulary):,} is more than 65,536: ask for fewer.")
        (self._folder / "vocabulary").mkdir()
        vocabulary.write(self._folder / "vocabulary")
        self._encode(vocabulary, "train", self._normal_lines())
        languages = self._corpus.languages
        normal = ((self._kind.normal(p.source, languages[0]), self._kind.normal(p.target, languages[1])) for p in test)
        self._encode(vocabulary, "test", normal)
        self._refuse_what_has_no_end()
        references = "".join(f"{pair.target}\n" for pair in test)
        (self._folder / "test.reference").write_text(references, encoding="utf-8", newline="\n")
        for side in _SIDES:
            self._normal_file(side).unlink()
        facts = {"pairs": pairs, "test_pairs": len(test), "dropped": self._dropped, "vocabulary": len(vocabulary)}
        (self._folder / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")

    def _normalise(self) -> tuple[Counter[str], int]:
        """Writes the kept pairs' normal lines; returns the counts of their words, and how many pairs they are."""
        counts, kept, read = Counter[str](), 0, 0
        task = functools.partial(_normalise, self._kind, self._corpus.languages)
        with contextlib.ExitStack() as files:
            sides = [files.enter_context(open(self._normal_file(side), "w", encoding="utf-8")) for side in _SIDES]
            pairs = itertools.chain.from_iterable(parallel_text.read_pairs(*both) for both in self._corpus.train)
            for lines, words, dropped in self._map(task, pairs):
                for line in lines:
                    for file, text in zip(sides, line, strict=True):
                        file.write(f"{text}\n")
                counts.update(words)
                for reason, count in dropped.items():
                    self._dropped[reason] = self._dropped.get(reason, 0) + count
                kept += len(lines)
                read += len(lines) + sum(dropped.values())
                self._progress("cleaning and cutting into words", read)
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

    def _refuse_what_has_no_end(self) -> None:
        """A word of thousands of letters: a translation may be longer than its sentence, and is searched for hours."""
        ends = np.fromfile(self._folder / "test.source.offsets", dtype="<i8")
        for number in np.flatnonzero(np.diff(ends) > _MOST_TEST_PIECES):
            raise DataError(
                f"{self._corpus.test[0]} line {number + 1} has {ends[number + 1] - ends[number]:,} pieces of words: a "
                f"test sentence has at most {_MOST_TEST_PIECES:,}."
            )

    def _map(self, task: Callable[[list[Any]], Any], items: Iterable[Any]) -> Iterator[Any]:
        """`task` of chunks, in order; no more chunks are read ahead than keep the processes busy."""
        source = iter(items)
        chunks = iter(lambda: list(itertools.islice(source, _CHUNK)), [])
        if self._pool is None:
            yield from map(task, chunks)
            return
        waiting: deque[Future[Any]] = deque()
        for chunk in chunks:
            waiting.append(self._pool.submit(task, chunk))
            if len(waiting) > 4 * (os.cpu_count() or 1):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _normal_file(self, side: str) -> Path:
        return self._folder / f"normal.{side}"

    def _normal_lines(self) -> Iterator[tuple[str, str]]:
        with contextlib.ExitStack() as files:
            source, target = (
                files.enter_context(open(self._normal_file(side), encoding="utf-8", newline="\n")) for side in _SIDES
            )
            for one, other in zip(source, target, strict=True):
                yield one[:-1], other[:-1]


def _normalise(
    kind: type[Vocabulary], languages: tuple[str, str], pairs: list[Pair]
) -> tuple[list[tuple[str, str]], Counter[str], dict[str, int]]:
    """Of some pairs: the normal lines of those that are kept, their words, and how many were dropped for what."""
    kept, words, dropped = [], Counter[str](), Counter[str]()
    for pair in pairs:
        reason = parallel_text.unfit(pair.source) or parallel_text.unfit(pair.target)
        if reason is None:
            source, target = kind.normal(pair.source, languages[0]), kind.normal(pair.target, languages[1])
            reason = kind.unfit(source, target)
        if reason is None:
            kept.append((source, target))
            words.update(kind.words(source))
            words.update(kind.words(target))
        else:
            dropped[reason.partition(" U+")[0]] += 1
    return kept, words, dict(dropped)


def _encode(vocabulary: Vocabulary, lines: list[tuple[str, str]]) -> list[tuple[bytes, list[int]]]:
    """Of some pairs of normal lines, for each side: all ids as bytes, and each line's length."""
    made = []
    for side in zip(*lines, strict=True):
        ids = [vocabulary.encode(line) for line in side]
        flat = np.fromiter(itertools.chain.from_iterable(ids), dtype="<u2")
        made.append((flat.tobytes(), [len(line) for line in ids]))
    return made


@contextlib.contextmanager
def _processes(corpus: Corpus, workers: int) -> Iterator[Executor | None]:
    """A pool where the text is worth one. Spawned, because whoever asks may have started threads."""
    size = sum(path.stat().st_size for pair in corpus.train for path in pair if path.is_file())
    if workers < 2 or size < _WORTH_PROCESSES:
        yield None
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _leave_ctrl_c_to_the_parent)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_ctrl_c_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _digest(corpus: Corpus, kind: type[Vocabulary], size: int, given: Path | None) -> str:
    """Of everything that the prepared ids depend on."""
    files = [path for pair in (*corpus.train, corpus.test) for path in pair]
    if given:
        if not given.exists():
            raise DataError(f"{given} is missing: name a vocabulary with recipe.data.vocabulary, or null to learn one.")
        files += sorted(given.iterdir()) if given.is_dir() else [given]
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files if path.is_file()]
    key = (_VERSION, kind.name, size, str(given), asdict(corpus), stats)
    return hashlib.sha256(repr(key).encode()).hexdigest()[:16]

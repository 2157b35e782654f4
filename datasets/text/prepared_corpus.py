"""A prepared parallel corpus: memory-mapped ids, and the statistics that a run reads before its clock starts."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...runner.core.errors import DataError

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Tokens:
    """Concatenated sentences: `ids` uint16 [T], and `offsets` int64 [N + 1] of their beginnings and ends."""

    ids: NDArray[np.uint16]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1


class LengthCount(NamedTuple):
    """The training pairs whose longer side has `tokens` tokens, and the sums of the tokens of their sides."""

    tokens: int
    pairs: int
    source_tokens: int
    target_tokens: int


@dataclass(frozen=True)
class CorpusStatistics:
    """What the manifest of a corpus holds: a run reads nothing else of it before its clock starts.

    `dropped` counts the training pairs that the filter of sentences dropped, by reason. `lengths` is the distribution
    of the others by the tokens of their longer side, `test_lengths` those of the test sources, longest first; both are
    without begin and end tokens.
    """

    vocab_size: int
    dropped: Mapping[str, int]
    lengths: tuple[LengthCount, ...]
    test_lengths: tuple[int, ...]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "CorpusStatistics":
        """Return the statistics that JSON holds."""
        lengths = tuple(LengthCount(*row) for row in values["lengths"])
        return cls(**{**values, "lengths": lengths, "test_lengths": tuple(values["test_lengths"])})

    @property
    def pairs(self) -> int:
        """The number of training pairs."""
        return sum(count.pairs for count in self.lengths)


def count_lengths(lengths: NDArray[np.int64]) -> tuple[LengthCount, ...]:
    """Return the distribution of the lengths [2, P] of pairs by their longer side."""
    values, group, pairs = np.unique(lengths.max(0), return_inverse=True, return_counts=True)
    tokens = np.zeros((2, len(values)), dtype=np.int64)
    for side, side_lengths in zip(tokens, lengths, strict=True):
        np.add.at(side, group, side_lengths)
    columns = (values.tolist(), pairs.tolist(), *tokens.tolist())
    return tuple(LengthCount(*row) for row in zip(*columns, strict=True))


@dataclass(frozen=True)
class PreparedCorpus:
    """A prepared corpus in `folder`, and the statistics in its manifest."""

    folder: Path
    statistics: CorpusStatistics

    def tokens(self, split: str, side: str) -> Tokens:
        """Return the tokens of a split (train, test) and side (source, target); the ids are memory-mapped."""
        stem = self.folder / f"{split}.{side}"
        try:
            offsets = np.fromfile(stem.with_suffix(f".{side}.offsets"), dtype="<i8")
            return Tokens(np.memmap(stem.with_suffix(f".{side}.ids"), dtype="<u2", mode="r"), offsets)
        except (OSError, ValueError) as error:
            raise DataError(f"{self.folder} is incomplete ({error}): delete it, and it is prepared again.") from error

    def content(self) -> list[Path]:
        """Return the files of vocabulary, ids and references, without the manifest, whose format may change."""
        return sorted(path for path in self.folder.rglob("*") if path.is_file() and path.name != MANIFEST)

    def references(self) -> list[str]:
        """Return the unchanged reference translations of the test set."""
        return (self.folder / "test.reference").read_text(encoding="utf-8").split("\n")[:-1]

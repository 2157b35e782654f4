"""One subword vocabulary for both languages, as preparing text wants it."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from ...datasets.text.subwords import Subwords, split

_FILE = "vocabulary.subwords"


class SharedVocabulary:
    """MLPerf's sub-tokens (datasets/subwords.py); nothing is tokenised before, and no pair is dropped."""

    name = "subwords"

    def __init__(self, subwords: Subwords) -> None:
        self._subwords = subwords

    def __len__(self) -> int:
        return len(self._subwords)

    @staticmethod
    def normal(line: str, language: str) -> str:
        """The line without the blanks around it, as the reference reads all text."""
        return line.strip()

    @staticmethod
    def words(normal: str) -> list[str]:
        """Runs of letters and digits, and what lies between."""
        return split(normal)

    @staticmethod
    def unfit(source: str, target: str) -> str | None:
        """The reference drops no pair for what it says."""
        return None

    @classmethod
    def learn(cls, counts: Mapping[str, int], size: int) -> Self:
        """About `size` sub-tokens."""
        return cls(Subwords.learn(counts, size))

    @classmethod
    def read(cls, place: Path) -> Self:
        """A folder that `write` wrote to, or the official file itself."""
        return cls(Subwords.read(place if place.is_file() else place / _FILE))

    def write(self, folder: Path) -> None:
        """Writes the vocabulary's file."""
        self._subwords.write(folder / _FILE)

    def encode(self, normal: str) -> list[int]:
        """The ids of a line, without the end."""
        return self._subwords.encode(normal)

    def decode(self, ids: Iterable[int], language: str) -> str:
        """Text from ids up to the first end."""
        return self._subwords.decode(ids)

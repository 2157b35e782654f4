"""One subword vocabulary for both languages."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from ...datasets.text.subwords import Subwords, split

_FILE = "vocabulary.subwords"


class SharedVocabulary:
    """MLPerf's sub-tokens (datasets/text/subwords.py), without a tokenizer before them."""

    name = "subwords"

    def __init__(self, subwords: Subwords) -> None:
        self._subwords = subwords

    def __len__(self) -> int:
        return len(self._subwords)

    @staticmethod
    def normalize(line: str, language: str) -> str:
        """Return the line without surrounding whitespace, as the reference reads all text."""
        return line.strip()

    @staticmethod
    def split_words(normalized: str) -> list[str]:
        """Split a line into runs of letters and digits, and the characters between them."""
        return split(normalized)

    @staticmethod
    def rejection_reason(source: str, target: str) -> str | None:
        """Return None: the reference drops no pair because of its content, not even an empty one."""
        return None

    @classmethod
    def learn(cls, counts: Mapping[str, int], size: int) -> Self:
        """Learn about `size` sub-tokens from word counts."""
        return cls(Subwords.learn(counts, size))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a folder that `write` wrote, or the official file itself."""
        return cls(Subwords.read(path if path.is_file() else path / _FILE))

    def write(self, folder: Path) -> None:
        """Write the vocabulary file to `folder`."""
        self._subwords.write(folder / _FILE)

    def encode(self, normalized: str) -> list[int]:
        """Return the ids of a line, without EOS."""
        return self._subwords.encode(normalized)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids up to the first EOS."""
        return self._subwords.decode(ids)

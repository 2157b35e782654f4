r"""The shared subword vocabulary of MLPerf's Transformer, in Tensor2Tensor's file format: read, learn, encode, decode.

Text is split into tokens: runs of letters and digits, or runs of anything else. A single space between two tokens is
left out. A token is escaped: `\\` is a backslash, `\u` an underscore, `\NNN;` the character of code point NNN, and `_`
ends the token. The vocabulary consists of pieces of escaped tokens, the subtokens.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from ...runner.core.atomic_files import atomic_write
from ...runner.core.errors import DataError

PAD, EOS = 0, 1
_RESERVED = ("<pad>", "<EOS>")
_ESCAPES = "\\_;u0123456789"  # needed to encode any text
_RUN = re.compile(r"[^\W_]+|[\W_]+")  # \w is categories L* and N* and the underscore
_ESCAPED = re.compile(r"\\(\\|u|[0-9]+;)")
_MAX_CACHED_TOKENS = 1 << 20  # about 300 MB
_MAX_SUBTOKEN_LENGTH = 100  # of learned subtokens: a line of 10,000 dashes has 50 million substrings
_SIZE_TOLERANCE = 0.01  # relative; ends the search for the wanted size


class Subwords:
    """A vocabulary: `tokens[id]` is a subtoken; ids 0 and 1 are padding and the end of a sentence."""

    def __init__(self, tokens: Sequence[str]):
        """`tokens` begin with the two reserved ones; raises `ValueError` if an escape character is missing."""
        self.tokens = list(tokens)
        self._ids = {token: number for number, token in enumerate(self.tokens) if number > EOS}
        missing = [character for character in _ESCAPES if character not in self._ids]
        if missing:
            raise ValueError(f"lacks the subtokens {' '.join(missing)}")
        self._alphabet = {token for token in self._ids if len(token) == 1 and token != "\n"}
        self._max_length = max(map(len, self._ids))
        self._cache: dict[str, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without `EOS`: for each token, from the left, the longest subtoken that fits."""
        ids: list[int] = []
        for token in split(text):
            token_ids = self._cache.get(token)
            if token_ids is None:
                pieces = _segment(_escape(token, self._alphabet), self._ids, self._max_length)
                token_ids = tuple(self._ids[piece] for piece in pieces)
                if len(self._cache) < _MAX_CACHED_TOKENS:
                    self._cache[token] = token_ids
            ids += token_ids
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids up to the first `EOS`; padding and ids beyond the vocabulary are skipped.

        A network with a padded vocabulary can produce such ids. Any text without lone surrogates is restored exactly
        from its `encode`d ids.
        """
        pieces = []
        for number in ids:
            if number == EOS:
                break
            if EOS < number < len(self.tokens):
                pieces.append(self.tokens[number])
        tokens = (_unescape(token) for token in "".join(pieces).split("_"))
        return _join([token for token in tokens if token])

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a vocabulary file: a quoted subtoken per line, `<pad>` and `<EOS>` first; raises `DataError`."""
        seen: dict[str, int] = {}
        for number, line in enumerate(_lines(path), start=1):
            token = line.removesuffix("\r")
            if not token.strip():
                raise DataError(f"{path} line {number} is empty: remove it, as every line is a quoted subtoken.")
            if len(token) < 3 or token[0] not in "'\"" or token[0] != token[-1]:
                raise DataError(f"{path} line {number} is not a quoted subtoken ({token[:60]!r}): expected '...'.")
            token = token[1:-1]
            if number <= len(_RESERVED):
                token = token.removesuffix("_")  # Tensor2Tensor writes <pad>_
                if token != _RESERVED[number - 1]:
                    raise DataError(
                        f"{path} line {number} is not '{_RESERVED[number - 1]}': "
                        "a vocabulary must begin with the lines '<pad>' and '<EOS>'."
                    )
            if seen.setdefault(token, number) != number:
                raise DataError(f"{path} line {number} repeats line {seen[token]} ({token!r}): keep one of the two.")
        if len(seen) < len(_RESERVED):
            raise DataError(f"{path} ends before line 2: a vocabulary must begin with the lines '<pad>' and '<EOS>'.")
        try:
            return cls(list(seen))
        except ValueError as error:
            raise DataError(
                f"{path} {error}, which escaping needs: it may be truncated; fetch or learn it again."
            ) from error

    def write(self, path: Path) -> None:
        """Write the file that `read` reads, atomically; raises `DataError` if it cannot be written."""
        with atomic_write(path) as temporary:
            temporary.write_bytes("".join(f"'{token}'\n" for token in self.tokens).encode())

    @classmethod
    def learn(cls, counts: Mapping[str, int], size: int = 32768, min_count: int | None = None, rounds: int = 4) -> Self:
        """Learn the vocabulary nearest to `size` subtokens, or that of subtokens with at least `min_count` occurrences.

        `counts` are the numbers of occurrences of the tokens of `split`, in any order. Time and memory grow with the
        number of distinct tokens: MLPerf's reference reads only 1 MB of each file. Raises `DataError` if there is no
        token, `ValueError` for a `min_count` below 1.
        """
        if min_count is not None and min_count < 1:
            raise ValueError(f"min_count is {min_count}: it must be 1 or more.")
        if not counts:
            raise DataError("There is no text to learn subtokens from: provide at least one line that is not empty.")
        # A line break would split a line of the file, and a lone surrogate cannot be written: both stay escaped.
        alphabet = {c for token in counts for c in token if c != "\n" and not _is_surrogate(c)} | set(_ESCAPES)
        escaped = {_escape(token, alphabet): count for token, count in counts.items()}
        if min_count is None:
            subtokens = _learn_size(escaped, alphabet, size - len(_RESERVED), rounds)
        else:
            subtokens = _Substrings(escaped, min_count).learn(alphabet, rounds)
        return cls([*_RESERVED, *subtokens])


def split(text: str) -> list[str]:
    """Return the tokens of a text. Single spaces are kept at both ends only, where decoding would not restore them."""
    runs = _RUN.findall(text)
    return [run for index, run in enumerate(runs) if run != " " or index in (0, len(runs) - 1)]


def _join(tokens: list[str]) -> str:
    """Return the text of tokens: two adjacent tokens of letters and digits had a space between them."""
    return "".join(
        f" {token}" if previous[:1].isalnum() and token[0].isalnum() else token
        for previous, token in pairwise(["", *tokens])
    )


def _escape(token: str, alphabet: set[str]) -> str:
    token = token.replace("\\", "\\\\").replace("_", "\\u")
    if not alphabet.issuperset(token):
        token = "".join(c if c in alphabet else f"\\{ord(c)};" for c in token)
    return token + "_"


def _unescape(escaped: str) -> str:
    return _ESCAPED.sub(_replace_escape, escaped)


def _replace_escape(match: re.Match[str]) -> str:
    """Return the character of an escape, or nothing for an invalid code point, which only a network produces."""
    if not match[1].endswith(";"):
        return "_" if match[1] == "u" else "\\"
    try:
        character = chr(int(match[1][:-1]))
    except (ValueError, OverflowError):
        return ""
    return "" if _is_surrogate(character) else character


def _is_surrogate(character: str) -> bool:
    return "\ud800" <= character <= "\udfff"


def _lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file; only a line feed ends one, as subtokens may be other Unicode separators."""
    if not path.is_file():
        raise DataError(f"{path} is missing: put the vocabulary file there, or name yours.")
    try:
        data = path.read_bytes()
        lines = data.decode().split("\n")
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): check its permissions.") from error
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path} line {number} is not UTF-8: fetch or learn the vocabulary again.") from error
    return lines if lines[-1] else lines[:-1]


def _segment(escaped: str, known: Collection[str], longest: int) -> list[str]:
    """Return the greedy longest matches from the left. Ends because every character of an escaped token is known."""
    pieces = []
    start = 0
    while start < len(escaped):
        end = min(len(escaped), start + longest)
        while escaped[start:end] not in known:
            end -= 1
        pieces.append(escaped[start:end])
        start = end
    return pieces


class _Level(NamedTuple):
    """The distinct strings of one length, numbered."""

    positions: np.ndarray  # where in the text a token has a string of this length, ascending
    numbers: np.ndarray  # the number of the string at each of these positions
    examples: np.ndarray  # for each string, one of its positions
    prefixes: np.ndarray  # for each string, the number of its prefix in the level before


class _Substrings:
    """The substrings of counted tokens: those of `min_count` or more occurrences, and their extensions by a character.

    The tokens are one text, so that array operations count and segment at all its positions at once. A string is at
    most as frequent as its prefix, so only frequent ones are extended.
    """

    def __init__(self, counts: Mapping[str, int], min_count: int) -> None:
        self._text, self._min_count = "".join(counts), min_count
        lengths = np.fromiter(map(len, counts), np.int64, len(counts))
        self._ends = np.cumsum(lengths)
        self._weights = np.repeat(np.fromiter(counts.values(), np.float64, len(counts)), lengths)
        positions = np.arange(len(self._text), dtype=np.int32)
        left = np.repeat(self._ends, lengths) - positions  # characters to the end of the token
        characters = np.frombuffer(self._text.encode("utf-32-le"), np.uint32)
        numbers = np.zeros_like(positions)
        self._levels: list[_Level] = []
        while len(positions) and len(self._levels) < _MAX_SUBTOKEN_LENGTH:
            length = len(self._levels) + 1
            strings = numbers.astype(np.int64) << 21 | characters[positions + length - 1]  # a code point has 21 bits
            _, examples, inverse = np.unique(strings, return_index=True, return_inverse=True)
            own = inverse.astype(np.int32)
            self._levels.append(_Level(positions, own, positions[examples], numbers[examples]))
            frequent = np.bincount(own, self._weights[positions]) >= min_count
            extended = frequent[own] & (left[positions] > length)
            positions, numbers = positions[extended], own[extended]

    def learn(self, alphabet: Iterable[str], rounds: int) -> list[str]:
        """Return subtokens by falling count; each round counts in segments of the round before."""
        counts = self._select(np.ones(len(self._text), bool))
        for _ in range(rounds - 1):
            counts = self._select(self._find_segments(counts))
        kept = dict.fromkeys(alphabet, 0)
        for length, (level, level_counts) in enumerate(zip(self._levels, counts, strict=True), start=1):
            found = np.flatnonzero(level_counts)
            for start, count in zip(level.examples[found].tolist(), level_counts[found].tolist(), strict=True):
                kept[self._text[start : start + length]] = count
        return sorted(kept, key=lambda string: (-kept[string], string))

    def _select(self, starts: np.ndarray) -> list[np.ndarray]:
        """Return by length the counts of the subtokens, and 0 for other strings: those frequent outside of longer ones.

        Only occurrences that begin where a segment begins are counted. A single character keeps the count that
        remains, however small. Sums are exact up to 2**53.
        """
        counts = []
        within: np.ndarray = np.zeros(len(self._levels[-1].examples))  # occurrences in longer subtokens
        for length, level in reversed(list(enumerate(self._levels, start=1))):
            begins = starts[level.positions]
            weights = self._weights[level.positions[begins]]
            remaining = np.bincount(level.numbers[begins], weights, len(level.examples)) - within
            if length > 1:
                remaining[remaining < self._min_count] = 0
                within = np.bincount(level.prefixes, remaining + within, len(self._levels[length - 2].examples))
            counts.append(remaining)
        return counts[::-1]

    def _find_segments(self, counts: Sequence[np.ndarray]) -> np.ndarray:
        """Return where segments begin: from the left of each token, the longest string with a count that fits."""
        longest = np.ones(len(self._text), np.int64)
        for length, (level, level_counts) in enumerate(zip(self._levels, counts, strict=True), start=1):
            longest[level.positions[level_counts[level.numbers] > 0]] = length
        starts, current, ends = np.zeros(len(self._text), bool), np.append(0, self._ends[:-1]), self._ends
        while len(current):
            starts[current] = True
            current = current + longest[current]
            inside = current < ends
            current, ends = current[inside], ends[inside]
        return starts


def _learn_size(escaped: dict[str, int], alphabet: set[str], size: int, rounds: int) -> list[str]:
    """Return subtokens, as close to `size` of them as a binary search over the minimum count gets.

    The counts of the kept subtokens of several characters refer to different positions, so at minimum count m there are
    at most (all characters)/m of them: beyond `high` the vocabulary is too small. Sizes are about proportional to 1/m,
    so the search bisects the logarithm of m.
    """
    characters = sum(len(token) * count for token, count in escaped.items())
    low, high = 1, characters // max(1, size - len(alphabet)) + 1
    nearest: list[str] = []
    while low <= high:
        middle = math.isqrt(low * high)
        subtokens = _Substrings(escaped, middle).learn(alphabet, rounds)
        if not nearest or abs(len(subtokens) - size) < abs(len(nearest) - size):
            nearest = subtokens
        if abs(len(subtokens) - size) <= _SIZE_TOLERANCE * size:
            break
        if len(subtokens) > size:
            low = middle + 1
        else:
            high = middle - 1
    return nearest

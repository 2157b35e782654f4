r"""The shared subword vocabulary of MLPerf's Transformer, in tensor2tensor's file format: read, learn, encode, decode.

A text is cut into tokens, runs of letters and digits or runs of anything else, and a lone space between two tokens is
left out. A token is escaped: `\\` is a backslash, `\u` an underscore, `\NNN;` the character of code point NNN, and `_`
ends the token. What the vocabulary holds are pieces of escaped tokens, the sub-tokens.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Self

from ...runner.core.atomic_files import atomic_write
from ...runner.core.errors import DataError

PAD, EOS = 0, 1
_RESERVED = ("<pad>", "<EOS>")
_ESCAPES = "\\_;u0123456789"  # characters that escaping writes: without them not every text can be encoded
_RUN = re.compile(r"[^\W_]+|[\W_]+")  # \w is categories L* and N* and the underscore
_ESCAPED = re.compile(r"\\(\\|u|[0-9]+;)")
_CACHED = 1 << 20  # tokens remembered with their ids: some 300 MB
_LONGEST = 100  # characters of a learnt sub-token: a line of 10,000 dashes has 50 million strings
_NEAR = 0.01  # of the wanted size: the search for it ends


class Subwords:
    """A vocabulary: `tokens[id]` is a sub-token; ids 0 and 1 are padding and the end of a sentence."""

    def __init__(self, tokens: Sequence[str]):
        """`tokens` as in the file, the two reserved ones first; `ValueError` if a character of the escapes is none."""
        self.tokens = list(tokens)
        self._ids = {token: number for number, token in enumerate(self.tokens) if number > EOS}
        missing = [character for character in _ESCAPES if character not in self._ids]
        if missing:
            raise ValueError(f"lacks the sub-tokens {' '.join(missing)}")
        self._alphabet = {token for token in self._ids if len(token) == 1 and token != "\n"}
        self._longest = max(map(len, self._ids))
        self._cache: dict[str, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without `EOS`: of each token, from its left, the longest sub-token that fits."""
        ids: list[int] = []
        for token in split(text):
            known = self._cache.get(token)
            if known is None:
                pieces = _segment(_escape(token, self._alphabet), self._ids, self._longest)
                known = tuple(self._ids[piece] for piece in pieces)
                if len(self._cache) < _CACHED:
                    self._cache[token] = known
            ids += known
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids up to the first `EOS`; padding and ids that are no sub-token's are passed over.

        A network whose vocabulary is padded can give such ids. Any text but lone surrogates comes back from `encode`
        as it was.
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
        """A vocabulary file: a sub-token in quotes a line, `<pad>` and `<EOS>` first; raises `DataError`."""
        seen: dict[str, int] = {}
        for number, line in enumerate(_lines(path), start=1):
            token = line.removesuffix("\r")
            if not token.strip():
                raise DataError(f"{path} line {number} is empty: take it out, as every line is a sub-token in quotes.")
            if len(token) < 3 or token[0] not in "'\"" or token[0] != token[-1]:
                raise DataError(f"{path} line {number} is no sub-token in quotes ({token[:60]!r}): expected '...'.")
            token = token[1:-1]
            if number <= len(_RESERVED):
                token = token.removesuffix("_")  # tensor2tensor writes <pad>_
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
                f"{path} {error}, which escaping needs: is it cut short? Fetch or learn it again."
            ) from error

    def write(self, path: Path) -> None:
        """Writes the file that `read` reads, whole or not at all; raises `DataError` if it cannot be written."""
        with atomic_write(path) as temporary:
            temporary.write_bytes("".join(f"'{token}'\n" for token in self.tokens).encode())

    @classmethod
    def learn(cls, counts: Mapping[str, int], size: int = 32768, min_count: int | None = None, rounds: int = 4) -> Self:
        """The vocabulary nearest to `size` sub-tokens, or that of sub-tokens met `min_count` times or more.

        `counts` says how often each token of `split` occurs; its order makes no difference. Time and memory go with the
        number of different tokens: MLPerf's reference reads 1 MB of each file, not all of it. Raises `DataError` if
        there is no token, `ValueError` for a minimum below 1.
        """
        if min_count is not None and min_count < 1:
            raise ValueError(f"min_count is {min_count}: it must be 1 or more.")
        if not counts:
            raise DataError("There is no text to learn sub-tokens from: give at least one line that is not empty.")
        # A line break would cut the file's line in two, and a lone surrogate cannot be written: both stay escaped.
        alphabet = {c for token in counts for c in token if c != "\n" and not _is_surrogate(c)} | set(_ESCAPES)
        escaped = {_escape(token, alphabet): count for token, count in counts.items()}
        if min_count is None:
            sub_tokens = _nearest(escaped, alphabet, size - len(_RESERVED), rounds)
        else:
            sub_tokens = _sub_tokens(escaped, alphabet, min_count, rounds)
        return cls([*_RESERVED, *sub_tokens])


def split(text: str) -> list[str]:
    """Tokens of a text. A lone space is kept at either end only, where decoding would not put one back."""
    runs = _RUN.findall(text)
    return [run for place, run in enumerate(runs) if run != " " or place in (0, len(runs) - 1)]


def _join(tokens: list[str]) -> str:
    """The text of tokens: two of letters and digits side by side had a space between them."""
    return "".join(
        f" {token}" if before[:1].isalnum() and token[0].isalnum() else token
        for before, token in pairwise(["", *tokens])
    )


def _escape(token: str, alphabet: set[str]) -> str:
    token = token.replace("\\", "\\\\").replace("_", "\\u")
    if not alphabet.issuperset(token):
        token = "".join(c if c in alphabet else f"\\{ord(c)};" for c in token)
    return token + "_"


def _unescape(escaped: str) -> str:
    return _ESCAPED.sub(_unescaped, escaped)


def _unescaped(match: re.Match[str]) -> str:
    """The character an escape stands for; nothing for a number that is none, which only a network writes."""
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
    """The lines of a UTF-8 file; only a line feed ends one, as sub-tokens may be other separators of Unicode."""
    if not path.is_file():
        raise DataError(f"{path} is missing: put the vocabulary file of sub-tokens there, or name yours.")
    try:
        data = path.read_bytes()
        lines = data.decode().split("\n")
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): check its rights.") from error
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path} line {number} is not UTF-8: fetch or learn the vocabulary again.") from error
    return lines if lines[-1] else lines[:-1]


def _segment(escaped: str, known: Collection[str], longest: int) -> list[str]:
    """Greedy longest match from the left. It ends because every character of an escaped token is known."""
    pieces = []
    start = 0
    while start < len(escaped):
        end = min(len(escaped), start + longest)
        while escaped[start:end] not in known:
            end -= 1
        pieces.append(escaped[start:end])
        start = end
    return pieces


def _nearest(escaped: dict[str, int], alphabet: set[str], size: int, rounds: int) -> list[str]:
    """Sub-tokens, as near to `size` of them as a binary search over the minimum count comes.

    The counts of the kept sub-tokens longer than a character are of different places, so at minimum m there are at most
    (all characters)/m of them: beyond `high` the vocabulary is too small. Sizes go about as 1/m, so the search halves
    the logarithm of m.
    """
    characters = sum(len(token) * count for token, count in escaped.items())
    low, high = 1, characters // max(1, size - len(alphabet)) + 1
    nearest: list[str] = []
    while low <= high:
        middle = math.isqrt(low * high)
        found = _sub_tokens(escaped, alphabet, middle, rounds)
        if not nearest or abs(len(found) - size) < abs(len(nearest) - size):
            nearest = found
        if abs(len(found) - size) <= _NEAR * size:
            break
        if len(found) > size:
            low = middle + 1
        else:
            high = middle - 1
    return nearest


def _sub_tokens(escaped: dict[str, int], alphabet: set[str], min_count: int, rounds: int) -> list[str]:
    """Sub-tokens by falling count: each round segments the tokens by the last one's and counts what could follow."""
    known = sorted(alphabet)
    for _ in range(rounds):
        known = _keep(_count(escaped, set(known), min_count), alphabet, min_count)
    return known


def _count(escaped: dict[str, int], known: set[str], min_count: int) -> list[dict[str, int]]:
    """By length - 1: how often each string begins where a segment does (within a token; up to `_LONGEST`).

    Strings of two characters and more that come to less than `min_count` are left out. A string is no more frequent
    than its beginning, so only places whose string was frequent are looked at again: most long ones are never made.
    """
    longest = max(map(len, known))
    places = []  # a token, its count, where its segments begin
    for token, count in escaped.items():
        starts = [0]
        for piece in _segment(token, known, longest):
            starts.append(starts[-1] + len(piece))
        places.append((token, count, starts[:-1]))
    levels: list[dict[str, int]] = []
    while places and len(levels) < _LONGEST:
        length = len(levels) + 1
        level: dict[str, int] = {}
        for token, count, starts in places:
            for start in starts:
                string = token[start : start + length]
                level[string] = level.get(string, 0) + count
        frequent = {string: count for string, count in level.items() if count >= min_count}
        levels.append(frequent if levels else level)
        places = [
            (token, count, kept)
            for token, count, starts in places
            if (kept := [s for s in starts if s + length < len(token) and token[s : s + length] in frequent])
        ]
    return levels


def _keep(levels: list[dict[str, int]], alphabet: set[str], min_count: int) -> list[str]:
    """The alphabet and, longest first, strings that are frequent apart from the longer ones kept before."""
    kept: dict[str, int] = {}
    for length in range(len(levels), 1, -1):
        for string, count in levels[length - 1].items():
            if count < min_count:
                continue
            kept[string] = count
            for end in range(1, length):
                levels[end - 1][string[:end]] -= count
    kept |= {character: levels[0].get(character, 0) for character in alphabet}
    return sorted(kept, key=lambda string: (-kept[string], string))

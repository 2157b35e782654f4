"""GNMT's text: Moses tokens cut into joint byte-pair pieces, and back (mlperf.md 12.4)."""

import contextlib
import functools
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sacremoses import MosesDetokenizer, MosesTokenizer
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from ...runner.core.errors import DataError

PAD, UNKNOWN, BEGIN, END = range(4)
_SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
# Moses' clean-corpus as the reference calls it: tokens of a side (and 1 at least), and what it leaves out unasked.
_MOST_TOKENS, _MOST_TIMES, _LONGEST_WORD = 80, 9, 1000
_JOINED = "@@"  # ends a piece that goes on in the next


class MosesBPE:
    """Merges of joint byte-pair encoding (Sennrich et al. 2016) and the vocabulary of pieces that they leave."""

    name = "moses_bpe"

    def __init__(self, merges: str, pieces: Sequence[str]) -> None:
        """`merges` is a codes file of subword-nmt; `pieces` in order of their ids after the four special ones."""
        self.merges, self.pieces = merges, [*_SPECIAL, *pieces]
        self._ids = {piece: number for number, piece in enumerate(self.pieces)}
        self._bpe = BPE(io.StringIO(merges), separator=_JOINED)
        self._cut = functools.cache(self._cut)  # type: ignore[method-assign] # words repeat

    def __len__(self) -> int:
        return len(self.pieces)

    def __reduce__(self) -> tuple[type, tuple[str, list[str]]]:
        return type(self), (self.merges, self.pieces[len(_SPECIAL) :])

    @staticmethod
    def normal(line: str, language: str) -> str:
        """Moses tokens with a blank between, special characters escaped as tokenizer.perl does."""
        return _tokenizer(language).tokenize(line, return_str=True)

    @staticmethod
    def words(normal: str) -> list[str]:
        """What is counted to learn from."""
        return normal.split()

    @staticmethod
    def unfit(source: str, target: str) -> str | None:
        """Why the reference drops a pair of normal lines; None where it keeps it."""
        sides = source.split(), target.split()
        shorter, longer = sorted(map(len, sides))
        if not 1 <= shorter <= longer <= _MOST_TOKENS:
            return f"has not 1 to {_MOST_TOKENS} tokens"
        if longer > _MOST_TIMES * shorter:
            return f"has one side more than {_MOST_TIMES} times as long as the other"
        if any(len(word) > _LONGEST_WORD for side in sides for word in side):
            return f"holds a word of more than {_LONGEST_WORD:,} characters"
        return None if _is_latin(source + target) else "holds characters outside Latin-1"

    @classmethod
    def learn(cls, counts: Mapping[str, int], size: int) -> "MosesBPE":
        """Learns `size` merges from words and how often they occur, both languages together."""
        listed = "\n".join(f"{word} {count}" for word, count in sorted(counts.items()))
        merges = io.StringIO()
        with contextlib.redirect_stderr(io.StringIO()):  # it says there when no pair is left to merge
            learn_bpe(io.StringIO(listed), merges, size, is_dict=True)
        cutter, pieces = cls(merges.getvalue(), []), Counter[str]()
        for word, count in counts.items():
            for piece in cutter._bpe.segment_tokens([word]):
                pieces[piece] += count
        return cls(merges.getvalue(), [piece for piece, _ in sorted(pieces.items(), key=lambda one: (-one[1], one[0]))])

    def encode(self, normal: str) -> list[int]:
        """The ids of a normal line, without begin and end."""
        return [number for word in normal.split() for number in self._cut(word)]

    def decode(self, ids: Iterable[int], language: str) -> str:
        """Text from ids up to the first end: pieces joined, escapes and tokenisation undone."""
        pieces = []
        for number in ids:
            if number == END:
                break
            if number not in (PAD, BEGIN) and number < len(self.pieces):
                pieces.append(self.pieces[number])
        text = " ".join(pieces).replace(f"{_JOINED} ", "").removesuffix(_JOINED)
        return _detokenizer(language).detokenize(text.split())

    def write(self, folder: Path) -> None:
        """Writes bpe.codes and vocabulary.txt."""
        (folder / "bpe.codes").write_text(self.merges, encoding="utf-8", newline="\n")
        pieces = "".join(f"{piece}\n" for piece in self.pieces[len(_SPECIAL) :])
        (folder / "vocabulary.txt").write_text(pieces, encoding="utf-8", newline="\n")

    @classmethod
    def read(cls, folder: Path) -> "MosesBPE":
        """What `write` wrote, or the reference's own files under these names."""
        codes, vocabulary = folder / "bpe.codes", folder / "vocabulary.txt"
        try:
            merges, listed = codes.read_text(encoding="utf-8"), vocabulary.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{folder} lacks bpe.codes or vocabulary.txt ({error}): prepare the text again.") from error
        for number, line in enumerate(merges.removesuffix("\n").split("\n"), start=1):
            if len(line.split(" ")) != 2:  # subword-nmt would end the process
                raise DataError(f"{codes} line {number} is no pair of pieces ({line[:60]!r}): prepare the text again.")
        pieces = listed.removesuffix("\n").split("\n")
        lines: dict[str, int] = {}
        for number, piece in enumerate(pieces, start=1):
            if not piece or " " in piece:
                raise DataError(
                    f"{vocabulary} line {number} is no piece ({piece[:60]!r}): one a line, without its count."
                )
            if lines.setdefault(piece, number) != number:
                raise DataError(f"{vocabulary} line {number} is there twice ({piece!r}): keep the first.")
        return cls(merges, pieces)

    def _cut(self, word: str) -> list[int]:
        return [self._ids.get(piece, UNKNOWN) for piece in self._bpe.segment_tokens([word])]


@functools.cache
def _tokenizer(language: str) -> MosesTokenizer:
    return MosesTokenizer(lang=language)


@functools.cache
def _detokenizer(language: str) -> MosesDetokenizer:
    return MosesDetokenizer(lang=language)


def _is_latin(text: str) -> bool:
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True

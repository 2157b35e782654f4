"""GNMT's text processing: Moses tokenization and joint byte-pair encoding (docs/mlperf_rules.md, GNMT)."""

import functools
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sacremoses import MosesDetokenizer, MosesTokenizer
from subword_nmt.apply_bpe import BPE

from ...runner.core.errors import DataError
from ...runner.core.found_files import UnreadableFile, read_text
from .byte_pairs import learn_merges

PAD, UNKNOWN, BEGIN, END = range(4)
_SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")
# Limits of Moses' clean-corpus-n.perl as MLPerf's reference calls it: at least 1 token on each side.
_MAX_TOKENS, _MAX_RATIO, _MAX_WORD_LENGTH = 80, 9, 1000
_NOT_PERL_SPACES = dict.fromkeys(range(0x1C, 0x20))  # spaces to Python but not to tokenizer.perl, which deletes them
_SEPARATOR = "@@"  # ends a piece that is continued by the next one


class MosesBPE:
    """Joint byte-pair encoding (Sennrich et al. 2016): merges, and the vocabulary of pieces that they produce."""

    name = "moses_bpe"

    def __init__(self, merges: str, pieces: Sequence[str]) -> None:
        """`merges` is the text of a subword-nmt codes file; `pieces` are in order of id and follow 4 special tokens."""
        self.merges, self.pieces = merges, [*_SPECIAL_TOKENS, *pieces]
        self._ids = {piece: number for number, piece in enumerate(self.pieces)}
        self._bpe = BPE(io.StringIO(merges), separator=_SEPARATOR)
        self._encode_word = functools.cache(self._encode_word)  # type: ignore[method-assign]

    def __len__(self) -> int:
        return len(self.pieces)

    def __reduce__(self) -> tuple[type, tuple[str, list[str]]]:
        return type(self), (self.merges, self.pieces[len(_SPECIAL_TOKENS) :])

    @staticmethod
    def normalize(line: str, language: str) -> str:
        """Return Moses tokens separated by spaces, with special characters escaped as tokenizer.perl does.

        Like tokenizer.perl it deletes U+0000 to U+001F; other separators count as spaces.
        """
        return _tokenizer(language).tokenize(line.translate(_NOT_PERL_SPACES), return_str=True)

    @staticmethod
    def split_words(normalized: str) -> list[str]:
        """Return the words that are counted to learn a vocabulary."""
        return normalized.split()

    @staticmethod
    def rejection_reason(source: str, target: str) -> str | None:
        """Return why MLPerf's reference drops a pair of normalized lines, or None."""
        sides = source.split(), target.split()
        shorter, longer = sorted(map(len, sides))
        if not 1 <= shorter <= longer <= _MAX_TOKENS:
            return f"does not have 1 to {_MAX_TOKENS} tokens"
        if longer > _MAX_RATIO * shorter:
            return f"has one side more than {_MAX_RATIO} times as long as the other"
        if any(len(word) > _MAX_WORD_LENGTH for side in sides for word in side):
            return f"contains a word of more than {_MAX_WORD_LENGTH:,} characters"
        return None if _is_latin(source + target) else "contains characters outside Latin-1"

    @classmethod
    def learn(cls, counts: Mapping[str, int], size: int) -> "MosesBPE":
        """Learn `size` merges from the counts of words of both languages."""
        merges = "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in learn_merges(counts, size))
        vocabulary, pieces = cls(merges, []), Counter[str]()
        for word, count in counts.items():
            for piece in vocabulary._bpe.segment_tokens([word]):
                pieces[piece] += count
        return cls(merges, [piece for piece, _ in sorted(pieces.items(), key=lambda item: (-item[1], item[0]))])

    def encode(self, normalized: str) -> list[int]:
        """Return the ids of a normalized line, without begin and end tokens."""
        return [number for word in normalized.split() for number in self._encode_word(word)]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids up to the first end token: pieces joined, escapes and tokenization undone.

        Moses' English rules apply to every language, because MLPerf's reference calls its detokenizer without one.
        """
        pieces = []
        for number in ids:
            if number == END:
                break
            if number not in (PAD, BEGIN) and number < len(self.pieces):
                pieces.append(self.pieces[number])
        text = " ".join(pieces).replace(f"{_SEPARATOR} ", "").removesuffix(_SEPARATOR)
        return _detokenizer().detokenize(text.split())

    def write(self, folder: Path) -> None:
        """Write bpe.codes and vocabulary.txt."""
        (folder / "bpe.codes").write_text(self.merges, encoding="utf-8", newline="\n")
        pieces = "".join(f"{piece}\n" for piece in self.pieces[len(_SPECIAL_TOKENS) :])
        (folder / "vocabulary.txt").write_text(pieces, encoding="utf-8", newline="\n")

    @classmethod
    def read(cls, folder: Path) -> "MosesBPE":
        """Read what `write` writes, or files of MLPerf's reference under these names."""
        codes, vocabulary = folder / "bpe.codes", folder / "vocabulary.txt"
        try:
            merges, listed = read_text(codes), read_text(vocabulary)
        except UnreadableFile as error:
            raise DataError(
                f"{folder} lacks bpe.codes or vocabulary.txt ({error}): name a folder with both; of WMT16's files they "
                "are bpe.32000 and vocab.bpe.32000."
            ) from error
        for number, line in enumerate(merges.removesuffix("\n").split("\n"), start=1):
            if len(line.split(" ")) != 2:  # subword-nmt would exit the process
                raise DataError(
                    f"{codes} line {number} is not a pair of pieces ({line[:60]!r}): prepare the text again."
                )
        pieces = listed.removesuffix("\n").split("\n")
        lines: dict[str, int] = {}
        for number, piece in enumerate(pieces, start=1):
            if not piece or " " in piece:
                raise DataError(
                    f"{vocabulary} line {number} is not a piece ({piece[:60]!r}): write one per line, without counts."
                )
            if lines.setdefault(piece, number) != number:
                raise DataError(f"{vocabulary} line {number} repeats a piece ({piece!r}): keep the first.")
        return cls(merges, pieces)

    def _encode_word(self, word: str) -> list[int]:
        return [self._ids.get(piece, UNKNOWN) for piece in self._bpe.segment_tokens([word])]


@functools.cache
def _tokenizer(language: str) -> MosesTokenizer:
    return MosesTokenizer(lang=language)


@functools.cache
def _detokenizer() -> MosesDetokenizer:
    return MosesDetokenizer(lang="en")


def _is_latin(text: str) -> bool:
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True

"""Text files whose lines are each other's translations: read strictly, and complained about by file and line."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...runner.core.errors import DataError
from .compressed import UNREADABLE, opened

# What no keyboard writes, and what other tools take for the end of a line; tabs count as blanks. The rest of the second
# block (0x80 to 0x9f) are dashes and quotes of another encoding, of which Common Crawl has many: nothing goes wrong.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]")
_MOST_WORDS = 1000  # of a test sentence: beyond, two lines were joined or it is no sentence


class Pair(NamedTuple):
    """Line `line` (from 1) of two files."""

    source: str
    target: str
    line: int


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file (plain, .gz, .xz or .bz2) without their ends; only a newline ends a line.

    Raises `DataError` for a file that is missing, cut short or in another encoding.
    """
    if not path.is_file():
        raise DataError(f"{path} is missing: timetrial data fetch brings sets, or name your text in recipe.data.")
    number = 0
    try:
        with opened(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                text = line.decode()
                yield (text.removeprefix("\ufeff") if number == 1 else text).rstrip("\r\n").replace("\t", " ")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} line {number} is not UTF-8 (byte 0x{error.object[error.start]:02x}): convert the file with iconv."
        ) from error
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read after line {number} ({error}): fetch it again.") from error


def read_pairs(source: Path, target: Path) -> Iterator[Pair]:
    """The lines of both files side by side; raises `DataError` where one has more."""
    sides = itertools.zip_longest(read_lines(source), read_lines(target))
    for number, (one, other) in enumerate(sides, start=1):
        if one is None or other is None:
            longer, shorter = (source, target) if other is None else (target, source)
            more = number + sum(1 for _ in sides)
            raise DataError(
                f"{longer} has {more} lines but {shorter} {number - 1}: line {number} has no translation; "
                "take both files from one release."
            )
        yield Pair(one, other, number)


def read_test(source: Path, target: Path) -> list[Pair]:
    """All pairs of a test set, none of which may be dropped; raises `DataError` naming the first unfit line."""
    pairs = []
    for pair in read_pairs(source, target):
        for path, text in ((source, pair.source), (target, pair.target)):
            if problem := unfit(text):
                raise DataError(f"{path} line {pair.line} {problem}: mend the line, test sentences are not dropped.")
            if len(text.split()) > _MOST_WORDS:
                raise DataError(
                    f"{path} line {pair.line} has {len(text.split()):,} words: a test sentence has at most "
                    f"{_MOST_WORDS:,}."
                )
        pairs.append(pair)
    if not pairs:
        raise DataError(f"{source} holds no sentence: a test needs some.")
    return pairs


def unfit(text: str) -> str | None:
    """Why a line cannot be used, as the end of a sentence about it; None where it can."""
    if not text.strip():
        return "is empty"
    if found := _CONTROL.search(text):
        return f"holds the control character U+{ord(found[0]):04X}"
    return None

"""Parallel text: two files whose lines are translations of each other. Errors name file and line."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...runner.core.errors import DataError
from ..registry.missing import missing_data
from .compressed import READ_ERRORS, open_compressed

# Control characters but the tab, and characters that other tools take for line ends. The rest of 0x80 to 0x9f
# are dashes and quotes of another encoding, which are frequent in Common Crawl and harmless.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]")
_MAX_WORDS = 1000  # of a test sentence; longer lines are joined lines or no sentences


class Pair(NamedTuple):
    """Line number `line` (from 1) of two files."""

    source: str
    target: str
    line: int


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file (uncompressed, .gz, .xz or .bz2) without line ends; only a newline ends a line.

    Raises `DataError` for a file that is missing, truncated or in another encoding.
    """
    if not path.is_file():
        raise missing_data(path, "name your text in recipe.data")
    number = 0
    try:
        with open_compressed(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                text = line.decode()
                yield (text.removeprefix("\ufeff") if number == 1 else text).rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} line {number} is not UTF-8 (byte 0x{error.object[error.start]:02x}): convert the file with iconv."
        ) from error
    except READ_ERRORS as error:
        raise DataError(f"{path} cannot be read after line {number} ({error}): fetch it again.") from error


def read_pairs(source: Path, target: Path) -> Iterator[Pair]:
    """Yield the lines of both files in pairs; raises `DataError` if one file has more lines."""
    lines = itertools.zip_longest(read_lines(source), read_lines(target))
    for number, (source_line, target_line) in enumerate(lines, start=1):
        if source_line is None or target_line is None:
            longer, shorter = (source, target) if target_line is None else (target, source)
            num_lines = number + sum(1 for _ in lines)
            raise DataError(
                f"{longer} has {num_lines} lines but {shorter} {number - 1}: line {number} has no translation; "
                "take both files from one release."
            )
        yield Pair(source_line, target_line, number)


def read_test(source: Path, target: Path) -> list[Pair]:
    """Return all pairs of a test set; raises `DataError` naming the first unusable line, as none may be dropped."""
    pairs = []
    for pair in read_pairs(source, target):
        for path, text in ((source, pair.source), (target, pair.target)):
            if problem := find_problem(text):
                raise DataError(f"{path} line {pair.line} {problem}: correct the line, test sentences are not dropped.")
            if len(text.split()) > _MAX_WORDS:
                raise DataError(
                    f"{path} line {pair.line} has {len(text.split()):,} words: a test sentence has at most "
                    f"{_MAX_WORDS:,}."
                )
        pairs.append(pair)
    if not pairs:
        raise DataError(f"{source} contains no sentence: name a test set with sentences.")
    return pairs


def find_problem(text: str) -> str | None:
    """Return why a line cannot be used, as the end of a sentence about it, or None."""
    if not text.strip():
        return "is empty"
    if match := _CONTROL.search(text):
        return f"contains the control character U+{ord(match[0]):04X}"
    return None

"""Parallel text. Errors name file and line.

Two files whose lines are translations of each other, or one file named as both: tab-separated columns, or JSON lines
whose objects hold a sentence under the code of each language.
"""

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...runner.core.errors import DataError
from ..registry.missing import missing_data
from .compressed import READ_ERRORS, open_compressed

# Control characters but the tab, and characters that other tools take for line ends. The rest of 0x80 to 0x9f
# are dashes and quotes of another encoding, which are frequent in Common Crawl and harmless.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]")
_MARKUP = re.compile(r"\s*<(\?xml|!doctype|srcset|refset|tstset|tmx|xliff|doc)\b", re.I)
_LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z]+)?")
_JSON_SUFFIXES = {".jsonl", ".ndjson", ".json"}
_MAX_WORDS = 1000  # of a test sentence; longer lines are joined lines or no sentences


class Pair(NamedTuple):
    """Line number `line` (from 1) of two files, or of one with both languages."""

    source: str
    target: str
    line: int


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file (uncompressed, .gz, .xz or .bz2) without line ends; only a newline ends a line.

    Raises `DataError` for a file that is missing, truncated, in another encoding, or of markup.
    """
    if not path.is_file():
        raise missing_data(path, "name your text in recipe.data")
    number = 0
    try:
        with open_compressed(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                text = line.decode().rstrip("\r\n")
                if number == 1:
                    text = text.removeprefix("\ufeff")
                    _refuse_markup(path, text)
                yield text
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} line {number} is not UTF-8 (byte 0x{error.object[error.start]:02x}): convert the file with iconv."
        ) from error
    except READ_ERRORS as error:
        raise DataError(f"{path} cannot be read after line {number} ({error}): fetch it again.") from error


def _refuse_markup(path: Path, first_line: str) -> None:
    if _MARKUP.match(first_line):
        raise DataError(f"{path} is markup: write the text of each sentence, without tags, as a line of a text file.")


def read_pairs(source: Path, target: Path, languages: Sequence[str]) -> Iterator[Pair]:
    """Yield the sentences of both files in pairs; one file that holds both `languages` is named twice.

    Raises `DataError` if one file has more lines, or for a line without one of the languages.
    """
    if source == target:
        yield from _read_rows(source, languages)
        return
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


def read_languages(path: Path) -> list[str]:
    """Return the languages that a file with both names in its header or its first object; empty if it names none."""
    first = next(read_lines(path), "")
    if _is_json(path):
        fields = [key for key, text in _sentences(path, 1, first).items() if isinstance(text, str) and key != "id"]
    else:
        fields = [field.strip() for field in first.split("\t")]
    named = [field for field in fields if _LANGUAGE.fullmatch(field)]
    return named if len(named) == 2 else []


def _read_rows(path: Path, languages: Sequence[str]) -> Iterator[Pair]:
    """Yield the pairs of a file with both languages: of JSON lines by their codes, or of columns.

    The columns are those that a header names; without one, the first is the source and the second the target.
    """
    columns = (0, 1)
    for number, line in enumerate(read_lines(path), start=1):
        if _is_json(path):
            sentences = _sentences(path, number, line)
            if missing := [language for language in languages if not isinstance(sentences.get(language), str)]:
                raise DataError(
                    f"{path} line {number} has no sentence {missing[0]!r}, only {', '.join(sentences) or 'none'}: "
                    "name its languages in recipe.data.languages."
                )
            yield Pair(sentences[languages[0]], sentences[languages[1]], number)
            continue
        fields = line.split("\t")
        if number == 1 and set(languages) <= set(map(str.strip, fields)):
            names = list(map(str.strip, fields))
            columns = names.index(languages[0]), names.index(languages[1])
            continue
        if len(fields) <= max(columns):
            raise DataError(
                f"{path} line {number} has {len(fields)} columns: separate source and target by a tab, or name two "
                "files."
            )
        yield Pair(fields[columns[0]], fields[columns[1]], number)


def _is_json(path: Path) -> bool:
    return not _JSON_SUFFIXES.isdisjoint(path.suffixes)


def _sentences(path: Path, number: int, line: str) -> dict[str, Any]:
    """Return the object of a line, or what it holds under `translation`, as data sets of Hugging Face do."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise DataError(f"{path} line {number} is not a JSON object: write one a line.") from error
    found = found.get("translation", found) if isinstance(found, dict) else found
    if not isinstance(found, dict):
        raise DataError(f"{path} line {number} is not a JSON object: write one a line.")
    return found


def read_test(source: Path, target: Path, languages: Sequence[str]) -> list[Pair]:
    """Return all pairs of a test set; raises `DataError` naming the first unusable line, as none may be dropped."""
    pairs = []
    for pair in read_pairs(source, target, languages):
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

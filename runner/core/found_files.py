"""Read files that others may have written: one way in, and one error for everything that is wrong with them.

A file must be regular, no larger than its kind ever is, and UTF-8, or UTF-16 with a byte order mark. It holds data and
nothing else: objects, lists, text and finite numbers, nested at most `MAX_DEPTH` deep, without references. Text is
returned with control and bidirectional characters made visible, so that no name changes a terminal or a page.
"""

import codecs
import csv
import io
import itertools
import json
import os
import stat
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from .errors import DataError

MAX_DEPTH = 32
MAX_NUMBER = 1e30  # of any number in a log or beside it; sums and products of these stay finite
MAX_BYTES = 1 << 24  # a run record of a thousand blocks takes half a megabyte
_MAX_YAML_BYTES = 1 << 18  # a configuration takes ten kilobytes
_MAX_NAME = 200  # characters
_SEPARATORS = "\t;,"  # of the columns of a table
_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # Unicode categories: control, format (bidirectional), surrogates, breaks


class UnreadableFile(DataError):
    """A file that cannot be used. Readers of many files pass over it, and the report names it in a finding."""

    def __init__(
        self, path: Path, reason: object, remedy: str = "remove or replace it", cannot: str = "be read"
    ) -> None:
        super().__init__(f"{make_visible(str(path))} cannot {cannot} ({reason}): {remedy}.")
        self.path = path


PassOver = Callable[[UnreadableFile], None]


def make_visible(text: str, keep: str = "") -> str:
    r"""Return `text` with control and bidirectional characters as escapes such as \x1b, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character in keep or unicodedata.category(character) not in _INVISIBLE
        else character.encode("unicode_escape").decode()
        for character in text
    )


def as_name(value: object) -> str:
    """Return `value` as one line of visible text, cut where no name is as long."""
    text = make_visible(" ".join(str(value)[: 10 * _MAX_NAME].split()))
    return text if len(text) <= _MAX_NAME else f"{text[: _MAX_NAME - 1]}…"


def as_data(value: Any, *, finite: bool = True, depth: int = 0) -> Any:
    """Return what a JSON or YAML parser returned, with visible text; line breaks and tabs stay.

    Raises ValueError for other types, deep nesting and numbers above `MAX_NUMBER`. Without `finite`, NaN and infinity
    are let through.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        return make_visible(value, keep="\n\t")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        if abs(value) <= MAX_NUMBER or (not finite and isinstance(value, float)):
            return value
        raise ValueError(f"it holds {str(value)[:40] if isinstance(value, float) else 'an integer'} beyond any result")
    if isinstance(value, list):
        return [as_data(entry, finite=finite, depth=depth + 1) for entry in value]
    if isinstance(value, dict):
        return {
            as_data(key, depth=depth + 1): as_data(entry, finite=finite, depth=depth + 1)
            for key, entry in value.items()
        }
    raise ValueError(f"it holds a {type(value).__name__}")


def open_regular(path: Path) -> io.BufferedReader:
    """Open a file to read bytes; raise `UnreadableFile` if it is absent or a pipe, device or folder."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would block
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return os.fdopen(descriptor, "rb")
        os.close(descriptor)
    except (OSError, ValueError) as error:
        raise UnreadableFile(path, getattr(error, "strerror", None) or error) from error
    raise UnreadableFile(path, "it is not a regular file")


def read_bytes(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a file; raise `UnreadableFile` if it is larger than `max_bytes`."""
    try:
        with open_regular(path) as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise UnreadableFile(path, error.strerror or error) from error
    if len(content) > max_bytes:
        raise UnreadableFile(path, f"it is larger than {max_bytes / 2**20:g} MiB")
    return content


def read_text(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """Return a text file as it stands, invisible characters included; raise `UnreadableFile`."""
    content = read_bytes(path, max_bytes)
    try:
        return decode(content)
    except UnicodeDecodeError as error:
        raise UnreadableFile(path, f"byte {error.start} is not {error.encoding.upper()}") from error


def decode(content: bytes, errors: str = "strict") -> str:
    """Return UTF-8, or UTF-16 with a byte order mark, as text without the mark; `errors` as of `bytes.decode`."""
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if is_utf16 else "utf-8-sig", errors)


def read_json(path: Path) -> Any:
    """Return the data in a JSON file, an empty object for an empty file; raise `UnreadableFile`."""
    text = read_text(path)
    try:
        return as_data(json.loads(text or "{}"))
    except (ValueError, RecursionError) as error:
        raise UnreadableFile(path, error) from error


def read_csv(path: Path) -> tuple[list[list[str]], str]:
    """Return the rows of a table, the names of its columns first, and the separator of its columns.

    Raises `UnreadableFile`, also for uneven rows.
    """
    try:
        rows, separator = split_csv(read_text(path))
    except csv.Error as error:
        raise UnreadableFile(path, error) from error
    for number, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise UnreadableFile(path, f"row {number} has more or fewer cells than the first row")
    filled = [any(column) for column in zip(*rows, strict=True)]
    return [list(itertools.compress(map(make_visible, row), filled)) for row in rows], separator


def split_csv(text: str) -> tuple[list[list[str]], str]:
    """Return the rows that are not empty, as stripped cells, and the separator; raise `csv.Error`.

    The separator is the one that gives the most columns, if it can be with as many cells in each row.
    """
    tables = {}
    for separator in _SEPARATORS:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        tables[separator] = [cells for row in rows if any(cells := [cell.strip() for cell in row])]

    def rank(separator: str) -> tuple[bool, int]:
        widths = [len(row) for row in tables[separator]] or [0]
        return min(widths) == max(widths) > 1, widths[0]

    separator = max(_SEPARATORS, key=rank)
    return tables[separator], separator


class _DataLoader(yaml.SafeLoader):
    """Loads YAML without references, which a short text can multiply without bound, and without dates."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - of the base class
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it holds references")
        return super().compose_node(parent, index)


def parse_yaml(text: str) -> Any:
    """Return the data in YAML text; raise ValueError for what is not data, interpolations (`${...}`) included."""
    try:
        value = as_data(yaml.load(text, Loader=_DataLoader))
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())[:_MAX_NAME]) from error
    if "${" in repr(value):
        raise ValueError("it holds an interpolation, ${...}, which is not resolved")
    return value


def read_config(path: Path) -> dict[str, Any]:
    """Return the configuration in a config.yaml as plain data; raise `UnreadableFile`. Nothing in it is resolved."""
    try:
        config = parse_yaml(read_text(path, _MAX_YAML_BYTES))
    except (ValueError, TypeError, KeyError, IndexError) as error:
        if isinstance(error, UnreadableFile):
            raise
        raise UnreadableFile(path, error) from error
    if not isinstance(config, dict):
        raise UnreadableFile(path, "it holds no keys")
    return config

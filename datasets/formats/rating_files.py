"""Rating files as people have them: separator, columns, quotes and the form of times are detected."""

import csv
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...runner.core.errors import DataError
from .compressed import READ_ERRORS, open_compressed

_SEPARATORS = ("::", "\t", ";", ",", r"\s+")
_ROLES = {  # names of columns without case and punctuation
    "user": {"user", "userid", "uid", "userindex", "customerid", "reviewerid", "visitorid"},
    "item": {"item", "itemid", "iid", "movie", "movieid", "product", "productid", "asin", "isbn", "bookid", "songid"},
    "rating": {"rating", "ratings", "score", "stars", "overall", "bookrating", "value"},
    "time": {"timestamp", "time", "date", "datetime", "ts", "unixreviewtime", "ratedat", "createdat"},
}
_NUMBER = re.compile(r"-?\d+([.,]\d*)?")
_ENCODING = "utf-8-sig"


@dataclass(frozen=True)
class Layout:
    """How a rating file is written: its separator, whether it has a header, and the place of each column it has."""

    separator: str
    has_header: bool
    columns: dict[str, int]


def detect(path: Path) -> Layout | None:
    """Return the layout of a rating file; None if it has no two lines of the same number of fields.

    Raises `DataError` for a header without a user or an item.
    """
    try:
        with open_compressed(path, "rt", encoding=_ENCODING, errors="replace") as file:
            lines = [line.rstrip("\r\n") for line in itertools.islice(filter(str.strip, file), 2)]
    except READ_ERRORS:
        return None
    for separator in _SEPARATORS:
        rows = [_split(line, separator) for line in lines]
        if len(rows) == 2 and len(rows[0]) == len(rows[1]) >= 2:
            return _layout(path, separator, rows[0])
    return None


def read(path: Path, layout: Layout) -> tuple[pd.DataFrame, list[str]]:
    """Return columns user, item and time (int64), in file order, and a sentence for each thing that was mended.

    Users and items are integers or text. Times are numbers of any unit or dates. Raises `DataError` naming the first
    line that is not a rating.
    """
    separator, header = layout.separator, 0 if layout.has_header else None
    options: dict[str, Any] = {"engine": "python"} if separator == "::" else {"low_memory": False}
    try:
        frame = pd.read_csv(path, sep=separator, header=header, encoding=_ENCODING, index_col=False, **options)
    except UnicodeDecodeError as error:
        raise not_utf8(path) from error
    except (ValueError, OverflowError, *READ_ERRORS) as error:
        raise DataError(f"{path} cannot be read ({' '.join(str(error).split())}).") from error
    frame = frame.iloc[:, list(layout.columns.values())]
    frame.columns = pd.Index(list(layout.columns))
    notes = []
    invalid = frame.isna().any(axis=1)
    for role in ("user", "item"):
        if not pd.api.types.is_numeric_dtype(frame[role]) and _NUMBER.fullmatch(str(frame[role].iloc[0])):
            invalid |= pd.to_numeric(frame[role], errors="coerce").isna()
    if "rating" in frame and not pd.api.types.is_numeric_dtype(frame["rating"]):
        invalid |= pd.to_numeric(frame["rating"].astype(str).str.replace(",", "."), errors="coerce").isna()
    if "time" not in frame:
        notes.append(f"{path} has no times: of a user's ratings, the last line counts as the latest.")
        frame["time"] = np.arange(len(frame))
    elif not pd.api.types.is_numeric_dtype(frame["time"]):
        times = pd.to_datetime(frame["time"], errors="coerce", utc=True, format="mixed")
        invalid |= times.isna()
        frame["time"] = times.astype("int64")
    if invalid.any():
        raise DataError(_describe_line(path, layout, int(np.flatnonzero(invalid)[0])))
    frame["time"] = np.floor(frame["time"]).astype(np.int64)
    return frame[["user", "item", "time"]], notes


def not_utf8(path: Path) -> DataError:
    """Return the error for a file in another encoding."""
    return DataError(f"{path} is not UTF-8: convert the file with iconv, for example from UTF-16 or Latin-1.")


def _layout(path: Path, separator: str, first: Sequence[str]) -> Layout:
    """Return the layout of a file whose first line has these fields; without a header, MovieLens' order is assumed."""
    names = [re.sub(r"[^a-z]", "", field.lower()) for field in first]
    columns = {role: names.index(name) for role, known in _ROLES.items() for name in names if name in known}
    if not columns and all(map(_NUMBER.fullmatch, first[:2])):
        return Layout(separator, False, dict(zip(_ROLES, range(len(first)), strict=False)))
    if not {"user", "item"} <= columns.keys():
        raise DataError(
            f"{path} does not begin with the line userId,movieId,rating,timestamp or the like, but with "
            f"{', '.join(first)[:60]!r}: name its columns so; rating and timestamp may be missing."
        )
    return Layout(separator, True, columns)


def _split(line: str, separator: str) -> list[str]:
    if len(separator) == 1:
        fields = next(csv.reader([line], delimiter=separator), [])
    else:
        fields = line.split() if separator == r"\s+" else line.split(separator)
    return [field.strip().strip('"') for field in fields]


def _describe_line(path: Path, layout: Layout, row: int) -> str:
    with open_compressed(path, "rt", encoding=_ENCODING, errors="replace") as file:
        filled = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
        number, line = next(itertools.islice(filled, row + layout.has_header, None))
    expected = " and ".join(layout.columns)
    return f"{path} line {number} is not a rating ({line.strip()[:60]!r}): expected {expected} in columns of their own."

"""MovieLens ratings from their original files (`ratings.csv`, `ratings.dat`), and their leave-one-out split."""

import contextlib
import hashlib
import json
import os
import re
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...runner.core.atomic_files import atomic_write
from ...runner.core.errors import DataError
from ..registry.missing import missing_data
from . import rating_files
from .compressed import READ_ERRORS, open_compressed

_HEADER = ["userId", "movieId", "rating", "timestamp"]
HIT_RANK = 10  # a hit is a held-out item among the first of a ranking (MLPerf v0.5)
_MAX_CHANCE = 0.05  # hit rate of a ranking by chance that is not worth a word
_PARTS = 1024  # of users, whose positives the manifest counts


@dataclass
class Split:
    """Leave-one-out split of implicit feedback; users and items are numbered from 0 in order of first appearance.

    `users`, `items`: int32 [P], training positives sorted by user; `held_out`: int32 [U], each user's latest item.
    `num_repeated` ratings of the same item by the same user were left out.
    """

    users: NDArray[np.int32]
    items: NDArray[np.int32]
    held_out: NDArray[np.int32]
    num_users: int
    num_items: int
    num_repeated: int = 0


class Sizes(NamedTuple):
    """The numbers of users, items and training positives of a split.

    `positives_before` counts the positives of the first k * users // n users, for k from 0 to n. `notes` are sentences
    on what was mended in the file.
    """

    users: int
    items: int
    positives: int
    positives_before: Sequence[int]
    notes: Sequence[str] = ()

    def share_users(self, ranks: int) -> tuple[list[int], list[int]]:
        """Return the bounds of each rank's users and of their positives, `ranks` + 1 numbers each.

        Ranks get about equally many positives.
        """
        parts = len(self.positives_before) - 1
        targets = [self.positives * rank / ranks for rank in range(1, ranks)]
        nearest = [
            min(range(parts + 1), key=lambda place: abs(self.positives_before[place] - target)) for target in targets
        ]
        bounds = [0, *nearest, parts]
        return [self.users * place // parts for place in bounds], [self.positives_before[place] for place in bounds]


def count_sizes(users: NDArray[np.int32], num_users: int, num_items: int) -> Sizes:
    """Return the sizes of a split whose training positives are those of `users`, in ascending order."""
    parts = min(num_users, _PARTS)
    bounds = [num_users * part // parts for part in range(parts + 1)]
    return Sizes(num_users, num_items, users.size, np.searchsorted(users, bounds).tolist())


def read_ratings(path: Path) -> pd.DataFrame:
    """Return columns user, item, time (int64) in file order; raises `DataError` naming the first invalid line.

    Files other than MovieLens' are read by `rating_files`, whose sentences on what it mended are in `attrs["notes"]`.
    """
    if not path.is_file():
        raise missing_data(path, "name your file with recipe.data.path=FILE")
    separated_by_colons = is_separated_by_colons(path)
    if not separated_by_colons and not _is_movielens_csv(path) and (layout := rating_files.detect(path)):
        frame, notes = rating_files.read(path, layout)
        frame.attrs["notes"] = notes
        return frame
    # pandas parses "::" slowly. Split at ":", every second field is empty.
    try:
        if separated_by_colons:
            types: dict[Any, Any] = dict.fromkeys((0, 2, 6), np.int64)
            frame = pd.read_csv(path, sep=":", header=None, index_col=False, dtype=types)
            if frame.shape[1] != 7 or frame[[1, 3, 5]].notna().any(axis=None):
                raise ValueError("fields that are not separated by ::")
            frame = frame[[0, 2, 4, 6]]
        else:
            types = dict.fromkeys((*_HEADER[:2], _HEADER[3]), np.int64)
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)  # raised for a fifth field
                frame = pd.read_csv(path, header=0, index_col=False, dtype=types)
    except pd.errors.EmptyDataError as error:
        raise DataError(f"{path} contains no rating.") from error
    except UnicodeDecodeError as error:
        raise rating_files.not_utf8(path) from error
    except (ValueError, OverflowError, Warning, *READ_ERRORS) as error:
        raise DataError(
            _first_bad_line(path, separated_by_colons) or f"{path} cannot be read ({str(error).strip()})."
        ) from error
    if not separated_by_colons and list(frame.columns) != _HEADER:
        raise DataError(f"{path} does not begin with the line {','.join(_HEADER)}: it is not a MovieLens ratings.csv.")
    frame.columns = pd.Index(["user", "item", "rating", "time"])
    if frame.empty:
        raise DataError(f"{path} contains no rating.")
    negative = (frame[["user", "item", "time"]] < 0).any(axis=None)
    if negative or frame["rating"].isna().any() or not pd.api.types.is_numeric_dtype(frame["rating"]):
        raise DataError(_first_bad_line(path, separated_by_colons) or f"{path} contains a rating that is not a number.")
    return frame[["user", "item", "time"]]


def is_separated_by_colons(path: Path) -> bool:
    """Return whether a file has lines like `ratings.dat`, user::item::rating::time, and no header."""
    return ".dat" in path.suffixes


def _is_movielens_csv(path: Path) -> bool:
    """Return whether the file begins with MovieLens' header and a line whose time is a number, or nearly so."""
    for number, line in _lines(path):
        if number == 1 and line.rstrip("\r\n") != ",".join(_HEADER):
            return False
        if number == 2:
            return not re.search(r"\d-\d+-\d|,\d+\.\d+\s*$", line)
    return True


def leave_one_out(ratings: pd.DataFrame, min_ratings_per_user: int, name: str) -> Split:
    """Hold out each user's latest rating, as MLPerf v0.5's NCF does.

    Of equal times, the last in the file is taken. This is a choice: the reference sorts by time with an unstable sort,
    which leaves the order of equal times undefined.

    Of several ratings of an item by a user, the latest counts. Then users with fewer than `min_ratings_per_user`
    ratings are dropped. Raises `DataError` for a user left with one rating, which leaves none to train on.
    """
    if (num_repeated := int(ratings.duplicated(["user", "item"]).sum())) > 0:
        latest = ratings.sort_values("time", kind="stable").drop_duplicates(["user", "item"], keep="last")
        ratings = latest.sort_index()
    counts = ratings["user"].value_counts()
    kept = ratings[ratings["user"].map(counts) >= min_ratings_per_user]
    if kept.empty:
        raise DataError(
            f"{name} has no user with {min_ratings_per_user} ratings or more: lower recipe.data.min_ratings_per_user."
        )
    single = counts[(counts == 1) & (counts >= min_ratings_per_user)]
    if len(single):
        raise DataError(
            f"{name}: user {single.index[0]} has one rating, which leaves none to train on: "
            "drop such users with recipe.data.min_ratings_per_user=2."
        )
    users, _ = pd.factorize(kept["user"])
    items, unique_items = pd.factorize(kept["item"])
    order = np.lexsort((np.arange(len(kept)), kept["time"].to_numpy(), users))
    users, items = users[order].astype(np.int32), items[order].astype(np.int32)
    last = np.append(users[1:] != users[:-1], True)
    return Split(users[~last], items[~last], items[last], int(users[-1]) + 1, len(unique_items), num_repeated)


def check_items(source: Path, num_items: int) -> list[str]:
    """Return a sentence if chance alone hits often; raise `DataError` if there are so few items that it always does."""
    if num_items <= HIT_RANK:
        raise DataError(
            f"{source} has {num_items} items, all of which are among the first {HIT_RANK} of a ranking: the hit rate "
            f"needs more than {HIT_RANK}."
        )
    if num_items >= HIT_RANK / _MAX_CHANCE:
        return []
    return [
        f"{source} has {num_items} items: a ranking by chance has a hit rate of {HIT_RANK / num_items:.0%} or more."
    ]


def prepare(source: Path, folder: Path, min_ratings_per_user: int) -> Path:
    """Return the path of an .npz file in `folder` with the split of `source`, cached while the source is unchanged.

    Its sizes are in a manifest beside it, so that they can be read without opening the data.
    """
    if not source.is_file():
        read_ratings(source)
    stat = source.stat()
    key = f"{source.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{min_ratings_per_user}|5"
    prepared = folder / f"{source.parent.name}-{hashlib.sha256(os.fsencode(key)).hexdigest()[:16]}.npz"
    if prepared.exists():
        return prepared
    ratings = read_ratings(source)
    split = leave_one_out(ratings, min_ratings_per_user, str(source))
    notes = list(ratings.attrs.get("notes", []))
    if split.num_repeated:
        notes.append(f"{source} repeats {split.num_repeated:,} ratings of an item by a user: the latest one counts.")
    sizes = count_sizes(split.users, split.num_users, split.num_items)._replace(notes=notes)
    text = json.dumps(sizes._asdict())
    with atomic_write(_manifest_path(prepared)) as temporary:
        temporary.write_text(f"{text}\n{zlib.crc32(text.encode())}\n", encoding="utf-8")
    with atomic_write(prepared) as temporary, open(temporary, "wb") as file:
        np.savez(file, users=split.users, items=split.items, held_out=split.held_out)
    return prepared


def read_sizes(prepared: Path) -> Sizes:
    """Read the sizes of a prepared split from its manifest."""
    path = _manifest_path(prepared)
    try:
        text, checksum = path.read_text(encoding="utf-8").splitlines()
        if zlib.crc32(text.encode()) != int(checksum):
            raise ValueError("its checksum differs")
        return Sizes(**json.loads(text))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} cannot be read ({error}): delete {prepared}, and it is prepared again.") from error


def read_split(prepared: Path) -> Split:
    """Read a prepared split."""
    sizes = read_sizes(prepared)
    with np.load(prepared) as file:
        return Split(file["users"], file["items"], file["held_out"], sizes.users, sizes.items)


def _manifest_path(prepared: Path) -> Path:
    return prepared.with_suffix(".manifest.json")


def _first_bad_line(path: Path, separated_by_colons: bool) -> str | None:
    """Return a sentence about the first invalid line, found by a slow parser, or None."""
    separator = "::" if separated_by_colons else ","
    rating = re.compile(separator.join((r"\d+", r"\d+", r"-?\d+(\.\d*)?", r"\d+")) + r"\s*")
    for number, line in _lines(path):
        if not line.strip() or (number == 1 and not separated_by_colons):
            continue
        if not rating.fullmatch(line):
            shown = line.strip()[:60]
            expected = separator.join(("user", "item", "rating", "time"))
            return f"{path} line {number} is not a rating ({shown!r}): expected {expected}."
    return None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with contextlib.suppress(*READ_ERRORS), open_compressed(path, "rt", encoding="utf-8", errors="replace") as file:
        yield from enumerate(file, start=1)

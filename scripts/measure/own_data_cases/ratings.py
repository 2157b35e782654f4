"""Rating files."""

import gzip
import lzma
from collections.abc import Iterator
from typing import Any

from .case import MENDED, REFUSED, WORKS, Case, file

_ROWS = [(user, user * 3 + place, 4, 1_000_000_000 + 60 * place) for user in range(1, 9) for place in range(5)]


def _table(separator: str, header: str = "", row: str = "{0}{s}{1}{s}{2}{s}{3}", rows: Any = _ROWS) -> str:
    lines = [header.replace(",", separator)] if header else []
    return "".join(f"{line}\n" for line in [*lines, *(row.format(*values, s=separator) for values in rows)])


def cases() -> Iterator[Case]:
    """Yield rating files."""
    # -> Iterator[Case]:
    head = "userId,movieId,rating,timestamp"
    csv = _table(",", head)
    latest = "no times: of a user's ratings, the last line counts"
    files: list[tuple[str, str, str, str, str | bytes]] = [
        ("MovieLens ratings.csv", WORKS, "", "ratings.csv", csv),
        ("MovieLens ratings.dat", WORKS, "", "ratings.dat", _table("::")),
        ("MovieLens-100K u.data", WORKS, "", "u.data", _table("\t")),
        (
            "the 20M file with quoted ISO times",
            WORKS,
            "",
            "rating.csv",
            _table(
                ",",
                '"userId","movieId","rating","timestamp"',
                '{0},{1},{2},"2005-04-02 23:5{4}:07"',
                [(*row, index % 10) for index, row in enumerate(_ROWS)],
            ),
        ),
        ("separated by spaces", WORKS, "", "a.txt.csv", _table(" ")),
        ("semicolons and decimal commas", WORKS, "", "a.csv", _table(";", head, "{0}{s}{1}{s}{2},5{s}{3}")),
        ("pandas' index column", WORKS, "", "a.csv", _table(",", f",{head}", "0,{0},{1},{2},{3}")),
        ("columns user, item", MENDED, latest, "a.csv", _table(",", "user,item", "{0},{1}")),
        (
            "Amazon's reviewerID, asin, overall",
            WORKS,
            "",
            "a.csv",
            _table(",", "reviewerID,asin,overall,unixReviewTime", "A{0},B00{1},{2},{3}"),
        ),
        (
            "Book-Crossing",
            MENDED,
            latest,
            "a.csv",
            _table(";", '"User-ID","ISBN","Book-Rating"', '"{0}"{s}"01951{1}"{s}"{2}"'),
        ),
        (
            "RecBole's .inter",
            WORKS,
            "",
            "a.inter",
            _table("\t", "user_id:token,item_id:token,rating:float,timestamp:float"),
        ),
        ("times in milliseconds", WORKS, "", "a.csv", _table(",", head, "{0},{1},{2},{3}000")),
        ("times as floats", WORKS, "", "a.csv", _table(",", head, "{0},{1},{2},{3}.25")),
        ("times as ISO 8601 with Z", WORKS, "", "a.csv", _table(",", head, "{0},{1},{2},2001-02-03T04:05:06Z")),
        ("ids as text", WORKS, "", "a.csv", _table(",", "user,item,rating,time", "u-{0},it-{1},{2},{3}")),
        ("ids of 64 bits", WORKS, "", "a.csv", _table(",", head, "900000000000{0},800000000000{1},{2},{3}")),
        ("byte order mark and CRLF", WORKS, "", "a.csv", ("\ufeff" + csv.replace("\n", "\r\n")).encode()),
        ("compressed by gzip", WORKS, "", "ratings.csv.gz", gzip.compress(csv.encode())),
        ("compressed by xz", WORKS, "", "ratings.csv.xz", lzma.compress(csv.encode())),
        (
            "repeated ratings",
            MENDED,
            "repeated ratings of an item by a user",
            "ratings.csv",
            csv + "1,3,5,1000000900\n",
        ),
        ("a user with one rating", MENDED, "dropped by min_ratings_per_user=2", "ratings.csv", csv + "99,3,5,9\n"),
        (
            "ten items",
            REFUSED,
            "the hit rate needs more than 10",
            "ratings.csv",
            _table(",", head, rows=[(user, item, 4, item) for user in range(5) for item in range(10)]),
        ),
        ("an empty file", REFUSED, "contains no rating", "ratings.csv", ""),
        ("only a header", REFUSED, "contains no rating", "ratings.csv", f"{head}\n"),
        ("a broken line", REFUSED, "line 42 is not a rating", "ratings.csv", csv + "1,3\n"),
        ("an empty user", REFUSED, "line 42 is not a rating", "ratings.csv", csv + ",3,4,5\n"),
        ("UTF-16", REFUSED, "is not UTF-8", "ratings.csv", csv.encode("utf-16")),
        ("other names in the header", REFUSED, "name its columns so", "a.csv", _table(",", "who,what,how,when")),
    ]
    for title, outcome, says, name, content in files:
        yield Case("ratings", title, outcome, says, file(name, content))

"""A hundred files and folders as people have them, for five recipes, and what they should get.

All ratings, images, boxes and sentences are made up. The kinds come from public bug reports and file formats.
"""

from collections.abc import Iterator

from . import boxes, images, ratings, text
from .case import Case


def all_cases() -> Iterator[Case]:
    """Yield all cases, kind after kind."""
    for kind in (ratings, images, boxes, text):
        yield from kind.cases()

"""The problems of a COCO dataset, as sentences."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...runner.core.errors import DataError

ONLY_CROWDS = "has iscrowd 1 everywhere, and crowds are neither learned nor counted: write 0 for single objects."
"""What is wrong with a file of crowds alone, after its name."""
LEFT_OUT = "boxes without area, left out of training"
MAX_SENTENCES = 20
"""Sentences for the problems of a kind."""


def different_categories(annotations: Sequence[str | Path], names: Sequence[Iterable[str]]) -> str:
    """Return the sentence for two splits of which the `names` of the categories differ."""
    other = sorted(set(names[0]) ^ set(names[1]))
    which = f" ({', '.join(other[:5])}{', ...' if len(other) > 5 else ''})" if other else ""
    return f"{annotations[0]} and {annotations[1]} name other categories{which}: both sides need the same."


@dataclass
class Problems:
    """The problems of a dataset: their `count`, sentences for the first few of each kind, and what was `mended`."""

    sentences: list[str] = field(default_factory=list)
    count: int = 0
    mended: list[str] = field(default_factory=list)

    def add(self, indices: NDArray[Any], sentence: Callable[[int], str]) -> None:
        """Add a problem for each index; `sentence` is called for the first few."""
        self.sentences += [sentence(index) for index in indices[:MAX_SENTENCES].tolist()]
        if len(indices) > MAX_SENTENCES:
            self.sentences.append(f"{len(indices) - MAX_SENTENCES:,} more are like the last one.")
        self.count += len(indices)

    def add_one(self, sentence: str) -> None:
        """Add one problem."""
        self.add(np.zeros(1, np.int64), lambda _: sentence)

    def raise_first(self) -> None:
        """Raise `DataError` with the first problem, if there is one."""
        if self.count > 1:
            first = self.sentences[0].removesuffix(".")
            raise DataError(f"{first}; and {self.count - 1:,} more: timetrial data verify lists them.")
        if self.count:
            raise DataError(self.sentences[0])

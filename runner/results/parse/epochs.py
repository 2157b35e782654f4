"""Epochs of evaluations: which label counts, and what makes it 1-based."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from .mllog import Event, number

_KEYS = ("epoch_num", "epoch", "epoch_number")


def label_of(event: Event) -> float | None:
    """The epoch that an event's metadata names."""
    for key in _KEYS:
        label = number(event.metadata.get(key))
        if math.isfinite(label):
            return label
    return None


def labels(events: Sequence[Event], places: Sequence[int], note: Callable[[str], None]) -> list[float | None]:
    """Epoch labels of the evaluations: their own, or those of eval_start where their own are missing or do not rise."""
    own = [label_of(events[place]) for place in places]
    if None not in own and _rise([label for label in own if label is not None]):
        return own
    starts = [label for event in events if event.key == "eval_start" and (label := label_of(event)) is not None]
    if len(starts) >= len(places) and _rise(starts):
        note("epochs are those of eval_start: eval_accuracy's own are missing or repeat")
        return list(starts[: len(places)])
    return own


def _rise(labels: Sequence[float]) -> bool:
    return all(one < two for one, two in pairwise(labels))


def offset(events: Sequence[Event], place: int, label: float, dialect: str, note: Callable[[str], None]) -> int:
    """What makes the log's epoch labels 1-based, from the first evaluation's `place` and `label`.

    The evidence is how many epochs had been trained by then: v0.5's train_epoch events before it; later the blocks (or
    epochs) in logs whose first one is called 0.
    """
    if dialect == "v0.5":
        begun = any(event.key == "train_epoch" for event in events[:place])
        added = 2 if label == -1 and begun else 1
    else:
        added = _offset_of_starts(_starts(events), place, label)
    if added:
        note(f"epoch labels start below 1: {added} was added")
    return added


def _starts(events: Sequence[Event]) -> list[tuple[int, float, float]]:
    """Place, first epoch and length of every block; of every epoch in logs without blocks."""
    for opener, first, count in (("block_start", "first_epoch_num", "epoch_count"), ("epoch_start", "epoch_num", "")):
        found = [
            (at, number(event.metadata.get(first)), number(event.metadata.get(count, 1)))
            for at, event in enumerate(events)
            if event.key == opener
        ]
        if found := [start for start in found if math.isfinite(start[1])]:
            return found
    return []


def _offset_of_starts(starts: Sequence[tuple[int, float, float]], place: int, label: float) -> int:
    if not starts:
        return 1 if label == 0 else 0
    base = starts[0][1]
    if base != 0:
        return 0
    if label == 0 and starts[0][0] < place:
        return 1
    # An evaluation follows the epochs before some start: is that start its label, or its label and one?
    firsts = {first for _, first, _ in starts[1:]}
    as_it_is, one_more = label in firsts, label + 1 in firsts
    if as_it_is != one_more:
        return int(one_more)
    after = [first for at, first, _ in starts if at > place]
    _, last, length = starts[-1]
    trained = after[0] if after else last + (length if math.isfinite(length) else 1)
    return int(trained - label == 1)

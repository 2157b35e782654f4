"""Epochs of evaluations: which label counts, and what makes it 1-based."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from timetrial.runner.results.lines import Event, number

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

    The evidence is how many epochs had been trained by then: v0.5's train_epoch events before it; later where the next
    block (or epoch) starts, in logs whose first one is called 0.
    """
    if dialect == "v0.5":
        begun = any(event.key == "train_epoch" for event in events[:place])
        added = 2 if label == -1 and begun else 1
    else:
        added = _offset_of_blocks(events, place, label)
    if added:
        note(f"epoch labels start below 1: {added} was added")
    return added


def _offset_of_blocks(events: Sequence[Event], place: int, label: float) -> int:
    for opener, first, count in (("block_start", "first_epoch_num", "epoch_count"), ("epoch_start", "epoch_num", "")):
        spans = [
            (at, number(event.metadata.get(first)), event) for at, event in enumerate(events) if event.key == opener
        ]
        spans = [span for span in spans if math.isfinite(span[1])]
        if not spans:
            continue
        base = spans[0][1]
        if base != 0:
            return 0
        if label == 0 and spans[0][0] < place:
            return 1
        after = [span for span in spans if span[0] > place]
        if after:
            trained = after[0][1] - base
        else:
            length = number(spans[-1][2].metadata.get(count)) if count else 1.0
            trained = spans[-1][1] - base + (length if math.isfinite(length) else 1.0)
        return 1 if trained - label == 1 else 0
    return 1 if label == 0 else 0

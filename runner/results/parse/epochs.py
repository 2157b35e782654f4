"""Epoch labels of evaluations: which label counts, and the offset that makes labels 1-based."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from .mllog import LogEntry, to_float

_METADATA_KEYS = ("epoch_num", "epoch", "epoch_number")


def epoch_label(entry: LogEntry) -> float | None:
    """Return the epoch in an entry's metadata."""
    for key in _METADATA_KEYS:
        label = to_float(entry.metadata.get(key))
        if math.isfinite(label):
            return label
    return None


def epoch_labels(
    entries: Sequence[LogEntry], eval_indices: Sequence[int], note: Callable[[str], None]
) -> list[float | None]:
    """Return the epoch label of each evaluation.

    Labels that are missing or do not increase are replaced by those of eval_start. `eval_indices` are the positions of
    the evaluations in `entries`; `note` receives a sentence about each inference.
    """
    own_labels = [epoch_label(entries[index]) for index in eval_indices]
    if None not in own_labels and _is_increasing([label for label in own_labels if label is not None]):
        return own_labels
    start_labels = [
        label for entry in entries if entry.key == "eval_start" and (label := epoch_label(entry)) is not None
    ]
    if len(start_labels) >= len(eval_indices) and _is_increasing(start_labels):
        note("epochs are taken from eval_start: those of eval_accuracy are missing or repeated")
        return list(start_labels[: len(eval_indices)])
    return own_labels


def _is_increasing(labels: Sequence[float]) -> bool:
    return all(before < after for before, after in pairwise(labels))


def epoch_offset(
    entries: Sequence[LogEntry], eval_index: int, label: float, dialect: str, note: Callable[[str], None]
) -> int:
    """Return the offset that makes the log's epoch labels 1-based.

    `eval_index` and `label` are position and label of the first evaluation. The offset follows from the number of
    epochs trained before it: by train_epoch entries in v0.5, by block_start or epoch_start later.
    """
    if dialect == "v0.5":
        has_trained = any(entry.key == "train_epoch" for entry in entries[:eval_index])
        offset = 2 if label == -1 and has_trained else 1
    else:
        offset = _offset_from_starts(_epoch_starts(entries), eval_index, label)
    if offset:
        note(f"epoch labels start below 1: {offset} was added")
    return offset


def _epoch_starts(entries: Sequence[LogEntry]) -> list[tuple[int, float, float]]:
    """Return (index, first epoch, number of epochs) of every block, or of every epoch in logs without blocks."""
    for key, first_key, count_key in (
        ("block_start", "first_epoch_num", "epoch_count"),
        ("epoch_start", "epoch_num", ""),
    ):
        starts = [
            (index, to_float(entry.metadata.get(first_key)), to_float(entry.metadata.get(count_key, 1)))
            for index, entry in enumerate(entries)
            if entry.key == key
        ]
        if labelled := [start for start in starts if math.isfinite(start[1])]:
            return labelled
    return []


def _offset_from_starts(starts: Sequence[tuple[int, float, float]], eval_index: int, label: float) -> int:
    if not starts:
        return 1 if label == 0 else 0
    if starts[0][1] != 0:
        return 0
    if label == 0 and starts[0][0] < eval_index:
        return 1
    # The next start after an evaluation has the evaluation's label (counted from 1) or that label plus 1 (from 0).
    later_firsts = {first for _, first, _ in starts[1:]}
    is_one_based, is_zero_based = label in later_firsts, label + 1 in later_firsts
    if is_one_based != is_zero_based:
        return int(is_zero_based)
    firsts_after_eval = [first for index, first, _ in starts if index > eval_index]
    _, last_first, last_count = starts[-1]
    trained = (
        firsts_after_eval[0] if firsts_after_eval else last_first + (last_count if math.isfinite(last_count) else 1)
    )
    return int(trained - label == 1)

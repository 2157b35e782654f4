"""Progress of training at each evaluation, in epochs or samples: labels of log entries and what they count from."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from .mllog import LogEntry, to_float

MAX_EPOCHS = 10_000  # of any benchmark; the rules of UNet3D end a run there
_EPOCH_KEYS = ("epoch_num", "epoch", "epoch_number")


def progress_unit(entries: Sequence[LogEntry]) -> str:
    """Return the unit in which a log labels its evaluations, or else its blocks: "samples" or "epochs".

    Besides `samples_count`, which names its unit, samples are counted by `step_num` (Stable Diffusion in v3.1; a step
    is a batch) and by any `epoch_num` above `MAX_EPOCHS` (BERT; GPT-3, whose samples are tokens).
    """
    evaluations = [entry for entry in entries if entry.key == "eval_accuracy"]
    for entry in evaluations or [entry for entry in entries if entry.key == "block_start"]:
        epoch = _read_number(entry, _EPOCH_KEYS)
        if "samples_count" in entry.metadata or (epoch is None and "step_num" in entry.metadata):
            return "samples"
        if epoch is not None and epoch > MAX_EPOCHS:
            return "samples"
    return "epochs"


def read_label(entry: LogEntry, unit: str, batch_size: int | None) -> float | None:
    """Return the epochs or samples in an entry's metadata; None if it has no such label."""
    epoch = _read_number(entry, _EPOCH_KEYS)
    if unit == "epochs":
        return epoch
    samples, steps = _read_number(entry, ("samples_count",)), _read_number(entry, ("step_num",))
    if samples is None and epoch is None and steps is not None and batch_size is not None:
        return steps * batch_size if math.isfinite(steps * batch_size) else None
    return epoch if samples is None else samples


def _read_number(entry: LogEntry, keys: Sequence[str]) -> float | None:
    for key in keys:
        number = to_float(entry.metadata.get(key))
        if math.isfinite(number):
            return number
    return None


def replace_repeated(
    labels: Sequence[float | None], start_labels: Sequence[float], note: Callable[[str], None]
) -> list[float | None]:
    """Return the labels of the evaluations, replaced by those of eval_start if they are missing or repeated.

    Evaluations that run beside the training may end in another order than they began, with labels of their own.
    `note` receives a sentence about the replacement.
    """
    if None not in labels and len(set(labels)) == len(labels):
        return list(labels)
    if len(start_labels) >= len(labels) and _is_increasing(start_labels):
        note("epochs are taken from eval_start: those of eval_accuracy are missing or repeated")
        return list(start_labels[: len(labels)])
    return list(labels)


def _is_increasing(labels: Sequence[float]) -> bool:
    return all(before < after for before, after in pairwise(labels))


def epoch_offset(
    entries: Sequence[LogEntry], eval_index: int, label: float, dialect: str, note: Callable[[str], None]
) -> int:
    """Return the offset that makes the log's epoch labels 1-based: that many more epochs were trained.

    `eval_index` and `label` are position and label of the first evaluation. The offset follows from the epochs trained
    before that evaluation started: by train_epoch entries in v0.5, by block_start or epoch_start later.
    """
    if dialect == "v0.5":
        has_trained = any(entry.key == "train_epoch" for entry in entries[:eval_index])
        offset = 2 if label == -1 and has_trained else 1
    else:
        offset = _offset_from_starts(_epoch_starts(entries), _find_eval_start(entries, eval_index, label), label)
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


def _find_eval_start(entries: Sequence[LogEntry], eval_index: int, label: float) -> int:
    """Return the position of the eval_start with the label of an evaluation, else that of the evaluation."""
    for index in range(eval_index - 1, -1, -1):
        if entries[index].key == "eval_start" and _read_number(entries[index], _EPOCH_KEYS) == label:
            return index
    return eval_index


def _offset_from_starts(starts: Sequence[tuple[int, float, float]], eval_start: int, label: float) -> int:
    """Return 1 if labels of evaluations count from 0, else 0.

    Training and evaluation are labelled independently: RetinaNet counts the epochs that it trains from 0 and those that
    it evaluates from 1. So the labels are compared with the number of epochs trained before the evaluation started,
    which is the first epoch of the next block if blocks count from 0. When an evaluation ends does not matter, because
    the next epoch may be training by then. If neither label nor label + 1 is that number (an evaluation that overlaps
    with training and does not log its start), the one at which a block begins is the number of trained epochs.
    """
    if not starts:
        return int(label == 0)
    if starts[0][1] != 0:
        return 0
    _, last_first, last_count = starts[-1]
    firsts_after = [first for index, first, _ in starts if index > eval_start]
    trained = firsts_after[0] if firsts_after else last_first + (last_count if math.isfinite(last_count) else 1)
    if trained in (label, label + 1):
        return int(trained == label + 1)
    firsts = {first for _, first, _ in starts[1:]}
    return int(label not in firsts and label + 1 in firsts)

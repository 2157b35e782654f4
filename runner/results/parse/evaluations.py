"""Evaluations in a log: their quality, the progress of training at each, and the time that they take."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from ...core.found_files import as_name
from . import quality, rules
from .mllog import LogEntry, to_float


@dataclass(frozen=True)
class Evaluation:
    """One evaluation: `seconds` after run_start, `progress` before it (None if unknown), quality by metric.

    Progress is the number of epochs or samples trained, in `Run.progress_unit`. Qualities are fractions, except losses.
    """

    seconds: float
    progress: float | None
    quality: Mapping[str, float]


@dataclass(frozen=True)
class LoggedEvaluation:
    """An evaluation as logged: position and time of its entry, label of its progress, quality before scaling."""

    index: int
    time_ms: float
    label: float | None
    quality: Mapping[str, float]


def find_evaluations(
    entries: Sequence[LogEntry],
    start: int,
    benchmark: str,
    label_of: Callable[[LogEntry], float | None],
    note: Callable[[str], None],
) -> list[LoggedEvaluation]:
    """Return every evaluation on the clock, by time and without repeats.

    `start` is the position of run_start. Metrics that are logged one by one (Stable Diffusion) are joined by their
    label; such evaluations run side by side and are returned by label.
    """
    evaluations: list[LoggedEvaluation] = []
    without_number = 0
    by_metric = False
    for index, entry in enumerate(entries):
        if entry.key != "eval_accuracy":
            continue
        label, values = label_of(entry), quality.parse_quality(entry.value, benchmark)
        if not values:
            without_number += 1
            continue
        if isinstance(metric := entry.metadata.get("metric"), str) and len(values) == 1 and label is not None:
            values, by_metric = {as_name(metric): next(iter(values.values()))}, True
        previous = evaluations[-1] if evaluations else None
        if label is None or previous is None or (label, values) != (previous.label, previous.quality):
            evaluations.append(LoggedEvaluation(index, entry.time_ms, label, values))
    if without_number:
        note(f"{without_number} eval_accuracy without a number were skipped")
    on_clock = [entry for entry in evaluations if entry.index > start or entry.time_ms >= entries[start].time_ms]
    if len(on_clock) < len(evaluations):
        note(f"{len(evaluations) - len(on_clock)} evaluations before run_start do not count")
    if by_metric:
        return _join_metrics(on_clock, rules.metric_names(benchmark))
    if all(math.isfinite(entry.time_ms) for entry in on_clock):
        on_clock.sort(key=lambda entry: entry.time_ms)
    return on_clock


def _join_metrics(evaluations: Sequence[LoggedEvaluation], metrics: Sequence[str]) -> list[LoggedEvaluation]:
    """Return one evaluation per label, with the first value of each metric and the time of the last one."""
    joined: dict[float, LoggedEvaluation] = {}
    for entry in evaluations:
        if entry.label is None:
            continue
        known = joined.get(entry.label, replace(entry, quality={}))
        if not entry.quality.keys() <= known.quality.keys():
            values = {**known.quality, **entry.quality}
            order = [metric for metric in metrics if metric in values] or values
            joined[entry.label] = replace(entry, quality={metric: values[metric] for metric in order})
    return [joined[label] for label in sorted(joined)]


def eval_spacing(entries: Sequence[LogEntry], labels: Sequence[float | None], unit: str) -> float | None:
    """Return the progress between successive evaluations: their median, or what the log plans if there is only one."""
    known = sorted({label for label in labels if label is not None})
    if len(known) > 1:
        return median(after - before for before, after in pairwise(known))
    planned = [
        to_float(entry.value if unit == "samples" else entry.metadata.get("epoch_count"))
        for entry in entries
        if entry.key == ("evaluation_frequency" if unit == "samples" else "block_start")
    ]
    return planned[-1] if planned and 0 < planned[-1] < math.inf else None


def eval_seconds(entries: Sequence[LogEntry], stop_ms: float) -> float:
    """Return the seconds from each eval_start to the next eval_stop, up to `stop_ms`.

    0 if evaluation overlaps with training.
    """
    seconds, eval_start_ms = 0.0, math.nan
    for entry in entries:
        if entry.time_ms > stop_ms:
            continue
        if entry.key == "eval_start":
            eval_start_ms = entry.time_ms
        elif entry.key in ("block_start", "epoch_start", "train_epoch") and math.isfinite(eval_start_ms):
            return 0.0
        elif entry.key == "eval_stop" and entry.time_ms >= eval_start_ms:
            seconds, eval_start_ms = seconds + (entry.time_ms - eval_start_ms) / 1000, math.nan
    return seconds

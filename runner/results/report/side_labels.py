"""Names of the sides of `timetrial compare`: what tells their run groups apart."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ...core.found_files import make_visible
from ..analysis.groups import RunGroup
from ..analysis.throughput_groups import ThroughputGroup
from .systems import device_label

# In the order in which they are added until no two groups of one workload have the same label.
_PROPERTIES: tuple[Callable[[RunGroup], str], ...] = (
    lambda group: device_label(group.runs[0].accelerator, group.runs[0].num_accelerators),
    lambda group: group.runs[0].precision,
    lambda group: group.runs[0].software,
    lambda group: group.origin,
    lambda group: f"batch {group.runs[0].global_batch_size}",
    lambda group: group.setting,
)


def label_run_groups(paths: Sequence[Path], sides: Sequence[Sequence[RunGroup]]) -> list[list[RunGroup]]:
    """Return the groups of each side with a label: GPUs, precision, software, system or setting, else the path."""
    placed = [(path, group) for path, side in zip(paths, sides, strict=True) for group in side]
    by_workload: dict[str, list[tuple[Path, RunGroup]]] = {}
    for path, group in placed:
        by_workload.setdefault(group.workload, []).append((path, group))
    labels: dict[int, str] = {}
    for same in by_workload.values():
        for (_, group), label in zip(same, _tell_apart(same), strict=True):
            labels[id(group)] = label
    return [[replace(group, label=labels[id(group)]) for group in side] for side in sides]


def _tell_apart(placed: Sequence[tuple[Path, RunGroup]]) -> list[str]:
    labels = [""] * len(placed)
    columns = [[value_of(group) for _, group in placed] for value_of in _PROPERTIES]
    for values in [*columns, [make_visible(str(path)) for path, _ in placed]]:
        if len(set(labels)) == len(labels) and all(labels):
            break
        if len(set(values)) > 1:
            labels = [", ".join(part for part in pair if part) for pair in zip(labels, values, strict=True)]
    return labels


def label_throughput_groups(
    paths: Sequence[Path], sides: Sequence[Sequence[ThroughputGroup]]
) -> list[list[ThroughputGroup]]:
    """Return the groups of each side, with the path in the title of those that have equals on another side."""
    titles = [group.title for side in sides for group in side]
    return [
        [replace(group, label=make_visible(str(path))) if titles.count(group.title) > 1 else group for group in side]
        for path, side in zip(paths, sides, strict=True)
    ]

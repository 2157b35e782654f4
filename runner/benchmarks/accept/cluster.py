"""`timetrial accept --compare`: rank the nodes of a cluster by what each has measured, and name those that are slow."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...core.console import print_text, table_console
from ...core.errors import DataError
from ...core.found_files import UnreadableFile, as_name, read_json
from ...record.record_file import decode
from ...results.report.page_text import count
from .document import COLORS, FILE_NAME, SCHEMA
from .figures import Figure, State
from .outliers import MIN_VALUES, find_low_outliers

MIN_DEFICIT = 0.02
"""A device that is slower than the median by less is no outlier, however little the others differ."""
_SHOWN = 20  # of the ranking, the slowest


@dataclass(frozen=True)
class Node:
    """A node as its accept.json describes it; `models` has the name of the hardware of each device."""

    name: str
    id: str
    result: State
    figures: tuple[Figure, ...]
    models: dict[str, str]


@dataclass(frozen=True)
class Outlier:
    """A figure of a device that is lower than those of the other devices: the value, and their median."""

    node: str
    device: str
    figure: str
    value: float
    median: float
    unit: str


@dataclass(frozen=True)
class Ranking:
    """Nodes from the fastest to the slowest, each with its speed over the median node, and the outliers among devices.

    `tests` counts the figures that were tested together; `left_out` names files that could not be used.
    """

    speeds: tuple[tuple[Node, float], ...]
    outliers: tuple[Outlier, ...]
    tests: int
    left_out: tuple[str, ...] = field(default=())


def read_nodes(paths: Iterable[Path]) -> tuple[list[Node], list[str]]:
    """Return the newest result of each node at or below `paths`, and a sentence for each file that is not usable.

    Raises `DataError` if there is none.
    """
    nodes: dict[tuple[str, str], Node] = {}
    left_out = []
    files = sorted({file for path in paths for file in ([path] if path.is_file() else path.rglob(FILE_NAME))})
    for file in files:
        try:
            key, node = _read_node(file)
        except UnreadableFile as error:
            left_out.append(str(error))
            continue
        nodes[key] = max(node, nodes.get(key, node), key=lambda each: each.id)
    if not nodes:
        raise DataError(f"There is no {FILE_NAME} at these paths: run timetrial accept on each node.")
    return list(nodes.values()), left_out


def _read_node(file: Path) -> tuple[tuple[str, str], Node]:
    """Return a node with what identifies it: its name and its GPUs."""
    values = read_json(file)
    try:
        if values["schema"] != SCHEMA:
            raise ValueError("it was made by another version of timetrial")
        entries = [{key: value for key, value in entry.items() if key != "median"} for entry in values["figures"]]
        figures = decode(tuple[Figure, ...], entries)
        if not all(figure.values and min(figure.values) > 0 for figure in figures):
            raise ValueError("a figure is not positive")
        gpus = values["system"]["gpus"]
        models = {f"GPU {index}": as_name(gpu["name"]) for index, gpu in enumerate(gpus)}
        cpu = as_name(values["system"]["cpu"]["model"])
        node = Node(as_name(values["node"]), as_name(values["id"]), State(values["result"]), figures, models)
        node.models.update({device: cpu for figure in figures if (device := figure.device) not in models})
        return (node.name, str([gpu.get("id") for gpu in gpus])), node
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableFile(file, f"{type(error).__name__}: {error}") from error


def rank_nodes(nodes: Sequence[Node], left_out: Sequence[str] = ()) -> Ranking:
    """Compare each figure over all devices of one model; at most 5% of clusters of equal nodes have an outlier.

    The speed of a node is the geometric mean, over its figures, of its value over the median of all.
    """
    groups: dict[tuple[str, ...], list[tuple[Node, Figure]]] = {}
    for node in nodes:
        for figure in node.figures:
            groups.setdefault((figure.name, figure.unit, node.models[figure.device]), []).append((node, figure))
    tested = [same for same in groups.values() if len(same) >= MIN_VALUES]
    outliers = [outlier for same in tested for outlier in _find_outliers(same, len(tested))]
    ratios: dict[int, list[float]] = {id(node): [] for node in nodes}
    for same in groups.values():
        median = statistics.median(figure.value for _, figure in same)
        for node, figure in same:
            ratios[id(node)].append(math.log(figure.value / median))
    speeds = [(node, math.exp(statistics.fmean(ratios[id(node)] or [0.0]))) for node in nodes]
    speeds.sort(key=lambda entry: (-entry[1], entry[0].name))
    return Ranking(tuple(speeds), tuple(outliers), len(tested), tuple(left_out))


def _find_outliers(same: Sequence[tuple[Node, Figure]], tests: int) -> list[Outlier]:
    values = [figure.value for _, figure in same]
    median = statistics.median(values)
    low = [same[index] for index in find_low_outliers(values, tests) if values[index] < (1 - MIN_DEFICIT) * median]
    return [Outlier(node.name, figure.device, figure.name, figure.value, median, figure.unit) for node, figure in low]


def to_json(ranking: Ranking) -> dict[str, Any]:
    """Return the ranking as a JSON object."""
    return {
        "nodes": [{"node": node.name, "result": node.result.value, "speed": speed} for node, speed in ranking.speeds],
        "outliers": [asdict(outlier) for outlier in ranking.outliers],
        "tests": ranking.tests,
        "left_out": list(ranking.left_out),
    }


def show(console: Console, ranking: Ranking) -> None:
    """Print the slowest nodes, then each outlier."""
    table = Table(box=None, pad_edge=False)
    for column in ("rank", "node", "result", "speed"):
        table.add_column(column, justify="right" if column in ("rank", "speed") else "left")
    ranked = list(enumerate(ranking.speeds, start=1))
    for rank, (node, speed) in ranked[-_SHOWN:]:
        word = Text(node.result, style=COLORS[node.result])
        table.add_row(str(rank), Text(node.name), word, f"{speed:.3f}")
    if len(ranked) > _SHOWN:
        print_text(console, f"The slowest {_SHOWN} of {len(ranked)} nodes; speed is over the median of all.")
    table_console(console).print(table)
    for each in ranking.outliers:
        share = f"{each.value / each.median:.3f} of the median {each.median:.4g} {each.unit}"
        print_text(console, Text(f"slow: {each.node}, {each.device}, {each.figure}: {share}", style="red"))
    for sentence in ranking.left_out:
        print_text(console, Text(sentence, style="yellow"))
    if not ranking.tests:
        print_text(console, f"No figure is of {MIN_VALUES} devices or more: outliers cannot be told.")
    elif not ranking.outliers:
        print_text(console, f"No device is slower than the others in {count(ranking.tests, 'figure')}.")

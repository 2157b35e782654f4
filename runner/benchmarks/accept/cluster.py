"""`timetrial accept --compare`: rank the nodes of a cluster by what each has measured, and name those that are slow."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
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
_GPU = "GPU "  # the names of GPUs begin with it


@dataclass(frozen=True)
class Node:
    """A node as its accept.json describes it; `models` has the name of the hardware of each device.

    `before` are the figures of the result before this one, empty if there is none.
    """

    name: str
    id: str
    result: State
    figures: tuple[Figure, ...]
    models: dict[str, str]
    before: tuple[Figure, ...] = ()

    @property
    def num_gpus(self) -> int:
        """Return how many GPUs the node has."""
        return sum(device.startswith(_GPU) for device in self.models)


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

    `outliers` are low in the last two results of their node, `suspects` are low in its only one. `tests` counts the
    figures that were tested together; `left_out` names files that could not be used.
    """

    speeds: tuple[tuple[Node, float], ...]
    outliers: tuple[Outlier, ...]
    suspects: tuple[Outlier, ...]
    tests: int
    left_out: tuple[str, ...] = field(default=())

    @property
    def usual_gpus(self) -> int:
        """Return how many GPUs most nodes have."""
        return max(statistics.multimode(node.num_gpus for node, _ in self.speeds))


def read_nodes(paths: Iterable[Path]) -> tuple[list[Node], list[str]]:
    """Return the last two results of each node at or below `paths`, and a sentence for each file that is not usable.

    Raises `DataError` if there is none.
    """
    results: dict[tuple[str, str], list[Node]] = {}
    left_out = []
    files = sorted({file for path in paths for file in ([path] if path.is_file() else path.rglob(FILE_NAME))})
    for file in files:
        try:
            key, node = _read_node(file)
        except UnreadableFile as error:
            left_out.append(str(error))
            continue
        results.setdefault(key, []).append(node)
    if not results:
        raise DataError(f"There is no {FILE_NAME} at these paths: run timetrial accept on each node.")
    ordered = [sorted(same, key=lambda node: node.id) for same in results.values()]
    return [replace(same[-1], before=same[-2].figures if same[1:] else ()) for same in ordered], left_out


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
        models = {f"{_GPU}{index}": as_name(gpu["name"]) for index, gpu in enumerate(gpus)}
        cpu = as_name(values["system"]["cpu"]["model"])
        node = Node(as_name(values["node"]), as_name(values["id"]), State(values["result"]), figures, models)
        node.models.update({device: cpu for figure in figures if (device := figure.device) not in models})
        return (node.name, str([gpu.get("id") for gpu in gpus])), node
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableFile(file, f"{type(error).__name__}: {error}") from error


def rank_nodes(nodes: Sequence[Node], left_out: Sequence[str] = ()) -> Ranking:
    """Compare each figure over all devices of one model.

    A device is an outlier if a figure of it is low in the last two results of its node, and a suspect if it is low in
    the only one. Each result alone is tested at 5% for all figures together, which holds for normal noise only, but
    noise of measurements has heavy tails. A healthy figure that is low with probability p is low twice with p^2, which
    is rare for heavy tails too (scripts/measure/accept_cluster.py). The speed of a node is the geometric mean, over its
    figures, of its value over the median of all.
    """
    groups = _group([(node, node.figures) for node in nodes])
    low, tests = _find_low(groups)
    low_before = _find_low(_group([(node, node.before or node.figures) for node in nodes]))[0] if low else {}
    outliers = [outlier for key, (node, outlier) in low.items() if node.before and key in low_before]
    suspects = [outlier for node, outlier in low.values() if not node.before]
    ratios: dict[int, list[float]] = {id(node): [] for node in nodes}
    for same in groups:
        median = statistics.median(figure.value for _, figure in same)
        for node, figure in same:
            ratios[id(node)].append(math.log(figure.value / median))
    speeds = [(node, math.exp(statistics.fmean(ratios[id(node)] or [0.0]))) for node in nodes]
    speeds.sort(key=lambda entry: (-entry[1], entry[0].name))
    return Ranking(tuple(speeds), tuple(outliers), tuple(suspects), tests, tuple(left_out))


def _group(results: Iterable[tuple[Node, Sequence[Figure]]]) -> list[list[tuple[Node, Figure]]]:
    """Return the same figure of all devices of one model together."""
    groups: dict[tuple[str, ...], list[tuple[Node, Figure]]] = {}
    for node, figures in results:
        for figure in figures:
            groups.setdefault((figure.name, figure.unit, node.models[figure.device]), []).append((node, figure))
    return list(groups.values())


def _find_low(groups: Sequence[Sequence[tuple[Node, Figure]]]) -> tuple[dict[Any, tuple[Node, Outlier]], int]:
    """Return what is low by node, device and figure, and the number of groups that were tested together."""
    tested = [same for same in groups if len(same) >= MIN_VALUES]
    found = {}
    for same in tested:
        values = [figure.value for _, figure in same]
        median = statistics.median(values)
        for node, figure in (same[index] for index in find_low_outliers(values, len(tested))):
            if figure.value < (1 - MIN_DEFICIT) * median:
                outlier = Outlier(node.name, figure.device, figure.name, figure.value, median, figure.unit)
                found[id(node), figure.device, figure.name] = (node, outlier)
    return found, len(tested)


def to_json(ranking: Ranking) -> dict[str, Any]:
    """Return the ranking as a JSON object."""
    return {
        "nodes": [
            {"node": node.name, "gpus": node.num_gpus, "result": node.result.value, "speed": speed}
            for node, speed in ranking.speeds
        ],
        "outliers": [asdict(outlier) for outlier in ranking.outliers],
        "suspects": [asdict(outlier) for outlier in ranking.suspects],
        "tests": ranking.tests,
        "left_out": list(ranking.left_out),
    }


def show(console: Console, ranking: Ranking) -> None:
    """Print the slowest nodes, then each outlier."""
    table = Table(box=None, pad_edge=False)
    for column in ("rank", "node", "result", "GPUs", "speed"):
        table.add_column(column, justify="left" if column in ("node", "result") else "right")
    ranked, usual_gpus = list(enumerate(ranking.speeds, start=1)), ranking.usual_gpus
    for rank, (node, speed) in ranked[-_SHOWN:]:
        word = Text(node.result, style=COLORS[node.result])
        gpus = Text(str(node.num_gpus), style=COLORS[State.WARN] if node.num_gpus < usual_gpus else "")
        table.add_row(str(rank), Text(node.name), word, gpus, f"{speed:.3f}")
    if len(ranked) > _SHOWN:
        print_text(console, f"The slowest {_SHOWN} of {len(ranked)} nodes; speed is over the median of all.")
    table_console(console).print(table)
    for each in ranking.outliers:
        print_text(console, Text(f"slow twice: {describe(each)}", style="red"))
    for each in ranking.suspects:
        print_text(console, Text(f"slow once: {describe(each)}", style="yellow"))
    if ranking.suspects:
        print_text(console, advise(ranking))
    for node, _ in ranking.speeds:
        if node.num_gpus < usual_gpus:
            found = f"fewer GPUs: {node.name} has {node.num_gpus}, most nodes have {usual_gpus}"
            print_text(console, Text(found, style="yellow"))
    for sentence in ranking.left_out:
        print_text(console, Text(sentence, style="yellow"))
    if not ranking.tests:
        print_text(console, f"No figure is of {MIN_VALUES} devices or more: outliers cannot be told.")
    elif not ranking.outliers and not ranking.suspects:
        print_text(console, f"No device is slower than the others in {count(ranking.tests, 'figure')}.")


def describe(outlier: Outlier) -> str:
    """Return a phrase with node, device, figure and its share of the median."""
    share = f"{outlier.value / outlier.median:.3f} of the median {outlier.median:.4g} {outlier.unit}"
    return f"{outlier.node}, {outlier.device}, {outlier.figure}: {share}"


def advise(ranking: Ranking) -> str:
    """Return what to do about suspects."""
    return f"Run timetrial accept again on {list_nodes(ranking.suspects)}, then compare: slow devices are slow twice."


def list_nodes(outliers: Iterable[Outlier]) -> str:
    """Return the names of the nodes, each once."""
    return ", ".join(sorted({each.node for each in outliers}))

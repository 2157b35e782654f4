"""What `timetrial throughput` has measured: cells of runs that differ in nothing but luck, and pairs of cells."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from ...config.diff import flatten
from ...record.flops import PURCHASE
from ..parse.external import OWN, Figure
from ..parse.sources import json_object
from . import stats
from .findings import Finding
from .stats import Interval

# Groups of the configuration that make a measurement what it is; `seed` and places do not.
_GROUPS = ("workload", "recipe", "engine", "precision", "data", "tuning", "system", "gpus", "peer_to_peer")
NO_PEERS = "no peer-to-peer"  # how cells name links that were not used
_UNIMPORTANT = ("workload.title", "recipe.target", "recipe.data.folder")


@dataclass
class SpeedCell:
    """Measurements of one setting; `setting` is its configuration, flat, by dotted key.

    `card` is the accelerator group, or the driver's name of a card that has none. A run that did not fit is counted
    in `out_of_memory`, and no number of it is known.
    """

    card: str
    setting: dict[str, Any]
    results: list[dict[str, Any]] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)
    out_of_memory: int = 0

    @property
    def network(self) -> str:
        """What was trained: the network that the recipe names, else the workload."""
        return str(self.setting.get("recipe.training.network") or self.setting["workload.name"])

    @property
    def count(self) -> int:
        """Cards, or processes on the CPU."""
        return int(self.setting["gpus"])

    @property
    def precision(self) -> str:
        """The number format."""
        return str(self.setting["precision.name"])

    @property
    def code(self) -> str:
        """The number format, and whether the model was compiled."""
        return f"{self.precision} compiled" if self.setting.get("engine.compile") else self.precision

    @property
    def batch(self) -> int:
        """Samples of a training step on one card."""
        return math.ceil(self.setting["recipe.global_batch_size"] / self.count)

    @property
    def links(self) -> str:
        """How cards reach one another; empty for one alone."""
        if self.count == 1:
            return ""
        return "peer-to-peer" if self.setting["peer_to_peer"] else NO_PEERS

    @property
    def title(self) -> str:
        """The cell in words."""
        links = f", {self.links}" if self.links else ""
        return f"{self.network}, {self.count} x {self.card}, {self.code}, batch {self.batch} a card{links}"

    @cached_property
    def rate(self) -> Interval:
        """Training samples a second over all cards."""
        return stats.interval(self.values("samples_per_second"))

    def values(self, key: str) -> list[float]:
        """One number of each run that has it."""
        return [float(result[key]) for result in self.results if result.get(key)]


def gather(paths: Iterable[Path]) -> list[SpeedCell]:
    """The cells of all throughput runs at or below `paths`, in order of their folders."""
    cells: dict[str, SpeedCell] = {}
    for path in paths:
        for where, folders, names in os.walk(path):
            folders.sort()
            if {"status.json", "config.yaml"} <= set(names):
                _take(Path(where), cells)
    return list(cells.values())


def _take(folder: Path, cells: dict[str, SpeedCell]) -> None:
    """Puts one run into its cell; passes over what is no measurement, or came to no end."""
    status = json_object(folder / "status.json")
    try:
        config = yaml.safe_load((folder / "config.yaml").read_text())
        if not config["throughput"]["steps"] or status.get("state") not in ("measured", "out of memory"):
            return
        card = config["accelerator"]["name"]
        parts = {key: config.get(key, True) for key in _GROUPS}  # runs older than peer_to_peer had it
        parts["accelerator"] = {"threads": config["accelerator"].get("threads")}
        parts["launcher"] = {"nodes": (config.get("launcher") or {}).get("nodes", 1)}
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError):
        return
    if card == "auto":
        cards = json_object(folder / "system.json").get("cards") or [{}]
        card = str(cards[0].get("name", card))
    setting = {key: value for key, value in flatten(parts) if not key.startswith(_UNIMPORTANT)}
    cell = cells.setdefault(json.dumps([card, setting], sort_keys=True), SpeedCell(card, setting))
    cell.flags |= set(status.get("flags") or ())
    if status["state"] == "measured":
        cell.results.append(status["result"])
    else:
        cell.out_of_memory += 1


@dataclass(frozen=True)
class SpeedPair:
    """Two cells of one network; `rate` is the ratio of training samples a second, first over second."""

    one: SpeedCell
    other: SpeedCell
    differences: list[str]
    rate: Interval

    @property
    def verdict(self) -> str:
        """The ratio in words."""
        ratio, runs = self.rate, f"{len(self.one.results)} against {len(self.other.results)} runs"
        if not ratio.n:
            return "one of them did not fit into memory: there is no ratio"
        if not math.isfinite(ratio.low):
            return f"{ratio.estimate:.3f} times the samples a second, without an interval: single runs carry none"
        told = f"({ratio.low:.3f} to {ratio.high:.3f} at 95%, {runs})"
        if ratio.low <= 1 <= ratio.high:
            return f"no difference can be told: {ratio.estimate:.3f} times the samples a second {told}"
        return f"{ratio.estimate:.3f} times the samples a second {told}"


def pairs(ones: Sequence[SpeedCell], others: Sequence[SpeedCell]) -> list[SpeedPair]:
    """Each of `ones` with those of `others` on the same network from which it differs least."""
    found = []
    for one in ones:
        same = [_pair(one, other) for other in others if other.network == one.network]
        least = min((len(pair.differences) for pair in same), default=0)
        found += [pair for pair in same if len(pair.differences) == least]
    return found


def _pair(one: SpeedCell, other: SpeedCell) -> SpeedPair:
    ours, theirs = ({"card": cell.card, **cell.setting} for cell in (one, other))
    keys = [key for key in dict.fromkeys([*ours, *theirs]) if ours.get(key) != theirs.get(key)]
    differences = [f"{key}: {ours.get(key)} against {theirs.get(key)}" for key in keys]
    ratio = stats.ratio(one.values("samples_per_second"), other.values("samples_per_second"))
    return SpeedPair(one, other, differences, ratio)


def of_links(cells: Sequence[SpeedCell]) -> list[Finding]:
    """What direct links between cards do, for every two cells that differ in nothing else."""
    several = [cell for cell in cells if cell.count > 1]
    linked, apart = ([cell for cell in several if cell.setting["peer_to_peer"] is there] for there in (True, False))
    alike = (_pair(one, other) for one, other in product(linked, apart) if one.network == other.network)
    return [
        Finding("note", pair.one.title, f"With over without direct links between cards: {pair.verdict}.")
        for pair in alike
        if len(pair.differences) == 1
    ]


def figures(cells: Iterable[SpeedCell]) -> list[Figure]:
    """The cells as figures like those that others have published, means over the runs, to stand beside them."""
    return [figure for cell in cells for figure in _figures(cell)]


def _figures(cell: SpeedCell) -> Iterator[Figure]:
    evaluated = cell.setting.get("recipe.data.eval_batch_size")
    paid = cell.values(PURCHASE)
    for task, batch, metric, values in (
        ("train", cell.batch, "samples_per_second", cell.values("samples_per_second")),
        ("train", cell.batch, "milliseconds", cell.values("train_ms")),
        *([("eval", evaluated, "milliseconds", cell.values("eval_ms"))] if cell.values("eval_ms") else []),
        *([("train", cell.batch, PURCHASE, paid)] if paid else []),
    ):
        yield Figure(
            study=f"timetrial throughput on {cell.setting['system']}",
            source=OWN,
            published="",
            workload=cell.network,
            task=task,
            card=cell.card,
            count=cell.count,
            precision=cell.precision,
            interconnect=cell.links,
            batch=batch,
            metric=metric,
            value=sum(values) / len(values) if values else None,
            outcome="measured" if values else "out of memory",
            against="",
            note=_note(len(values), cell.out_of_memory),
        )


def _note(runs: int, out_of_memory: int) -> str:
    mean = f"mean of {runs} runs" if runs > 1 else ""
    beside = f"{out_of_memory} more did not fit" if runs and out_of_memory else ""
    return ", ".join(filter(None, (mean, beside)))

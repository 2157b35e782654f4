"""Throughput groups: runs of `timetrial throughput` that differ only by seed and by chance, and their comparison."""

import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from ...config.diff import flatten
from ...core.found_files import PassOver, UnreadableFile, as_name
from ...record.record_file import FILE_NAME, read_record
from ...record.run_record import Attempt, RunRecord, RunState
from ...record.throughput_result import ThroughputResult
from ..parse.external import OWN_RUNS, ExternalMeasurement
from ..parse.sources import ignore
from .comparison import Verdict, decide
from .findings import Finding, describe_speedup
from .intervals import UNKNOWN, LogEstimate, Sample, bounds_as_json, log_ratio

# Configuration groups that affect a measurement; `seed` and paths do not.
_CONFIG_GROUPS = ("workload", "recipe", "engine", "precision", "data", "tuning", "system", "gpus", "peer_to_peer")
_EXECUTION_KEYS = ("engine.compile", "engine.capture")
_IGNORED = ("workload.title", "workload.max_micro_batch", "recipe.target", "recipe.data.folder")
NO_PEER_TO_PEER = "no peer-to-peer"  # `interconnect` of groups that did not use it


@dataclass
class ThroughputGroup:
    """Measurements of one configuration; `config` is flat, by dotted key.

    `accelerator` is the name of the accelerator's configuration, or the driver's name of a GPU without one. Runs that
    ran out of memory are counted in `out_of_memory` and have no result. `attempts` holds the last start of the others.
    `label` is added to the title.
    """

    accelerator: str
    config: dict[str, Any]
    results: list[ThroughputResult] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)
    out_of_memory: int = 0
    label: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration, with the accelerator."""
        return {"accelerator": self.accelerator, **self.config}

    @property
    def network(self) -> str:
        """The trained network: that of the recipe, else the workload."""
        return as_name(self.config.get("recipe.training.network") or self.config["workload.name"])

    @property
    def num_accelerators(self) -> int:
        """Number of GPUs, or of processes on the CPU."""
        return int(self.config["gpus"])

    @property
    def precision(self) -> str:
        """The number format."""
        return str(self.config["precision.name"])

    @property
    def precision_label(self) -> str:
        """The number format, and whether the model was compiled."""
        return f"{self.precision} compiled" if self.config.get("engine.compile") else self.precision

    @property
    def batch(self) -> int:
        """Samples per training step and device."""
        return math.ceil(self.config["recipe.global_batch_size"] / self.num_accelerators)

    @property
    def interconnect(self) -> str:
        """Whether GPUs exchanged data peer-to-peer; empty for a single one."""
        if self.num_accelerators == 1:
            return ""
        return "peer-to-peer" if self.config["peer_to_peer"] else NO_PEER_TO_PEER

    @property
    def title(self) -> str:
        """A description of the configuration."""
        interconnect = f", {self.interconnect}" if self.interconnect else ""
        accelerators = f"{self.num_accelerators} x {self.accelerator}"
        end = interconnect + (f", {self.label}" if self.label else "")
        return f"{self.network}, {accelerators}, {self.precision_label}, batch {self.batch} per GPU{end}"

    @cached_property
    def samples_per_second(self) -> list[float]:
        """Training samples per second over all devices, of each run that has them."""
        return [result.samples_per_second for result in self.results if result.samples_per_second]

    @cached_property
    def train_ms(self) -> list[float]:
        """Milliseconds of a training step."""
        return [result.train_ms for result in self.results if result.train_ms]

    @cached_property
    def eval_ms(self) -> list[float]:
        """Milliseconds of an evaluation batch."""
        return [result.eval_ms for result in self.results if result.eval_ms]

    @cached_property
    def usd_per_samples_per_second(self) -> list[float]:
        """Purchase price of the devices over training samples per second."""
        return [price for result in self.results if (price := result.usd_per_samples_per_second)]


@dataclass(frozen=True)
class ThroughputComparison:
    """Two groups of the same network; `speed` is the ratio of training samples per second, other over baseline."""

    baseline: ThroughputGroup
    other: ThroughputGroup
    differences: list[str]
    speed: LogEstimate

    @property
    def verdict(self) -> Verdict:
        """The verdict on the other group."""
        return decide(self.speed, self.speed.interval()) if self.speed.n else Verdict.CANNOT_TELL

    @property
    def phrase(self) -> str:
        """The verdict in words."""
        if not self.speed.n:
            return "no ratio, because one of them ran out of memory"
        runs = f"{len(self.other.results)} vs. {len(self.baseline.results)} runs"
        return f"{describe_speedup(self.speed)} by samples per second, {runs}"

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as the object that `timetrial compare --json` prints."""
        sides = {"baseline": self.baseline, "other": self.other}
        return {
            **{name: group.title for name, group in sides.items()},
            "verdict": self.verdict.value,
            **bounds_as_json(self.speed.interval() if self.speed.n else UNKNOWN, "ratio"),
            "basis": "samples per second",
            "runs": {name: len(group.results) for name, group in sides.items()},
            "failures": {name: group.out_of_memory for name, group in sides.items()},
            "reasons": [] if self.verdict != Verdict.CANNOT_TELL else [self.phrase],
            "differences": self.differences,
        }


def read_throughput_groups(paths: Iterable[Path], pass_over: PassOver = ignore) -> list[ThroughputGroup]:
    """Return the groups of all throughput runs at or below `paths`.

    `pass_over` receives the error of each run record that cannot be used.
    """
    groups: dict[str, ThroughputGroup] = {}
    for run_dir in _find_run_dirs(paths):
        try:
            record = read_record(run_dir)
            if record is not None and _is_measurement(record):
                _add_record(record, groups)
        except UnreadableFile as error:
            pass_over(error)
        except (KeyError, TypeError, AttributeError) as error:
            reason = f"its configuration is incomplete, {type(error).__name__}: {error}"
            pass_over(UnreadableFile(run_dir / FILE_NAME, reason))
    return list(groups.values())


def _find_run_dirs(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        for folder, subfolders, names in os.walk(path):
            subfolders.sort()
            if {"status.json", "config.yaml"} <= set(names):
                yield Path(folder)


def _is_measurement(record: RunRecord) -> bool:
    settings = record.config.get("throughput")
    is_throughput = isinstance(settings, dict) and bool(settings.get("steps"))
    return is_throughput and record.state in (RunState.MEASURED, RunState.OUT_OF_MEMORY)


def _add_record(record: RunRecord, groups: dict[str, ThroughputGroup]) -> None:
    """Add a throughput run to its group; raise KeyError, TypeError or AttributeError for a missing setting."""
    config = record.config
    accelerator = as_name(config["accelerator"]["name"])
    if accelerator == "auto":
        accelerator = _first_gpu_name(record.environment) or accelerator
    flat = flatten_settings(config)
    group = ThroughputGroup(accelerator, flat)
    _ = group.title, group.batch, flat["system"], flat["data.loader"]  # raises if a setting is missing
    group = groups.setdefault(json.dumps([accelerator, flat], sort_keys=True), group)
    group.flags |= set(record.flags)
    if record.state == RunState.OUT_OF_MEMORY:
        group.out_of_memory += 1
    elif record.throughput is not None:
        group.results.append(record.throughput)
        group.attempts += record.attempts[-1:]


def flatten_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what affects the speed of a run, by dotted key."""
    parts = {key: config.get(key, True) for key in _CONFIG_GROUPS}  # old records without peer_to_peer used it
    parts["accelerator"] = {"threads": (config.get("accelerator") or {}).get("threads")}
    parts["launcher"] = {"nodes": (config.get("launcher") or {}).get("nodes", 1)}
    return {
        as_name(key): as_name(value) if isinstance(value, str) else value
        for key, value in flatten(parts)
        if not key.startswith(_IGNORED)
    }


def _first_gpu_name(environment: dict[str, Any]) -> str:
    gpus = environment.get("gpus")
    first = gpus[0] if isinstance(gpus, list) and gpus else {}
    return as_name(first.get("name", "")) if isinstance(first, dict) else ""


def compare_closest(
    baselines: Sequence[ThroughputGroup], others: Sequence[ThroughputGroup]
) -> list[ThroughputComparison]:
    """Compare each of `others` with those baselines that have the same network and the fewest differences."""
    closest = []
    for other in others:
        comparisons = [_compare(baseline, other) for baseline in baselines if baseline.network == other.network]
        fewest = min((len(comparison.differences) for comparison in comparisons), default=0)
        closest += [comparison for comparison in comparisons if len(comparison.differences) == fewest]
    return closest


def _compare(baseline: ThroughputGroup, other: ThroughputGroup) -> ThroughputComparison:
    settings = [group.settings for group in (baseline, other)]
    keys = [key for key in dict.fromkeys([*settings[0], *settings[1]]) if settings[0].get(key) != settings[1].get(key)]
    differences = [f"{key}: {settings[0].get(key)} vs. {settings[1].get(key)}" for key in keys]
    rates = [Sample(tuple(group.samples_per_second)) for group in (other, baseline)]
    return ThroughputComparison(baseline, other, differences, log_ratio(*rates))


def compare_peer_to_peer(groups: Sequence[ThroughputGroup]) -> list[Finding]:
    """Return the effect of peer-to-peer transfers for every two groups that differ in nothing else."""
    multi_gpu = [group for group in groups if group.num_accelerators > 1]
    enabled, disabled = (
        [group for group in multi_gpu if group.config["peer_to_peer"] is state] for state in (True, False)
    )
    comparisons = (
        _compare(baseline, other) for other, baseline in product(enabled, disabled) if baseline.network == other.network
    )
    return [
        Finding("note", comparison.other.title, f"Peer-to-peer enabled vs. disabled: {comparison.phrase}.")
        for comparison in comparisons
        if len(comparison.differences) == 1
    ]


def split_by_run(groups: Iterable[ThroughputGroup]) -> list[ThroughputGroup]:
    """Return a group for each measurement, so that `to_measurements` shows the repeats and not their mean.

    A group of which all runs ran out of memory stays as it is.
    """
    return [
        single
        for group in groups
        for single in [replace(group, results=[result], out_of_memory=0) for result in group.results] or [group]
    ]


def to_measurements(groups: Iterable[ThroughputGroup]) -> list[ExternalMeasurement]:
    """Return the means over the runs of each group in the form of external measurements, to be shown next to these."""
    alike: dict[tuple[Any, ...], list[ThroughputGroup]] = defaultdict(list)
    for group in groups:
        alike[_measurement_key(group)].append(group)
    return [
        measurement
        for same in alike.values()
        for group in same
        for measurement in _group_measurements(group, _describe_execution(group, same))
    ]


def _describe_execution(group: ThroughputGroup, same: Sequence[ThroughputGroup]) -> str:
    """Return the settings of the engine in which `group` differs from groups that measured the same; "" if none."""
    differing = [key for key in _EXECUTION_KEYS if len({str(other.config.get(key)) for other in same}) > 1]
    settings = [f"{key.removeprefix('engine.')}={json.dumps(group.config.get(key))}" for key in differing]
    return " ".join(settings).replace('"', "")


def _measurement_key(group: ThroughputGroup) -> tuple[Any, ...]:
    system, network = group.config["system"], group.network
    return system, network, group.accelerator, group.num_accelerators, group.precision, group.interconnect, group.batch


def _group_measurements(group: ThroughputGroup, execution: str) -> Iterator[ExternalMeasurement]:
    eval_batch = group.config.get("recipe.data.eval_batch_size")
    eval_batch = eval_batch if isinstance(eval_batch, int) else None
    prices = group.usd_per_samples_per_second
    rows: list[tuple[str, int | None, str, list[float]]] = [
        ("train", group.batch, "samples_per_second", group.samples_per_second),
        ("train", group.batch, "milliseconds", group.train_ms),
        *([("eval", eval_batch, "milliseconds", group.eval_ms)] if group.eval_ms else []),
        *([("train", group.batch, "usd_per_samples_per_second", prices)] if prices else []),
    ]
    for task, batch, metric, values in rows:
        yield ExternalMeasurement(
            study=f"timetrial throughput on {group.config['system']}",
            source=OWN_RUNS,
            published="",
            workload=group.network,
            task=task,
            accelerator=group.accelerator,
            num_accelerators=group.num_accelerators,
            precision=f"{group.precision} {execution}".strip(),
            interconnect=group.interconnect,
            batch=batch,
            metric=metric,
            value=sum(values) / len(values) if values else None,
            outcome="measured" if values else "out of memory",
            baseline="",
            note=_describe_runs(len(values), group.out_of_memory),
        )


def _describe_runs(runs: int, out_of_memory: int) -> str:
    mean = f"mean of {runs} runs" if runs > 1 else ""
    failed = f"{out_of_memory} more out of memory" if runs and out_of_memory else ""
    return ", ".join(filter(None, (mean, failed)))

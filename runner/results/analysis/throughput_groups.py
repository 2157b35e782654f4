"""Throughput groups: runs of `timetrial throughput` that differ only by seed and by chance."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ...config.diff import flatten
from ...core.execution_paths import merge_paths
from ...core.found_files import PassOver, UnreadableFile, as_name
from ...record import validity
from ...record.attempt import Attempt
from ...record.record_file import FILE_NAME, read_record
from ...record.run_record import Acceptance, RunRecord, RunState
from ...record.throughput_result import ThroughputResult
from ..parse.sources import ignore
from .distortion import lost_log

# Configuration groups that affect a measurement; `seed` and paths do not.
_CONFIG_GROUPS = ("workload", "recipe", "engine", "precision", "data", "tuning", "system", "gpus", "peer_to_peer")
_IGNORED = ("workload.title", "workload.max_micro_batch", "recipe.target", "target", "recipe.data.folder")
DISTURBANCES = (validity.BUSY_HOST, validity.THROTTLED)
"""Flags of disturbed throughput runs, for which waiting for batches is a part of the speed."""
PATH = "executed."
"""Beginning of the names of execution paths among settings."""
NO_PEER_TO_PEER = "no peer-to-peer"  # `interconnect` of groups that did not use it


@dataclass
class ThroughputGroup:
    """Measurements of one configuration; `config` is flat, by dotted key.

    `accelerator` is the name of the accelerator's configuration, or the driver's name of a GPU without one. Runs that
    ran out of memory are counted in `out_of_memory` and have no result. `attempts` holds the last start of the others,
    `execution_paths` what they executed, `accepted` the acceptance of their machines, `lost_logs` by how much the log
    of their time can be too high because they were disturbed. `label` is added to the title.
    """

    accelerator: str
    config: dict[str, Any]
    results: list[ThroughputResult] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)
    execution_paths: list[dict[str, str]] = field(default_factory=list)
    accepted: list[Acceptance | None] = field(default_factory=list)
    lost_logs: list[float] = field(default_factory=list)
    out_of_memory: int = 0
    label: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration, with the accelerator."""
        return {"accelerator": self.accelerator, **self.config}

    @property
    def executed(self) -> dict[str, str]:
        """What was executed, such as `{"executed.steps": "captured"}`."""
        return {f"{PATH}{part}": path for part, path in merge_paths(self.execution_paths).items()}

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
        group.accepted.append(record.accepted)
        group.lost_logs.append(lost_log(record.flags, record.disturbed_share, DISTURBANCES))
        paths = {as_name(part): as_name(path) for part, path in record.execution_paths.items()}
        group.execution_paths.append(paths)


def flatten_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what affects the speed of a run, by dotted key."""
    parts = {key: config.get(key) for key in _CONFIG_GROUPS}
    parts["engine"] = {
        "kernels": True,
        "deterministic": False,
        **(config.get("engine") or {}),
    }  # older runs do not state them
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

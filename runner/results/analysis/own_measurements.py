"""Own results in the form of external measurements, to be shown and compared beside these."""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..parse.external import OWN_RUNS, ExternalMeasurement
from .groups import RunGroup
from .throughput_groups import ThroughputGroup

_EXECUTION_KEYS = ("engine.compile", "engine.capture", "engine.kernels", "engine.deterministic")


def measure_runs(groups: Iterable[RunGroup]) -> list[ExternalMeasurement]:
    """Return time-to-train and epochs of run groups in the form of external measurements."""
    values: dict[str, Callable[[RunGroup], float]] = {
        "minutes": lambda group: group.mean_minutes.estimate,
        "epochs": lambda group: group.mean_epochs.estimate,
    }
    return [
        ExternalMeasurement(
            study=group.title,
            source=OWN_RUNS if group.runs[0].run_record is not None else group.submitter,
            published="",
            workload=" ".join(part for part in (group.model, group.runs[0].scale) if part and part != "reference"),
            task="train",
            accelerator=group.runs[0].accelerator or group.system,
            num_accelerators=group.runs[0].num_accelerators or 1,
            precision=group.runs[0].precision,
            interconnect="",
            batch=None,
            metric=metric,
            value=value_of(group),
            outcome="measured",
            baseline="",
            note="",
        )
        for group in groups
        for metric, value_of in values.items()
        if group.converged_runs and math.isfinite(value_of(group))
    ]


def split_by_run(groups: Iterable[ThroughputGroup]) -> list[ThroughputGroup]:
    """Return a group for each measurement, so that `measure_throughput` shows the repeats and not their mean.

    A group of which all runs ran out of memory stays as it is.
    """
    return [
        single
        for group in groups
        for single in [replace(group, results=[result], out_of_memory=0) for result in group.results] or [group]
    ]


def measure_throughput(groups: Iterable[ThroughputGroup]) -> list[ExternalMeasurement]:
    """Return the means over the runs of each group in the form of external measurements."""
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

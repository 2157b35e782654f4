"""Engines that `timetrial accept` trains, and their throughput."""

import copy
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from ...callbacks.telemetry import TelemetrySampler, telemetry_path
from ...config.compose import compose
from ...config.schema import Config
from ...config.validation import micro_batch_size, resolve_classes, validate
from ...core.errors import DeviceError, OutOfMemory
from ...core.progress import no_progress
from ...hardware import devices
from ...hardware.error_translation import to_run_error
from ...hardware.sensors import open_sensors
from ...launch.build_engine import build_engine
from ...launch.overrides import with_accelerator
from ...launch.staging import data_settings
from ...record.energy import summarize_telemetry
from ...record.reference_throughput import reference_throughputs
from ...training.clock import now
from ...training.distributed import World
from ...training.events import RunStarted, RunStopped
from ...training.torch_engine import TorchEngine
from .figures import Rates, Sustained

_RATE_BLOCKS, _MIN_RATE_BLOCKS = 7, 2  # of each workload


def common_overrides(device: torch.device, folder: Path) -> list[str]:
    """Return the overrides of every workload: synthetic data, files in `folder`, 16-bit precision on a GPU."""
    precision = "fp32"
    if device.type != "cpu":
        try:
            devices.require_precision(device, "bf16")
            precision = "bf16"
        except DeviceError:
            precision = "fp16"
    return ["data=synthetic", "seed=1", f"precision={precision}", f"run_dir={folder}", f"data_dir={folder}/data"]


def open_engine(
    overrides: Sequence[str], device: torch.device, *, can_repeat_bits: bool = False
) -> tuple[Config, TorchEngine]:
    """Return a configuration and its engine on one device, with its data open, halving the micro-batch until it fits.

    The engine is warmed up; one that `can_repeat_bits` has trained a step and returned to its initial state.
    """
    node = compose(with_accelerator(overrides)).node
    while True:
        config = validate(node)
        try:
            return config, _open(config, device, can_repeat_bits=can_repeat_bits)
        except (RuntimeError, MemoryError) as error:
            smaller = micro_batch_size(config, halvings=1)
            if not isinstance(to_run_error(error), OutOfMemory) or not smaller:
                raise
        node.tuning.micro_batch_size = smaller


def _open(config: Config, device: torch.device, *, can_repeat_bits: bool) -> TorchEngine:
    _, data_class = resolve_classes(config)
    data_class.prepare_data(data_settings(config, data_class), no_progress)
    engine = build_engine(config, World(), device)
    assert isinstance(engine, TorchEngine)
    if can_repeat_bits:
        initial = copy.deepcopy(engine.state_dict())
        engine.open_data()
        engine.train_step(next(iter(engine.data.train_batches(1))))
        engine.load_state_dict(initial)
    else:
        engine.warm_up()
        engine.open_data()
    devices.synchronize(device)
    return engine


def measure_rates(config: Config, engine: TorchEngine, baseline: str, deadline: float) -> tuple[Rates, Iterator[float]]:
    """Return the throughput until `deadline` (wall time) with its reference, and the blocks that follow.

    The blocks are those of `timetrial throughput`, of which the first is left out: each trains on other batches, so
    that throughputs are comparable block by block. The reference throughput is that of the accelerator config
    `baseline`.
    """
    unit, reference, source = _reference(config, baseline)
    blocks = measure_blocks(engine, unit)
    values: list[float] = []
    next(blocks)
    while len(values) < _MIN_RATE_BLOCKS or (len(values) < _RATE_BLOCKS and time.time() < deadline):
        values.append(next(blocks))
    return Rates(config.workload.title, unit, tuple(values), micro_batch_size(config), reference, source), blocks


def _reference(config: Config, baseline: str) -> tuple[str, float | None, str]:
    found = [row for row in reference_throughputs(asdict(config)) if row.gpu.lower() == baseline]
    is_text = bool(found and found[0].unit == "tokens/s")
    unit = "tokens/s" if is_text else "samples/s"
    if not found:
        return unit, None, ""
    age = "" if found[0].current else "older code, "
    return unit, found[0].value, f"{found[0].gpu} ({age}{found[0].date[:7]})"


def measure_blocks(engine: TorchEngine, unit: str) -> Iterator[float]:
    """Yield the throughput of one block after the other; the engine must not have trained yet.

    A block is the first `throughput.steps` of an epoch. Each starts from the same state, since a state that training
    changes could change the power that a GPU needs.
    """
    initial = copy.deepcopy(engine.state_dict())
    for epoch in itertools.count(1):
        engine.load_state_dict(initial)
        engine.synchronize()
        started = time.perf_counter()
        results = list(engine.train_epoch(epoch))
        engine.synchronize()
        duration = time.perf_counter() - started
        yield sum(result.tokens if unit == "tokens/s" else result.samples for result in results) / duration


def sustain(
    rates: Rates, blocks: Iterator[float], deadline: float, folder: Path, num_gpus: int, launcher_pid: int
) -> Sustained:
    """Train until `deadline` (wall time) with the sensors read every second; `folder` takes their samples."""
    sampler = TelemetrySampler(telemetry_path(folder, 0), open_sensors(num_gpus), 1.0, launcher_pid)
    started = time.perf_counter()
    try:
        sampler(RunStarted(time=now(), params={}))
        values = tuple(itertools.takewhile(lambda _: time.time() < deadline, blocks))
        sampler(RunStopped(time=now(), status="success"))
    finally:
        sampler.close()
    active = time.perf_counter() - started
    report = summarize_telemetry(
        folder,
        train_seconds=active,
        data_wait_seconds=0.0,
        active_seconds=active,
        samples=0,
        usd_per_hour=None,
        num_gpus_expected=num_gpus,
    )
    summary = report.telemetry
    return Sustained(
        rates.name,
        rates.unit,
        active,
        values,
        report.flags,
        core_mhz=summary.core_mhz if summary else None,
        highest_temperature_c=summary.highest_temperature_c if summary else None,
        mean_watts=summary.mean_watts if summary else None,
        at_power_cap=summary.at_power_cap if summary and num_gpus else None,
    )

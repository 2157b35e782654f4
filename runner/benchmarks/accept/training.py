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
from ...training.engine import StepResult
from ...training.events import RunStarted, RunStopped
from ...training.torch_engine import TorchEngine
from .figures import Rates, Sustained

_MAX_BLOCK_SECONDS = 5.0
_MIN_BLOCKS = 9  # of sustained load


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


def measure_rates(config: Config, engine: TorchEngine, baseline: str, seconds: float, num_blocks: int) -> Rates:
    """Return the throughput over some seconds, and the reference throughput of the accelerator config `baseline`."""
    unit, reference, source = _reference(config, baseline)
    values = tuple(measure_blocks(engine, seconds, seconds / num_blocks, unit))
    return Rates(config.workload.title, unit, values, reference, source)


def _reference(config: Config, baseline: str) -> tuple[str, float | None, str]:
    found = [row for row in reference_throughputs(asdict(config)) if row.gpu.lower() == baseline]
    is_text = bool(found and found[0].unit == "tokens/s")
    unit = "tokens/s" if is_text else "samples/s"
    if not found:
        return unit, None, ""
    age = "" if found[0].current else "older code, "
    return unit, found[0].value, f"{found[0].gpu} ({age}{found[0].date[:7]})"


def measure_blocks(engine: TorchEngine, seconds: float, block_seconds: float, unit: str) -> Iterator[float]:
    """Yield the throughput of training from the present state, in blocks of about `block_seconds`.

    Each block starts from the same state, so that however long it takes, the work is the same.
    """
    initial = copy.deepcopy(engine.state_dict())
    until, steps = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        engine.load_state_dict(initial)
        engine.synchronize()
        started = time.perf_counter()
        results = list(itertools.islice(training_steps(engine), steps or 1))
        engine.synchronize()
        duration = time.perf_counter() - started
        if steps:
            yield sum(result.tokens if unit == "tokens/s" else result.samples for result in results) / duration
        steps = steps or max(1, round(block_seconds / duration))


def training_steps(engine: TorchEngine) -> Iterator[StepResult]:
    """Train epoch after epoch, and yield the result of each step."""
    return itertools.chain.from_iterable(map(engine.train_epoch, itertools.count(1)))


def sustain(engine: TorchEngine, rates: Rates, seconds: float, folder: Path, launcher_pid: int) -> Sustained:
    """Train for so many seconds with the sensors read every second; `folder` takes their samples."""
    num_gpus = int(engine.device.type != "cpu")
    sampler = TelemetrySampler(telemetry_path(folder, 0), open_sensors(num_gpus), 1.0, launcher_pid)
    started = time.perf_counter()
    try:
        sampler(RunStarted(time=now(), params={}))
        block_seconds = min(seconds / _MIN_BLOCKS, _MAX_BLOCK_SECONDS)
        values = tuple(measure_blocks(engine, seconds, block_seconds, rates.unit))
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

"""Engines for measurements: built and warmed up as `timetrial run` does, on one rank or several."""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from timetrial.runner.config.compose import compose
from timetrial.runner.config.schema import Config
from timetrial.runner.config.validation import resolve_classes, validate
from timetrial.runner.core.progress import no_progress
from timetrial.runner.hardware import devices
from timetrial.runner.launch.build_engine import build_engine
from timetrial.runner.launch.overrides import with_accelerator
from timetrial.runner.launch.staging import data_settings
from timetrial.runner.training import distributed
from timetrial.runner.training.distributed import World
from timetrial.runner.training.engine import StepResult
from timetrial.runner.training.torch_engine import TorchEngine

_HANG_TIMEOUT_SECONDS = 300.0  # ranks compile at different speeds


def configure(overrides: list[str], run_dir: str) -> Config:
    """Return the configuration of a run on this machine, which writes nothing to `run_dir`."""
    return validate(compose(with_accelerator([f"run_dir={run_dir}", *overrides])).node)


def build(config: Config, world: World | None = None) -> TorchEngine:
    """Return the engine of one rank, warmed up; its data are prepared and not yet open."""
    world = world or World()
    _, data_class = resolve_classes(config)
    if world.rank == 0:
        data_class.prepare_data(data_settings(config, data_class), no_progress)
    world.barrier()
    engine = build_engine(config, world, devices.select_device(config.accelerator.name, world.local_rank))
    assert isinstance(engine, TorchEngine)
    engine.warm_up()
    return engine


def training_steps(engine: TorchEngine) -> Iterator[StepResult]:
    """Train epoch after epoch, and yield the result of each step."""
    return itertools.chain.from_iterable(map(engine.train_epoch, itertools.count(1)))


@contextmanager
def joined_ranks(gpus: int) -> Iterator[World]:
    """Run this command once for each of several GPUs, and yield the world of each process.

    The process that starts the others waits for them and exits.
    """
    if gpus > 1 and "RANK" not in os.environ:
        with distributed.local_store() as store:
            variables = [distributed.rank_environment(store, rank, rank, gpus) for rank in range(gpus)]
            command = [sys.executable, "-P", *sys.argv]
            ranks = [subprocess.Popen(command, env={**os.environ, **own}) for own in variables]
            codes = [rank.wait() for rank in ranks]
        sys.exit(max(map(abs, codes)))
    device = devices.select_device(devices.detect_accelerator(), int(os.environ.get("LOCAL_RANK", "0")))
    with distributed.join_world(device, _HANG_TIMEOUT_SECONDS) as world:
        yield world

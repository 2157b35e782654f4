"""The stage of a rank that builds its engine, warms it up, and records how long that took."""

import gc
import itertools
import weakref
from dataclasses import asdict, replace

import torch
from hydra.utils import get_class

from ..callbacks.throughput import LimitedBatches
from ..config.schema import Config
from ..config.validation import build_settings, gradient_accumulation_steps, resolve_classes, run_seed
from ..core import execution_paths
from ..core.console import StatusLine, is_quiet, print_text
from ..core.spans import union_length
from ..hardware import custom_kernels, devices
from ..hardware.determinism import require_determinism
from ..hardware.kernel_compilation import compiled_kernels
from ..hardware.precision import Precision
from ..mlperf import closed_division
from ..record.run_record import RunRecord
from ..training import all_reduce, seeds
from ..training.distributed import World
from ..training.engine import Engine
from ..training.torch_engine import TorchEngine
from ..training.workload import BatchSharding
from .rank import Rank
from .staging import data_settings
from .startup_clock import StartupClock

built_engines: "weakref.WeakSet[Engine]" = weakref.WeakSet()
"""The engines of this process that `prepare_engine` has built and nothing has freed."""
_runs_of_process = itertools.count()


def prepare_engine(rank: Rank) -> Engine:
    """Return the engine of this rank, warmed up; with `division=closed`, refuse data of another size."""
    config = rank.config
    earlier_runs = next(_runs_of_process)
    clock = StartupClock(rank.run_dir.record().attempts[-1])
    devices.reset_peak_memory(rank.device)
    engine = build_engine(config, rank.world, rank.device)
    built_engines.add(engine)
    clock.end("model and data")
    if config.division == "closed":
        closed_division.check_sizes(config, train_size=engine.data.train_size, eval_size=engine.data.eval_size)
    activity = "compiling" if config.engine.compile is not None else "warming up"
    with compiled_kernels() as spans:
        _warm_up(engine, rank, activity)
    clock.end(activity)
    clock.split(activity, "compiling Triton kernels", union_length(spans))  # threads compile at the same time
    if rank.is_main:
        _record_startup(rank, clock, earlier_runs)
    if rank.world.size > 1:
        _record_bus_bandwidth(rank)
    if config.launcher.name != "inline":  # whose process is the caller's
        _set_objects_aside()
    return engine


def build_engine(config: Config, world: World, device: torch.device) -> Engine:
    """Build the engine of one rank, with its workload and data, from the configuration alone."""
    workload_class, data_class = resolve_classes(config)
    custom_kernels.enable(config.engine.kernels)
    if config.engine.deterministic:
        require_determinism()
    execution_paths.take("loader", config.data.loader)
    recipe, streams = config.recipe, seeds.derive_streams(run_seed(config), **asdict(config.seeds))
    accumulation = gradient_accumulation_steps(config)
    with world.main_process_first():
        data = data_class(
            data_settings(config, data_class),
            global_batch_size=recipe.global_batch_size,
            sharding=BatchSharding(world.rank, world.size, accumulation),
            device=device,
            seeds=streams,
        )
    data.start_processes()  # which takes the less time, the less memory this process has
    workload = workload_class(build_settings(workload_class, recipe.training, "recipe.training"), data)
    steps = config.throughput.steps
    common = {
        "workload": workload,
        "data": LimitedBatches(data, steps) if steps else data,
        "global_batch_size": recipe.global_batch_size,
        "accumulation": accumulation,
        "compile_mode": config.engine.compile,
        "run_seeds": streams,
    }
    if config.engine.name != "torch":
        engine_class = get_class(config.workload.engines[config.engine.name])
        engine: Engine = engine_class(**common, precision=config.precision.name, gpus=config.gpus)
        return engine
    return TorchEngine(
        **common,
        precision=Precision(config.precision.name, device),
        max_grad_norm=recipe.max_grad_norm,
        capture=config.engine.capture,
        cudnn_benchmark=config.engine.cudnn_benchmark and not config.engine.deterministic,
        world=world,
    )


def _set_objects_aside() -> None:
    """Take all objects out of later garbage collections.

    One that visits the modules of PyTorch takes a tenth of a second, which is a third of a small run.
    """
    gc.collect()
    gc.freeze()


def _warm_up(engine: Engine, rank: Rank, activity: str) -> None:
    """Warm up, showing the activity where it may take long.

    Compiling can take minutes, and so can cuDNN's search for the fastest convolutions of large fp32 batches.
    """
    takes_minutes = activity == "compiling" or rank.device.type != "cpu"
    with StatusLine(rank.console) as status_line:
        if rank.config.engine.warm_up:
            if rank.is_main and (takes_minutes or rank.console.is_terminal):
                status_line(f"{activity}, which can take minutes" if takes_minutes else activity)
            engine.warm_up()
        engine.synchronize()


def _record_startup(rank: Rank, clock: StartupClock, earlier_runs: int) -> None:
    def change(record: RunRecord) -> RunRecord:
        *earlier, attempt = record.attempts
        return replace(record, attempts=(*earlier, replace(attempt, startup=clock.seconds, earlier_runs=earlier_runs)))

    rank.run_dir.update(change)
    if not is_quiet():
        print_text(rank.console, str(clock), markup=False, highlight=False)


def _record_bus_bandwidth(rank: Rank) -> None:
    """Add the bus bandwidth between the ranks to the environment in the run record."""
    measured = {"all_reduce_gb_s": all_reduce.measure_once(rank.world, rank.device)}
    if rank.is_main:
        rank.run_dir.update(lambda record: replace(record, environment=record.environment | measured))

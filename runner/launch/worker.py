"""One rank of a run: builds, warms up, resumes, trains, and says how it ended."""

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from hydra.utils import get_class
from rich.console import Console

from ..callbacks import telemetry
from ..callbacks.progress import Lines, ProgressBar
from ..callbacks.summary import Summary
from ..callbacks.throughput import LimitedBatches, ThroughputMeter, until_stopped
from ..config import schema
from ..config.schema import Config
from ..core.errors import Exit, RunError, Stopped, TimeLimit
from ..core.signals import StopSignal
from ..hardware import devices
from ..hardware.precision import Precision
from ..mlperf import compliance
from ..mlperf.log_writer import MLPerfLog
from ..record.flops import PURCHASE
from ..record.run_dir import RunDir
from ..training import all_reduce, checkpoint, distributed, flops, seeds
from ..training.checkpoint import Checkpointer
from ..training.distributed import World
from ..training.events import InitStarted, Observer
from ..training.loop import TrainingPlan, train_to_target
from ..training.torch_engine import TorchEngine
from ..training.workload import BatchSharding

_LINKS_MIB = 64  # of a tensor that says how fast the ranks add up: milliseconds


def work(settings: Config, folder: RunDir, console: Console, stop: StopSignal) -> Exit:
    """Runs this rank to its end; disorderly ends leave their sentence in the folder for the launcher."""
    try:
        return _run(settings, folder, console, stop)
    except Exception as error:
        if not isinstance(error, RunError):
            traceback.print_exc()
        known = devices.explain(error)
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        sentence = str(
            known or f"{type(error).__name__} at {where}: {error} (this is a defect of timetrial: please report it)."
        )
        code = known.exit_code if known else Exit.FAILURE
        try:
            folder.write_error(int(os.environ.get("RANK", "0")), code, sentence)
        except RunError:
            console.print(sentence, soft_wrap=True)
        return code


def _run(settings: Config, folder: RunDir, console: Console, stop: StopSignal) -> Exit:
    """Initialises off the clock, then trains; the order is that of MLPerf's rules."""
    device = devices.device(settings.accelerator.name, int(os.environ.get("LOCAL_RANK", "0")))
    if settings.accelerator.threads is not None:
        torch.set_num_threads(settings.accelerator.threads)
    saved = checkpoint.load(folder.checkpoint) if folder.checkpoint.exists() else None
    with (
        distributed.join(device, settings.launcher.hang_timeout_seconds, peer_to_peer=settings.peer_to_peer) as world,
        _sampling(settings, folder, world) as sampler,
    ):
        if settings.throughput.steps:
            return _measure(settings, folder, console, stop, world, device, sampler)
        return _train(settings, folder, console, stop, world, device, saved, sampler)


@contextmanager
def _sampling(settings: Config, folder: RunDir, world: World) -> Iterator[list[Observer]]:
    """The observer that samples this node's cards and host, on the first rank of each; none with `every_seconds` 0."""
    every = settings.telemetry.every_seconds
    if not every or world.local_rank:
        yield []
        return
    nodes = settings.launcher.nodes
    count = 0 if settings.accelerator.name == "cpu" else settings.gpus // nodes
    node = world.rank // (world.size // nodes)
    sampler = telemetry.Telemetry(telemetry.file_of(folder.path, node), devices.sensors(count), every)
    try:
        yield [sampler]
    finally:
        sampler.close()


def _measure(
    settings: Config,
    folder: RunDir,
    console: Console,
    stop: StopSignal,
    world: World,
    device: torch.device,
    sampler: list[Observer],
) -> Exit:
    """A fixed number of steps, without a log, a target or a checkpoint: nothing is learned that is worth keeping."""
    engine = _ready_engine(settings, folder, world, device, console)
    assert isinstance(engine.data, LimitedBatches)
    measured = ThroughputMeter(world.size, engine.data)
    plan = TrainingPlan(target={}, first_eval_epoch=1, eval_every_epochs=1, max_epochs=settings.throughput.blocks)
    train_to_target(engine, plan, [*sampler, measured, until_stopped(stop)])
    if world.rank == 0:
        peak = devices.peak_memory_bytes(device)
        cards = {"cards": settings.gpus, "sheet_tflops": settings.accelerator.tflops.get(settings.precision.name)}
        cards["peer_to_peer"] = settings.peer_to_peer
        result = measured.result() | cards | {"counted": None}
        bought = settings.accelerator.usd_per_gpu
        paid = bought * settings.gpus / result["samples_per_second"] if bought else None
        result[PURCHASE] = paid
        folder.update_status(exit_code=int(Exit.TARGET_REACHED), error="", peak_memory_bytes=peak, result=result)
        # Which takes seconds, while what was measured is safe already.
        folder.update_status(result=result | {"counted": flops.counted(engine)})
    return Exit.TARGET_REACHED


def _train(
    settings: Config,
    folder: RunDir,
    console: Console,
    stop: StopSignal,
    world: World,
    device: torch.device,
    saved: dict[str, Any] | None,
    sampler: list[Observer],
) -> Exit:
    """Trains to the target, logged and saved."""
    plan = plan_of(settings)
    with ExitStack() as closing:
        observers: list[Observer] = []
        if world.rank == 0:
            log = MLPerfLog(folder.log, _header(settings), plan.target, saved)
            closing.callback(log.close)
            log(InitStarted())
            summary = Summary(folder, plan, saved)
            observers = [log, summary]
        engine = _ready_engine(settings, folder, world, device, console)
        if saved:
            engine.load_state_dict(saved["engine"])
        if world.rank == 0:
            console.print(f"run folder {folder.path}", soft_wrap=True, markup=False)
            bar = ProgressBar(console, plan, engine.data.train_size)
            closing.callback(bar.close)
            observers.append(bar)
        checkpointer = Checkpointer(
            path=folder.checkpoint,
            engine=engine,
            world=world,
            stop=stop,
            history=lambda: {"log_bytes": log.size, "history": summary.history()},
            every_seconds=settings.checkpoint.every_seconds,
            time_limit_seconds=settings.time_limit_seconds,
            done=saved["done"] if saved else 0,
        )
        try:
            if world.any(bool(stop.name)):
                raise Stopped("Stopped before training began: run it again.")
            reached = train_to_target(engine, plan, [*observers, *sampler, checkpointer], done=checkpointer.done)
            code, sentence = (Exit.TARGET_REACHED if reached else Exit.TARGET_NOT_REACHED), ""
            if settings.checkpoint.at_end:  # the clock has stopped
                checkpointer.save()
        except (Stopped, TimeLimit) as end:
            # Past its target, a run that is stopped has its result already.
            code, sentence = (Exit.TARGET_REACHED, "") if checkpointer.over else (end.exit_code, str(end))
        if world.rank == 0:
            # Another framework keeps its own count.
            peak = devices.peak_memory_bytes(device) if settings.engine.name == "torch" else None
            folder.update_status(exit_code=int(code), error=sentence, peak_memory_bytes=peak)
    return code


def _ready_engine(settings: Config, folder: RunDir, world: World, device: torch.device, console: Console) -> Any:
    """The engine of one rank, warmed up; a person is told why nothing moves.

    Compiling can take minutes, and so can a card's search for the fastest convolutions of large fp32 batches.
    """
    devices.start_memory_watch(device)
    engine = build_engine(settings, world, device)
    doing = "compiling" if settings.engine.compile is not None else "warming up"
    can_take_minutes = doing == "compiling" or device.type != "cpu"
    with Lines(console) as tell:
        if settings.engine.warm_up:
            if world.rank == 0 and (can_take_minutes or console.is_terminal):
                tell(f"{doing}, which can take minutes" if can_take_minutes else doing, 0)
            engine.warm_up()
        engine.synchronize()
    if world.size > 1:
        speed = all_reduce.bus_gb_s(world, device, _LINKS_MIB if device.type != "cpu" else 1)
        if world.rank == 0:
            folder.add_to_system(all_reduce_gb_s=speed)
    return engine


def build_engine(settings: Config, world: World, device: torch.device) -> Any:
    """The engine of one rank, with its workload and data, from the configuration alone."""
    workload_class, data_class = schema.classes(settings)
    recipe, streams = settings.recipe, seeds.derive_streams(settings.seed, **asdict(settings.seeds))
    accumulation = schema.accumulation(settings)
    with world.main_process_first():
        data = data_class(
            schema.data_settings(settings, data_class),
            global_batch_size=recipe.global_batch_size,
            sharding=BatchSharding(world.rank, world.size, accumulation),
            device=device,
            seeds=streams,
        )
    workload = workload_class(schema.settings_of(workload_class, recipe.training, "recipe.training"), data)
    steps = settings.throughput.steps
    common = {
        "workload": workload,
        "data": LimitedBatches(data, steps) if steps else data,
        "global_batch_size": recipe.global_batch_size,
        "accumulation": accumulation,
        "compile_mode": settings.engine.compile,
        "seeds_of_run": streams,
    }
    if settings.engine.name != "torch":
        engine_class = get_class(settings.workload.engines[settings.engine.name])
        return engine_class(**common, precision=settings.precision.name, gpus=settings.gpus)
    return TorchEngine(
        **common, precision=Precision(settings.precision.name, device), max_grad_norm=recipe.max_grad_norm, world=world
    )


def plan_of(settings: Config) -> TrainingPlan:
    """When to evaluate and stop, from the recipe and the round."""
    recipe = settings.recipe
    return TrainingPlan(
        target=recipe.target[settings.round.name],
        first_eval_epoch=recipe.first_eval_epoch,
        eval_every_epochs=recipe.eval_every_epochs,
        max_epochs=recipe.max_epochs,
        epochs_past_target=settings.epochs_past_target,
    )


def _header(settings: Config) -> dict[str, Any]:
    """The log's lines before the facts, division first; a benchmark without closed rules is always open."""
    closed = settings.scale.division == "closed" and compliance.has_closed_rules(settings.workload.benchmark)
    submission = settings.submission
    streams = seeds.derive_streams(settings.seed, **asdict(settings.seeds))
    return {
        "submission_division": "closed" if closed else "open",
        "submission_benchmark": settings.workload.benchmark,
        "submission_org": submission.org,
        "submission_platform": submission.platform,
        "submission_status": submission.status,
        "submission_poc_name": submission.poc_name,
        "seed": settings.seed,
        **seeds.mlperf_params(streams),
    }


def _die_with_the_launcher() -> None:
    """On Linux: a launcher that is killed outright takes its ranks along, as a stop signal to each."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def main() -> None:
    """`python -P -m timetrial.runner.launch.worker FOLDER`: how the launcher starts a rank."""
    path, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    _die_with_the_launcher()
    terminal = os.fdopen(os.dup(2), "w")
    for number, name in ((1, "stdout"), (2, "stderr")):
        with open(path / f"{name}_{rank}.txt", "ab") as file:
            os.dup2(file.fileno(), number)
    settings = schema.load(path / "config.yaml")
    folder = RunDir(path, settings.seed)
    # A rank that has obeyed is told once more by its launcher where the batch system has told all processes.
    with folder.shared(), StopSignal().listen(ignore_after=True) as stop:
        code = work(settings, folder, Console(file=terminal), stop)
    orderly = (Exit.TARGET_REACHED, Exit.TARGET_NOT_REACHED, Exit.STOPPED, Exit.TIME_LIMIT)
    if code in orderly:
        sys.exit(0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code))  # at once: what is still under way on the device may wait for ranks that will never come


if __name__ == "__main__":
    main()

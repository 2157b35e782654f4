"""One rank of a run: build, warm up, resume, train, and record how it ended."""

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from hydra.utils import get_class
from rich.console import Console

from ..callbacks import telemetry
from ..callbacks.json_lines import JsonLines
from ..callbacks.profiler import StepProfiler
from ..callbacks.progress import ProgressBar
from ..callbacks.record_writer import RecordWriter
from ..callbacks.tensorboard import TensorBoard
from ..callbacks.throughput import BlockLines, LimitedBatches, ThroughputMeter
from ..config.compose import load_config
from ..config.schema import Config
from ..config.validation import build_settings, gradient_accumulation_steps, profiled_steps, resolve_classes, run_seed
from ..core.console import StatusLine, is_quiet
from ..core.errors import Exit, RunError, Stopped
from ..core.signals import StopSignal, signal_when_parent_ends
from ..hardware import devices
from ..hardware.error_translation import to_run_error
from ..hardware.precision import Precision
from ..hardware.sensors import open_sensors
from ..mlperf import closed_division
from ..mlperf.log_writer import MLPerfLog
from ..record.run_dir import RankError, RunDir
from ..training import all_reduce, distributed, flops, seeds
from ..training.checkpoint import Checkpointer, load_checkpoint
from ..training.distributed import World
from ..training.early_stop import EarlyStop
from ..training.engine import Engine
from ..training.events import InitStarted, Observer, StatefulObserver
from ..training.loop import Outcome, TrainingPlan, train_to_target
from ..training.torch_engine import TorchEngine
from ..training.workload import BatchSharding
from .early_ranks import LAUNCHER_PID, wait_for_run_dir
from .staging import data_settings
from .startup_clock import StartupClock

_ALL_REDUCE_MIB = 64  # tensor by which the speed of the interconnect is measured: milliseconds
_RESULTS = (Exit.TARGET_REACHED, Exit.TARGET_NOT_REACHED, Exit.STOPPED, Exit.TIME_LIMIT)


@dataclass(frozen=True)
class Rank:
    """What the stages of one rank share."""

    config: Config
    run_dir: RunDir
    console: Console
    stop: StopSignal
    world: World
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this rank writes the run's files."""
        return self.world.rank == 0


def run_rank(config: Config, run_dir: RunDir, console: Console, stop: StopSignal) -> Exit:
    """Run this rank to its end; an error is left in the run directory for the launcher."""
    try:
        return _run(config, run_dir, console, stop)
    except Exception as error:
        if not isinstance(error, RunError):
            traceback.print_exc()
        known = to_run_error(error)
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        sentence = str(
            known or f"{type(error).__name__} at {where}: {error} (this is a defect of timetrial: please report it)."
        )
        exit_code = known.exit_code if known else Exit.FAILURE
        try:
            run_dir.write_rank_error(RankError(int(os.environ.get("RANK", "0")), int(exit_code), sentence))
        except RunError:
            console.print(sentence, soft_wrap=True, markup=False)
        return exit_code


def _run(config: Config, run_dir: RunDir, console: Console, stop: StopSignal) -> Exit:
    """Initialize off the clock, then measure or train, in the order of MLPerf's rules."""
    device = devices.select_device(config.accelerator.name, int(os.environ.get("LOCAL_RANK", "0")))
    if config.accelerator.threads is not None:
        torch.set_num_threads(config.accelerator.threads)
    checkpoint = load_checkpoint(run_dir.checkpoint) if run_dir.checkpoint.exists() else None
    if checkpoint and checkpoint["exit_code"] is not None:  # killed after the end, before the record said so
        if int(os.environ.get("RANK", "0")) == 0:
            run_dir.update_record(exit_code=checkpoint["exit_code"], error="")
        return Exit(checkpoint["exit_code"])
    hang_timeout = config.launcher.hang_timeout_seconds
    with distributed.join_world(device, hang_timeout, peer_to_peer=config.peer_to_peer) as world:
        rank = Rank(config, run_dir, console, stop, world, device)
        with _telemetry(rank) as telemetry_observers:
            if config.throughput.steps:
                return _measure(rank, telemetry_observers)
            return _train(rank, telemetry_observers, checkpoint)


@contextmanager
def _telemetry(rank: Rank) -> Iterator[list[Observer]]:
    """Yield the observer that samples this node's GPUs and host, on the first rank of each node."""
    config, world = rank.config, rank.world
    every_seconds, nodes = config.telemetry.every_seconds, config.launcher.nodes
    if not every_seconds or world.local_rank:
        yield []
        return
    num_gpus = 0 if config.accelerator.name == "cpu" else config.gpus // nodes
    path = telemetry.telemetry_path(rank.run_dir.path, node=world.rank // (world.size // nodes))
    launcher_pid = os.getpid() if config.launcher.name == "inline" else os.getppid()
    sampler = telemetry.TelemetrySampler(path, open_sensors(num_gpus), every_seconds, launcher_pid)
    try:
        yield [sampler]
    finally:
        sampler.close()


def _measure(rank: Rank, telemetry_observers: list[Observer]) -> Exit:
    """Train a fixed number of steps, without log, target and checkpoint."""
    config = rank.config
    engine = _build_and_warm_up(rank)
    assert isinstance(engine.data, LimitedBatches)
    meter = ThroughputMeter(rank.world.size, engine.data)
    early_stop = EarlyStop(rank.stop, rank.world)
    plan = TrainingPlan(target={}, first_eval_epoch=1, eval_every_epochs=1, max_epochs=config.throughput.blocks)
    observers = [*telemetry_observers, meter, early_stop]
    if rank.is_main:
        observers.append(BlockLines(rank.console, config.throughput.blocks))
    if train_to_target(engine, plan, observers, should_stop=early_stop.should_stop) is Outcome.INTERRUPTED:
        raise Stopped("Stopped before the measurement was complete: run it again.")
    if rank.is_main:
        result = meter.result(
            gpus=config.gpus,
            datasheet_tflops=config.accelerator.tflops.get(config.precision.name),
            peer_to_peer=config.peer_to_peer,
            usd_per_gpu=config.accelerator.usd_per_gpu,
        )
        peak = devices.peak_memory_bytes(rank.device)
        exit_code = int(Exit.TARGET_REACHED)
        rank.run_dir.update_record(exit_code=exit_code, error="", peak_memory_bytes=peak, throughput=result)
        # Counting takes seconds; the measurement is safe already.
        rank.run_dir.update_record(throughput=replace(result, step_cost=flops.try_count_flops(engine)))
    return Exit.TARGET_REACHED


def _train(rank: Rank, telemetry_observers: list[Observer], checkpoint: dict[str, Any] | None) -> Exit:
    """Train to the target, with log, record and checkpoints."""
    config, plan = rank.config, training_plan(rank.config)
    completed_epochs = checkpoint["completed_epochs"] if checkpoint else 0
    evaluation_pending = bool(checkpoint and checkpoint["evaluation_pending"])
    with ExitStack() as closing:
        stateful = _main_rank_observers(rank, plan, checkpoint, closing) if rank.is_main else {}
        engine = _build_and_warm_up(rank)
        if checkpoint:
            engine.load_state_dict(checkpoint["engine"])
        observers: list[Observer] = [*stateful.values(), *telemetry_observers]
        observers += _optional_observers(rank, closing) if rank.is_main else []
        if rank.is_main:
            if not is_quiet():
                rank.console.print(f"run directory {rank.run_dir.path}", soft_wrap=True, markup=False)
            bar = ProgressBar(rank.console, plan, engine.data.train_size)
            closing.callback(bar.close)
            observers.append(bar)
        checkpointer = Checkpointer(
            rank.run_dir.checkpoint, engine, rank.world, stateful, config.checkpoint.every_seconds, completed_epochs
        )
        early_stop = EarlyStop(rank.stop, rank.world, config.time_limit_seconds)
        if rank.world.any(bool(rank.stop.name)):
            exit_code, error = Exit.STOPPED, "Stopped before training began: run it again."
        else:
            outcome = train_to_target(
                engine,
                plan,
                [*observers, checkpointer, early_stop],
                completed_epochs=completed_epochs,
                evaluation_pending=evaluation_pending,
                should_stop=early_stop.should_stop,
                stop_requested=early_stop.is_requested,
            )
            exit_code, error = _exit_code(outcome, early_stop)
        if config.checkpoint.at_end and exit_code in (Exit.TARGET_REACHED, Exit.TARGET_NOT_REACHED):
            checkpointer.save(int(exit_code))
        if rank.is_main:
            # Other frameworks count their own memory.
            peak = devices.peak_memory_bytes(rank.device) if config.engine.name == "torch" else None
            rank.run_dir.update_record(exit_code=int(exit_code), error=error, peak_memory_bytes=peak)
    return exit_code


def _main_rank_observers(
    rank: Rank, plan: TrainingPlan, checkpoint: dict[str, Any] | None, closing: ExitStack
) -> dict[str, StatefulObserver]:
    """Return the observers of rank 0 whose state belongs to the checkpoint, continued from it."""
    log = MLPerfLog(rank.run_dir.log, _log_header(rank.config), plan.target, lower_is_better=plan.lower_is_better)
    closing.callback(log.close)
    observers: dict[str, StatefulObserver] = {"log": log, "record": RecordWriter(rank.run_dir, plan)}
    if checkpoint:
        for name, observer in observers.items():
            observer.load_state_dict(checkpoint["observers"][name])
    log(InitStarted(caches_cleared=rank.config.clear_caches))  # the launcher has cleared them
    return observers


def _optional_observers(rank: Rank, closing: ExitStack) -> list[Observer]:
    """Return the observers that write further files, as configured."""
    config, folder = rank.config, rank.run_dir.path
    observers: list[Observer] = []
    if config.observers.json_lines:
        observers.append(json_lines := JsonLines(folder / "events.jsonl"))
        closing.callback(json_lines.close)
    if config.observers.tensorboard:
        observers.append(tensorboard := TensorBoard(folder / "tensorboard"))
        closing.callback(tensorboard.close)
    if steps := profiled_steps(config):
        observers.append(StepProfiler(folder / "profile.json.gz", *steps, rank.device))
    return observers


def _exit_code(outcome: Outcome, early_stop: EarlyStop) -> tuple[Exit, str]:
    match outcome:
        case Outcome.TARGET_REACHED:
            return Exit.TARGET_REACHED, ""
        case Outcome.TARGET_NOT_REACHED:
            return Exit.TARGET_NOT_REACHED, ""
    error = early_stop.error()
    return error.exit_code, str(error)


def _build_and_warm_up(rank: Rank) -> Engine:
    """Return the engine of one rank, warmed up; say why nothing moves.

    Compiling can take minutes, and so can cuDNN's search for the fastest convolutions of large fp32 batches.
    """
    config, device = rank.config, rank.device
    attempts = rank.run_dir.record().attempts
    clock = StartupClock(attempts[-1])
    devices.reset_peak_memory(device)
    engine = build_engine(config, rank.world, device)
    clock.end("model and data")
    if config.division == "closed":
        closed_division.check_sizes(config, train_size=engine.data.train_size, eval_size=engine.data.eval_size)
    activity = "compiling" if config.engine.compile is not None else "warming up"
    takes_minutes = activity == "compiling" or device.type != "cpu"
    with StatusLine(rank.console) as status_line:
        if config.engine.warm_up:
            if rank.is_main and (takes_minutes or rank.console.is_terminal):
                status_line(f"{activity}, which can take minutes" if takes_minutes else activity)
            engine.warm_up()
        engine.synchronize()
    clock.end(activity)
    if rank.is_main:
        rank.run_dir.update_record(attempts=(*attempts[:-1], replace(attempts[-1], startup=clock.seconds)))
        if not is_quiet():
            rank.console.print(str(clock), soft_wrap=True, markup=False, highlight=False)
    if rank.world.size > 1:
        speed = all_reduce.bus_gb_s(rank.world, device, _ALL_REDUCE_MIB if device.type != "cpu" else 1)
        if rank.is_main:
            environment = rank.run_dir.record().environment | {"all_reduce_gb_s": speed}
            rank.run_dir.update_record(environment=environment)
    return engine


def build_engine(config: Config, world: World, device: torch.device) -> Engine:
    """Build the engine of one rank, with its workload and data, from the configuration alone."""
    workload_class, data_class = resolve_classes(config)
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
        world=world,
    )


def training_plan(config: Config) -> TrainingPlan:
    """Return when to evaluate and stop, from the recipe and the round."""
    recipe = config.recipe
    return TrainingPlan(
        target=recipe.target[config.round.name],
        first_eval_epoch=recipe.first_eval_epoch,
        extra_eval_epochs=recipe.extra_eval_epochs,
        eval_every_epochs=recipe.eval_every_epochs,
        max_epochs=recipe.max_epochs,
        epochs_past_target=config.epochs_past_target,
        lower_is_better=recipe.lower_is_better,
    )


def _log_header(config: Config) -> dict[str, Any]:
    """Return the first lines of the log, division first."""
    submission = config.submission
    streams = seeds.derive_streams(run_seed(config), **asdict(config.seeds))
    return {
        "submission_division": config.division,
        "submission_benchmark": config.workload.benchmark,
        "submission_org": submission.org,
        "submission_platform": submission.platform,
        "submission_status": submission.status,
        "submission_poc_name": submission.poc_name,
        "seed": run_seed(config),
        **seeds.mlperf_params(streams),
    }


def _stop_with_the_launcher() -> None:
    """Let this rank be stopped when its launcher is killed."""
    signal_when_parent_ends(signal.SIGTERM)
    if os.getppid() != int(os.environ[LAUNCHER_PID]):  # it was killed before the kernel knew
        sys.exit(int(Exit.STOPPED))


def main() -> None:
    """Run one rank, for the launcher that started this process."""
    _stop_with_the_launcher()

    path = wait_for_run_dir()
    rank = int(os.environ["RANK"])
    terminal = os.fdopen(os.dup(2), "w")
    for number, name in ((1, "stdout"), (2, "stderr")):
        with open(path / f"{name}_{rank}.txt", "ab") as file:
            os.dup2(file.fileno(), number)
    config = load_config(path / "config.yaml")
    run_dir = RunDir(path, run_seed(config))
    # The launcher may repeat a signal that the batch system has sent to all processes.
    with run_dir.locked_by_rank(), StopSignal().listen(ignore_after=True) as stop:
        exit_code = run_rank(config, run_dir, Console(file=terminal), stop)
    if exit_code in _RESULTS:
        sys.exit(0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(exit_code))  # at once: work queued on the device may wait for ranks that never come

"""The stage of a rank that trains to the target, with log, record and checkpoints."""

import re
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from ..callbacks.clock_watch import ClockWatch
from ..callbacks.installed import find_observers, load_observer
from ..callbacks.json_lines import JsonLines
from ..callbacks.mlflow import MLflow
from ..callbacks.profiler import StepProfiler
from ..callbacks.progress import ProgressBar
from ..callbacks.record_writer import RecordWriter
from ..callbacks.tensorboard import TensorBoard
from ..callbacks.wandb import WandB
from ..config.schema import Config
from ..config.validation import profiled_steps, quality_target, run_seed
from ..core.console import is_quiet, print_text
from ..core.errors import Exit
from ..hardware import devices
from ..mlperf.log_writer import MLPerfLog
from ..training import seeds
from ..training.checkpoint import Checkpointer
from ..training.early_stop import EarlyStop
from ..training.engine import Engine
from ..training.events import InitStarted, Observer, StatefulObserver
from ..training.loop import Outcome, TrainingPlan, train_to_target
from ..training.schedule_report import find_phases
from .build_engine import prepare_engine
from .rank import Rank
from .result_table import run_title

_SCHEDULE_KEY = re.compile("_(samples|tokens|epochs?|milestones)$")  # of settings that say when the rate changes


def train(
    rank: Rank, telemetry_observers: list[Observer], checkpoint: dict[str, Any] | None, clock_lead: float = 0.0
) -> Exit:
    """Train to the target, with log, record and checkpoints; the wall clock is `clock_lead` seconds ahead."""
    config, plan = rank.config, training_plan(rank.config)
    completed_epochs = checkpoint["completed_epochs"] if checkpoint else 0
    evaluation_pending = bool(checkpoint and checkpoint["evaluation_pending"])
    with ExitStack() as closing:
        stateful = _main_rank_observers(rank, plan, checkpoint, closing) if rank.is_main else {}
        engine = prepare_engine(rank)
        if checkpoint:
            engine.load_state_dict(checkpoint["engine"])
        clock_watch = ClockWatch(rank.run_dir if rank.is_main else None, clock_lead)
        observers: list[Observer] = [clock_watch, *stateful.values(), *telemetry_observers]
        observers += _optional_observers(rank, closing) if rank.is_main else []
        if rank.is_main:
            _describe_schedule(rank, engine)
            if not is_quiet():
                rank.console.print(f"run directory {rank.run_dir.path}", soft_wrap=True, markup=False)
            bar = ProgressBar(rank.console, plan, engine.data.train_size)
            closing.callback(bar.close)
            observers.append(bar)
        checkpointer = Checkpointer(
            rank.run_dir.checkpoint,
            engine,
            rank.world,
            stateful,
            config.checkpoint.every_seconds,
            completed_epochs,
            at_end=config.checkpoint.at_end,
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
            clock_watch.write(rank.world.all_reduce_max(round(1e3 * clock_watch.suspended_seconds)) / 1e3)
        # With the target reached, the checkpoint is that of the target unless epochs past it have followed.
        ends = exit_code == Exit.TARGET_NOT_REACHED or (exit_code == Exit.TARGET_REACHED and plan.epochs_past_target)
        if config.checkpoint.at_end and ends:
            checkpointer.save(int(exit_code))
        if rank.is_main:
            # Other frameworks count their own memory.
            peak = devices.peak_memory_bytes(rank.device) if config.engine.name == "torch" else None
            rank.run_dir.update(lambda record: replace(record.training_ended(exit_code, error), peak_memory_bytes=peak))
    return exit_code


def _describe_schedule(rank: Rank, engine: Engine) -> None:
    """Print where the learning rate schedule of a run turns in epochs of its data, and a warning if it does not fit."""
    config, schedule = rank.config, getattr(engine, "lr_scheduler", None)
    if config.throughput.steps:
        return
    phases = find_phases(schedule, engine.data.steps_per_epoch, config.recipe.max_epochs)
    if phases and not is_quiet():
        print_text(rank.console, str(phases), markup=False, highlight=False)
    keys = [f"recipe.training.{key}" for key in config.recipe.training if _SCHEDULE_KEY.search(key)]
    if phases and config.recipe.scale != "reference" and (problem := phases.find_problem(keys)):
        print_text(rank.console, problem, style="yellow", markup=False, highlight=False)


def _main_rank_observers(
    rank: Rank, plan: TrainingPlan, checkpoint: dict[str, Any] | None, closing: ExitStack
) -> dict[str, StatefulObserver]:
    """Return the observers of rank 0 whose state belongs to the checkpoint, continued from it."""
    log = MLPerfLog(rank.run_dir.log, _log_header(rank.config), plan.target, lower_is_better=plan.lower_is_better)
    closing.callback(log.close)
    record_writer = RecordWriter(rank.run_dir, plan, keeps_final_weights=rank.config.checkpoint.at_end)
    observers: dict[str, StatefulObserver] = {"log": log, "record": record_writer}
    if checkpoint:
        for name, observer in observers.items():
            observer.load_state_dict(checkpoint["observers"][name])
    log(InitStarted(caches_cleared=rank.config.clear_caches))  # the launcher has cleared them
    return observers


def _optional_observers(rank: Rank, closing: ExitStack) -> list[Observer]:
    """Return the observers for other programs, as configured."""
    config, folder = rank.config, rank.run_dir.path
    observers: list[Observer] = []
    if config.observers.json_lines:
        observers.append(json_lines := JsonLines(folder / "events.jsonl"))
        closing.callback(json_lines.close)
    if config.observers.tensorboard:
        observers.append(tensorboard := TensorBoard(folder / "tensorboard"))
        closing.callback(tensorboard.close)
    trackers: list[Any] = [WandB] if config.observers.wandb else []
    trackers += [MLflow] if config.observers.mlflow else []
    trackers += map(load_observer, find_observers(config.observers.extra))
    title = run_title(config)
    observers += [closing.enter_context(tracker(rank.run_dir, title, rank.console)) for tracker in trackers]
    if steps := profiled_steps(config):
        observers.append(StepProfiler(rank.run_dir.profile, *steps, rank.device))
    return observers


def _exit_code(outcome: Outcome, early_stop: EarlyStop) -> tuple[Exit, str]:
    match outcome:
        case Outcome.TARGET_REACHED:
            return Exit.TARGET_REACHED, ""
        case Outcome.TARGET_NOT_REACHED:
            return Exit.TARGET_NOT_REACHED, ""
    error = early_stop.error()
    return error.exit_code, str(error)


def training_plan(config: Config) -> TrainingPlan:
    """Return when to evaluate and stop, from the recipe and the round."""
    recipe = config.recipe
    return TrainingPlan(
        target=quality_target(config),
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

"""One run, stage by stage: open the run directory, prepare the data, start the ranks, finalize, show."""

import os
import platform
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from ..config.compose import load_config, to_yaml
from ..config.diff import diff_configs
from ..config.schema import Config
from ..config.validation import gradient_accumulation_steps, resolve_classes, run_seed, validate
from ..core import command_clock
from ..core.atomic_files import disk_full_as_run_error, write_atomically
from ..core.console import StatusLine
from ..core.errors import ConfigurationError, Exit, error_of
from ..core.found_files import parse_yaml, read_config
from ..core.progress import ProgressCallback
from ..core.signals import StopSignal, defer_stop
from ..hardware import devices
from ..mlperf import closed_division, compliance
from ..record import environment
from ..record.energy import summarize_telemetry
from ..record.run_dir import RunDir, claim_run_dir, create_run_dir
from ..record.run_record import Attempt, RunClass, RunRecord, RunState, Staging
from . import early_ranks, page_cache, rendezvous, staging
from .ranks import start_ranks
from .result_table import show_result
from .staging import data_settings
from .worker import run_rank

_STATES = {
    Exit.TARGET_REACHED: RunState.TARGET_REACHED,
    Exit.TARGET_NOT_REACHED: RunState.TARGET_NOT_REACHED,
    Exit.TIME_LIMIT: RunState.TIME_LIMIT,
    Exit.STOPPED: RunState.STOPPED,
    Exit.OUT_OF_MEMORY: RunState.OUT_OF_MEMORY,
    Exit.DIVERGED: RunState.DIVERGED,
    Exit.LOST_RANK: RunState.LOST_RANK,
    Exit.HARDWARE: RunState.HARDWARE_FAULT,
    Exit.NOT_COMPLIANT: RunState.LOG_NOT_COMPLIANT,
}
_MANY_MICRO_BATCHES = 64  # per update and device; recipes of the reference scale need up to 16 on small GPUs
_SEED_BYTES = 4  # short enough for the name of a run directory
_CHANGES_SHOWN = 4  # keys in a message
# With these a run never began: its directory is removed again.
_NEVER_BEGAN = (Exit.CONFIGURATION, Exit.DATA, Exit.DEVICE)
# A resumed run has nothing to do after these.
_FINISHED = (Exit.TARGET_REACHED, Exit.TARGET_NOT_REACHED, Exit.NOT_COMPLIANT)


@dataclass(frozen=True)
class RunResult:
    """How a run ended, and its directory."""

    exit_code: Exit
    run_dir: RunDir


def launch(node: DictConfig, console: Console) -> RunResult:
    """Run the composed configuration once; raise `RunError` for a run that never began."""
    _import_in_waiting_ranks(node)
    config = validate(node)
    if config.division == "closed":
        closed_division.check_config(config)
        closed_division.check_datasets(config)
    node = with_seed(node)
    config = validate(node)
    devices.require_devices(config.accelerator.name, config.gpus // config.launcher.nodes)
    _warn_of_small_micro_batches(config, console)
    if config.launcher.nodes > 1 and not rendezvous.is_first_node():
        return _join_run(config, console)
    new_run_dir: RunDir | None = None
    with ExitStack() as stack:
        try:
            with defer_stop():  # nothing is left behind of a run that is stopped here
                run_dir, resumes = open_run_dir(node, config)
                stack.enter_context(run_dir.locked())
                new_run_dir = None if resumes else run_dir
            return RunResult(_run_in(run_dir, resumes, node, config, console), run_dir)
        except BaseException:
            if new_run_dir and not new_run_dir.log.exists():
                new_run_dir.discard()
            raise
        finally:
            command_clock.begin_again()


def _import_in_waiting_ranks(node: DictConfig) -> None:
    """Let ranks that were started early import what they will need, while this process imports it to validate."""
    loader, engine = OmegaConf.select(node, "data.loader"), OmegaConf.select(node, "engine.name")
    keys = ["workload.workload", f"workload.loaders.{loader}", f"workload.engines.{engine}"]
    classes = [str(path) for key in keys if (path := OmegaConf.select(node, key))]
    compiler = ["torch._dynamo"] if engine == "torch" else []  # which PyTorch loads when an optimizer is made
    early_ranks.import_modules([*(path.rpartition(".")[0] for path in classes), *compiler])


def _run_in(run_dir: RunDir, resumes: bool, node: DictConfig, config: Config, console: Console) -> Exit:
    """Run in a run directory that is locked, or finish what is left of a run that has ended there."""
    record = run_dir.record()
    if resumes and record.exit_code in _FINISHED:
        if record.is_running:  # the launcher was killed after training, before it judged the log
            return finalize_run(config, run_dir, console, Exit.FAILURE)
        console.print(f"{run_dir.path} is finished: nothing to do. Its result:", soft_wrap=True, markup=False)
        show_result(console, _title(config), record, run_dir)
        return Exit(record.exit_code)
    try:
        write_initial_record(node, run_dir, resumes)
        with disk_full_as_run_error():
            prepare_data(config, run_dir, console)
        with StopSignal().listen() as stop:  # also while the run is finalized
            exit_code = _train(config, run_dir, console, stop)
            return finalize_run(config, run_dir, console, exit_code)
    except BaseException as error:
        began = resumes or run_dir.log.exists()
        if began and run_dir.path.exists() and run_dir.record().is_running:  # a signal may arrive after the end
            code = getattr(error, "exit_code", Exit.FAILURE)
            run_dir.update_record(exit_code=int(code), state=_final_state(config, code), error=str(error))
        raise


def _warn_of_small_micro_batches(config: Config, console: Console) -> None:
    steps = gradient_accumulation_steps(config)
    if steps > _MANY_MICRO_BATCHES:
        console.print(
            f"tuning.micro_batch_size={config.tuning.micro_batch_size} takes {steps:,} forward passes per update, "
            "which is slow: choose the largest that fits into memory, or null.",
            style="yellow", soft_wrap=True, markup=False, highlight=False,
        )  # fmt: skip


def with_seed(node: DictConfig) -> DictConfig:
    """Return `node` with a seed: its own, that of the run that it resumes, or one of the system's random numbers."""
    if node.seed is not None:
        return node
    saved = Path(node.run_dir or "") / "config.yaml"
    is_resumed = node.resume and node.run_dir and saved.exists()
    seed = read_config(saved).get("seed") if is_resumed else int.from_bytes(os.urandom(_SEED_BYTES), "big")
    if type(seed) is not int:
        raise ConfigurationError(f"{saved} states no seed: start over in a new run directory.")
    return OmegaConf.merge(node, {"seed": seed})  # type: ignore[return-value]


def open_run_dir(node: DictConfig, config: Config) -> tuple[RunDir, bool]:
    """Return the run directory, and whether it holds a run that is to be resumed."""
    text, seed = to_yaml(node), run_seed(config)
    if config.resume and config.run_dir and (run_dir := RunDir(Path(config.run_dir).resolve(), seed)).exists:
        run_dir.refuse_special_files()
        if not run_dir.config.exists():
            if run_dir.record() != RunRecord():
                raise ConfigurationError(f"{run_dir.path} has lost its config.yaml: start over in a new run directory.")
            write_atomically(run_dir.config, text)  # its first launcher was killed before it could write this
            return run_dir, False
        changed = diff_configs(read_config(run_dir.config), parse_yaml(text))
        if changed:
            hidden = len(changed) - _CHANGES_SHOWN
            shown = ", ".join(changed[:_CHANGES_SHOWN]) + (f" and {hidden} more" if hidden > 0 else "")
            raise ConfigurationError(
                f"{run_dir.path} was started with another configuration ({shown}): resume it with the same overrides."
            )
        return run_dir, True
    if config.run_dir:
        run_dir = claim_run_dir(Path(config.run_dir), seed)
    else:
        gpus = f"{config.gpus}x{devices.display_name(config.accelerator.name)}"
        parts = [config.system, config.workload.name, config.recipe.scale, gpus, config.precision.name]
        run_dir = create_run_dir(Path(config.runs_dir), parts, seed)
    try:
        write_atomically(run_dir.config, text)
    except BaseException:
        run_dir.discard()
        raise
    return run_dir, False


def write_initial_record(node: DictConfig, run_dir: RunDir, resumes: bool) -> None:
    """Record the start of an attempt."""
    run_dir.take_rank_errors()  # of ranks whose launcher was killed before it could read them
    if resumes:  # limits and places may have changed, but not what the run belongs to
        first = load_config(run_dir.config)  # not resolved: it may be a stranger's
        kept = {"system": first.system, "submission": {"platform": first.submission.platform}}
        node = OmegaConf.merge(node, kept)  # type: ignore[assignment]
        write_atomically(run_dir.config, to_yaml(node))
    record = run_dir.record()
    if not run_dir.checkpoint.exists():  # the run starts over, and its clock with it
        run_class = RunClass.PROFILED if node.profile.steps else RunClass.CLEAN
        record = replace(record, run_class=run_class, training=None)
    described = environment.describe(run_dir=run_dir.path, data=Path(str(node.data_dir)))
    config = OmegaConf.to_container(node, resolve=True)
    startup = {"configuration": round(command_clock.seconds_since_begin(), 2)}
    attempt = Attempt(started_at=time.time(), hostname=platform.node(), pid=os.getpid(), startup=startup)
    run_dir.update_record(
        state=RunState.RUNNING,
        run_class=record.run_class,
        exit_code=None,
        error="",
        attempts=(*record.attempts, attempt),
        environment=described,
        config=config,
        training=record.training,
    )


def prepare_data(config: Config, run_dir: RunDir, console: Console) -> None:
    """Stage and prepare what the data class needs on disk, then clear its caches, before any clock runs."""
    if config.staging_dir is not None:
        run_dir.update_record(staging=_stage(config, console))
    _, data_class = resolve_classes(config)
    with StatusLine(console) as status_line:
        settings = data_settings(config, data_class)
        data_class.prepare_data(settings, status_line)  # type: ignore[attr-defined]
        _clear_caches(config, status_line)


def finalize_run(config: Config, run_dir: RunDir, console: Console, exit_code: Exit) -> Exit:
    """Write the final exit code, state, verdict, energy and cost to the run record, and print the result."""
    record, rank_errors = run_dir.record(), run_dir.take_rank_errors()
    if rank_errors and record.exit_code not in _FINISHED:  # a rank may die after the end
        exit_code, error = Exit(rank_errors[0].exit_code), rank_errors[0].error
        if exit_code in _NEVER_BEGAN and record.training is None:
            run_dir.discard()
            raise error_of(exit_code, error)
    elif record.exit_code is not None:
        exit_code, error = Exit(record.exit_code), record.error
    elif exit_code == Exit.STOPPED:
        error = "Stopped before training began: run it again."
    else:
        error = "The run ended without an error message: see stderr_0.txt in the run directory."
    changes: dict[str, Any] = {"error": error, "finished_at": time.time()}
    if run_dir.log.exists():
        changes["verdict"] = verdict = compliance.check(run_dir.log)
        if exit_code == Exit.TARGET_REACHED and not verdict.compliant:
            exit_code = Exit.NOT_COMPLIANT
    changes |= _summarize_telemetry(config, run_dir, record)
    record = run_dir.update_record(**changes, exit_code=int(exit_code), state=_final_state(config, exit_code))
    show_result(console, _title(config), record, run_dir)
    if exit_code == Exit.STOPPED and not config.throughput.steps:
        console.print("To continue: the same command with ", end="")
        console.print(f"run_dir={run_dir.path} resume=true", style="bold", soft_wrap=True, markup=False)
    return exit_code


def _train(config: Config, run_dir: RunDir, console: Console, stop: StopSignal) -> Exit:
    """Train in this process, or in one process per rank."""
    if config.launcher.name == "inline":
        return run_rank(config, run_dir, console, stop)
    if config.launcher.nodes == 1:
        return start_ranks(config, run_dir, stop)
    with rendezvous.host(config.launcher.nodes, config.launcher.interface, run_dir) as meeting_point:
        return start_ranks(config, run_dir, stop, meeting_point)


def _join_run(config: Config, console: Console) -> RunResult:
    """Run this node's ranks of a run that the first node manages."""
    assert config.run_dir
    run_dir = RunDir(Path(config.run_dir).resolve(), run_seed(config))
    _stage(config, console)
    with StatusLine(console) as status_line:
        _clear_caches(config, status_line)
    meeting_point = rendezvous.wait(run_dir)
    with StopSignal().listen() as stop:
        start_ranks(config, run_dir, stop, meeting_point)  # the first node reports how they ended
        rendezvous.leave(meeting_point)
        record = rendezvous.wait_for_final_record(run_dir, meeting_point)
    return RunResult(Exit(Exit.FAILURE if record.exit_code is None else record.exit_code), run_dir)


def _clear_caches(config: Config, progress: ProgressCallback) -> None:
    """Clear this node's page cache of the data, if the run asks for it; the log then says so."""
    if config.clear_caches:
        progress("clearing the page cache", 0)
        settings = data_settings(config, resolve_classes(config)[1])
        page_cache.clear_page_cache(page_cache.data_paths(asdict(settings)))


def _stage(config: Config, console: Console) -> Staging | None:
    if config.staging_dir is None:
        return None
    return staging.stage(config.recipe.data, Path(config.data_dir), Path(config.staging_dir), console)


def _summarize_telemetry(config: Config, run_dir: RunDir, record: RunRecord) -> dict[str, Any]:
    """Return the fields of the run record that follow from telemetry.csv and the price."""
    training = record.training
    report = summarize_telemetry(
        run_dir.path,
        train_seconds=training.train_seconds if training else 0.0,
        data_wait_seconds=training.data_wait_seconds if training else 0.0,
        active_seconds=training.active_seconds if training else None,
        samples=training.samples if training else 0,
        usd_per_hour=config.gpus * config.usd_per_gpu_hour if config.usd_per_gpu_hour else None,
        num_gpus_expected=0 if config.accelerator.name == "cpu" else config.gpus,
    )
    return {"telemetry": report.telemetry, "cost": report.cost, "flags": report.flags}


def _final_state(config: Config, exit_code: int) -> RunState:
    if config.throughput.steps and exit_code == Exit.TARGET_REACHED:
        return RunState.MEASURED
    return _STATES.get(Exit(exit_code), RunState.FAILED)


def _title(config: Config) -> str:
    gpus = f"{config.gpus} x {devices.display_name(config.accelerator.name)}"
    gpus += "" if config.peer_to_peer else " without peer-to-peer"
    recipe = f"{config.workload.title} {config.recipe.scale}"
    return f"{recipe}, {gpus}, {config.precision.name}, seed {run_seed(config)}"

"""The stage that ends a run: judge its log, summarize its telemetry, complete its record and show the result."""

import textwrap
import time
from dataclasses import replace

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from ..core.errors import Exit, error_of
from ..core.signals import STOPPED_AT_ONCE
from ..mlperf import compliance
from ..record.energy import TelemetryReport, summarize_telemetry
from ..record.gpu_report import gpu_report
from ..record.run_record import RunRecord
from ..record.validity import find_change_flag, find_clock_flag
from .open_run_dir import OpenRun
from .result_table import run_title, show_result

# With these a run never began: its directory is removed again.
_NEVER_BEGAN = (Exit.CONFIGURATION, Exit.DATA, Exit.DEVICE)
# A resumed run has nothing to do after these.
_FINISHED = (Exit.TARGET_REACHED, Exit.TARGET_NOT_REACHED, Exit.NOT_COMPLIANT)
# With these a run has figures.
_RESULTS = (Exit.TARGET_REACHED, Exit.TARGET_NOT_REACHED)


def finish_if_trained(run: OpenRun) -> Exit | None:
    """Return the exit code of a resumed run that has nothing left to train, and show its result; else return None."""
    record = run.run_dir.record()
    if not run.resumes or record.exit_code not in _FINISHED:
        return None
    if record.is_running:  # the launcher was killed after training, before it judged the log
        return finalize(run, Exit.FAILURE)
    run.console.print(f"{run.run_dir.path} is finished: nothing to do. Its result:", soft_wrap=True, markup=False)
    show_result(run.console, run_title(run.config), record, run.run_dir)
    return Exit(record.exit_code)


def finalize(run: OpenRun, exit_code: Exit) -> Exit:
    """Write exit code, state, verdict, energy and cost to the run record, show the result and return the exit code.

    `exit_code` counts if no rank has recorded how the run ended. Raises the error of a run that never began, whose
    directory is removed if this process created it.
    """
    run_dir = run.run_dir
    record, rank_errors = run_dir.record(), run_dir.take_rank_errors()
    if rank_errors and record.exit_code not in _FINISHED:  # a rank may die after the end
        exit_code, error = Exit(rank_errors[0].exit_code), rank_errors[0].error
        if exit_code in _NEVER_BEGAN and record.training is None:
            if run.resumes:
                run_dir.update(lambda record: record.ended(exit_code, error))
            else:
                run_dir.discard()
            raise error_of(exit_code, error)
    elif record.exit_code is not None:
        exit_code, error = Exit(record.exit_code), record.error
    elif exit_code == Exit.STOPPED:
        began = record.training is not None or run_dir.checkpoint.exists() or _is_ready(record)
        error = STOPPED_AT_ONCE if began else "Stopped before training began: run it again."
    else:
        error = "The run ended without an error message: see stderr_0.txt in the run directory."
    verdict = record.verdict
    if run_dir.log.exists():
        verdict = compliance.check(run_dir.log)
        if exit_code == Exit.TARGET_REACHED and not verdict.compliant:
            exit_code = Exit.NOT_COMPLIANT
    report = _summarize_telemetry(run, record)
    record = run_dir.update(
        lambda record: replace(
            record.ended(exit_code, error),
            finished_at=time.time(),
            verdict=verdict,
            telemetry=report.telemetry,
            cost=report.cost,
            flags=report.flags | find_clock_flag(record.clock) | find_change_flag(record.changed),
            disturbed_share=report.disturbed_share,
        ),
        durable=True,
    )
    show_result(run.console, run_title(run.config), record, run_dir)
    if exit_code in _RESULTS and not _is_in_sweep() and (report_text := gpu_report(record, run_dir.path)):
        run.console.print("\nThis GPU has no data sheet yet. Please send this block to timetrial's issue tracker:")
        run.console.print(textwrap.indent(report_text, "  "), soft_wrap=True, markup=False, highlight=False)
    if exit_code == Exit.STOPPED and not run.config.throughput.steps and not _is_in_sweep():
        run.console.print("To continue: the same command", end="")
        if run.config.resume and not HydraConfig.initialized():  # a task of a study
            run.console.print(".")
        else:
            run.console.print(" with ", end="")
            run.console.print(f"run_dir={run_dir.path} resume=true", style="bold", soft_wrap=True, markup=False)
    return exit_code


def _is_ready(record: RunRecord) -> bool:
    """Return whether the last attempt has recorded its start, which it does when it is ready to train."""
    return len(record.attempts[-1].startup) > 1


def _is_in_sweep() -> bool:
    """Return whether this is a run of `-m`, which goes on when its own command is repeated."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def _summarize_telemetry(run: OpenRun, record: RunRecord) -> TelemetryReport:
    config, training = run.config, record.training
    return summarize_telemetry(
        run.run_dir.path,
        train_seconds=training.train_seconds if training else 0.0,
        data_wait_seconds=training.data_wait_seconds if training else 0.0,
        active_seconds=training.active_seconds if training else None,
        samples=training.samples if training else 0,
        usd_per_hour=config.gpus * config.usd_per_gpu_hour if config.usd_per_gpu_hour else None,
        num_gpus_expected=0 if config.accelerator.name == "cpu" else config.gpus,
    )

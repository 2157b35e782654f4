"""Read a run from its MLPerf log: what the log does not state is inferred, and listed in `Run.inferred`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from ...config.schema import SeedsConfig
from ...core.found_files import MAX_NUMBER, as_name
from ...record.training_result import time_to_train
from . import evaluations, progress, quality, rules
from .evaluations import Evaluation
from .mllog import Log, LogEntry, to_float
from .runs import Run

_MAX_INTEGER = 2**63  # of batch sizes, seeds and samples
_MS_BETWEEN_STARTS = 60_000
_SUCCESS = {"success", "succeeded", "true"}
_FAILURE = {"aborted", "abort", "fail", "failed", "failure", "false"}
_HYPERPARAMETERS = (
    "opt_", "model_hp_", "input_hp_", "lars_", "sgd_", "max_", "input_batch", "gradient_accumulation",
    "timetrial_network", "timetrial_image_size",
)  # fmt: skip
_STREAMS = tuple(stream.name for stream in fields(SeedsConfig))
_EXECUTION_KEYS = ("timetrial_engine", "timetrial_loader", "timetrial_decoder", "timetrial_data_form")


def read_run(log: Log, *, round_: str = "", benchmark: str = "") -> Run | None:
    """Return the run in `log`, None if it has no entries; `round_` and `benchmark` are those of the log's folder."""
    if not log.entries:
        return None
    run = Run(log.path, log.path, round=round_, dialect=log.entries[0].dialect)
    note = run.inferred.append
    if log.malformed:
        note(f"{log.malformed} malformed log lines were skipped")
    if log.error:
        note(f"the file could be read only in part ({log.error})")
    entries = _remove_duplicates(log.entries, run)
    values = _FirstValues(entries)
    _set_identity(run, values, entries[0].benchmark, benchmark)
    start, stop = _set_clock(entries, run)
    _set_settings(run, values)
    _set_evaluations(run, entries, start, stop)
    if run.seed is None and log.printed_seed is not None:
        run.seed = log.printed_seed
        note("the seed is printed in plain text, not logged")
    return run


def count_runs(log: Log) -> int:
    """Return how many runs a file holds: attempts that were appended, or several complete runs.

    Processes of one run may each log run_start. Another run begins with one that follows an evaluation or run_stop, or
    is more than a minute later than that before.
    """
    runs, is_over, last_ms = 0, True, math.nan
    starts: set[float] = set()
    for entry in log.entries:
        if entry.key == "run_start" and entry.time_ms not in starts:  # loggers that echo repeat lines
            starts.add(entry.time_ms)
            runs += is_over or entry.time_ms - last_ms > _MS_BETWEEN_STARTS
            is_over, last_ms = False, entry.time_ms
        elif runs and entry.key in ("eval_accuracy", "run_stop"):
            is_over = True
    return runs


class _FirstValues:
    """The first value of every key that is not None."""

    def __init__(self, entries: Iterable[LogEntry]) -> None:
        self.values: dict[str, Any] = {}
        for entry in entries:
            if entry.key not in self.values or self.values[entry.key] is None:
                self.values[entry.key] = entry.value

    def text(self, key: str) -> str:
        value = self.values.get(key)
        return as_name(value) if isinstance(value, str) else ""

    def integer(self, *keys: str) -> int | None:
        for key in keys:
            value = to_float(self.values.get(key))
            if abs(value) < _MAX_INTEGER:
                return int(value)
        return None


def _remove_duplicates(entries: Sequence[LogEntry], run: Run) -> list[LogEntry]:
    """Return each entry once: loggers that echo repeat key, time and value, often with another prefix."""
    seen, unique = set(), []
    for entry in entries:
        identity = (entry.key, entry.time_ms, repr(entry.value), repr(entry.metadata))
        if identity not in seen:
            seen.add(identity)
            unique.append(entry)
    duplicates = len(entries) - len(unique)
    if duplicates > len(entries) / 4:
        run.inferred.append(f"{duplicates} of {len(entries)} log entries are duplicates")
    return unique


def _set_identity(run: Run, values: _FirstValues, line_benchmark: str, folder_benchmark: str) -> None:
    logged = values.text("submission_benchmark") or line_benchmark
    run.benchmark = rules.canonical_benchmark(logged or folder_benchmark)
    if not logged and folder_benchmark:
        run.inferred.append("the benchmark is taken from the folder name")
    if run.dialect in ("v0.5", "v0.6") and not run.round:  # the dialect v0.7 is used by later rounds too
        run.round = run.dialect
    run.division = values.text("submission_division")
    run.submitter = values.text("submission_org")
    run.system = values.text("submission_platform")


def _set_clock(entries: Sequence[LogEntry], run: Run) -> tuple[int, int]:
    """Set start and duration; return the indices of run_start and run_stop, -1 and len(entries) if missing."""
    starts = [index for index, entry in enumerate(entries) if entry.key == "run_start"]
    start = starts[0] if starts else -1
    if len(starts) > 1:
        run.inferred.append(f"{len(starts)} run_start: the first one counts")
    if not starts:
        run.inferred.append("no run_start: the run counts as failed")
    start_ms = entries[start].time_ms if starts else math.nan
    stop, num_stops = _find_stop(entries, start, start_ms)
    if num_stops > 1:
        run.inferred.append(f"{num_stops} run_stop: the first one counts for the time, all of them for the status")
    run.started = start_ms / 1000
    times = [entry.time_ms for entry in entries[max(start, 0) :] if entry.time_ms >= start_ms]
    run.observed = max(times, default=start_ms) / 1000 - run.started if starts and times else 0.0
    if starts and num_stops:
        # In milliseconds, because dividing both times first would round twice.
        milliseconds = time_to_train(start_ms, entries[stop].time_ms)
        if milliseconds is not None:
            run.duration = run.observed = milliseconds / 1000
        else:
            run.inferred.append("run_stop is before run_start: the run has no valid time")
    elif starts:
        run.inferred.append("no run_stop: the run counts as failed, censored at its last log entry")
    return start, stop


def _find_stop(entries: Sequence[LogEntry], start: int, start_ms: float) -> tuple[int, int]:
    """Return the index of the first run_stop after run_start, by line or else by time, and the number of such."""
    stops = [index for index, entry in enumerate(entries) if entry.key == "run_stop"]
    after_start = [index for index in stops if index > start]
    after_start = after_start or [index for index in stops if entries[index].time_ms >= start_ms]
    return (after_start[0] if after_start else len(entries)), len(after_start)


def _set_evaluations(run: Run, entries: Sequence[LogEntry], start: int, stop: int) -> None:
    """Set target, evaluations and their progress, success and convergence."""
    note = run.inferred.append
    lower_is_better = any(
        entry.key == "quality_target" and entry.metadata.get("lower_is_better") is True for entry in entries
    )
    run.target = _find_target(run, entries, lower_is_better=lower_is_better)
    run.progress_unit = progress.progress_unit(entries)
    label_of = partial(progress.read_label, unit=run.progress_unit, batch_size=run.global_batch_size)
    logged = evaluations.find_evaluations(entries, start, run.benchmark, label_of, note)
    qualities = [entry.quality for entry in logged]
    scale = quality.quality_scale(entries, qualities, run.benchmark, run.dialect, note, lower_is_better=lower_is_better)
    labels = [entry.label for entry in logged]
    if run.progress_unit == "epochs":
        starts = [label for entry in entries if entry.key == "eval_start" and (label := label_of(entry)) is not None]
        labels = progress.replace_repeated(labels, starts, note)
        if logged and labels[0] is not None:
            run.epoch_offset = progress.epoch_offset(entries, logged[0].index, labels[0], run.dialect, note)
    run.eval_spacing = evaluations.eval_spacing(entries, labels, run.progress_unit)
    for entry, label in zip(logged, labels, strict=True):
        trained = None if label is None else _int_if_whole(label + run.epoch_offset)
        fractions = {metric: value / scale for metric, value in entry.quality.items()}
        run.evaluations.append(Evaluation(entry.time_ms / 1000 - run.started, trained, fractions))
    stop_ms = entries[stop].time_ms if stop < len(entries) else math.inf
    eval_seconds = evaluations.eval_seconds(entries[max(start, 0) : stop], stop_ms)
    run.eval_seconds = eval_seconds if eval_seconds <= run.observed else 0.0  # else the clock ran backwards
    stopped_at = label_of(entries[stop]) if run.progress_unit == "samples" and stop < len(entries) else None
    is_met = [
        quality.meets_target(value, run.target, lower_is_better=lower_is_better, scale=scale, dialect=run.dialect)
        for value in qualities
    ]
    counted = [
        (evaluation, met)
        for entry, evaluation, met in zip(logged, run.evaluations, is_met, strict=True)
        if entry.index < stop or evaluation.seconds <= run.observed or _is_before(evaluation, stopped_at)
    ]
    if len(counted) < len(logged):
        note(f"{len(logged) - len(counted)} evaluations are after run_stop")
    _set_success(run, entries, counted or list(zip(run.evaluations, is_met, strict=True)), stopped_at)


def _is_before(evaluation: Evaluation, stopped_at: float | None) -> bool:
    """Return True if a checkpoint was evaluated that existed when run_stop was logged."""
    return stopped_at is not None and evaluation.progress is not None and evaluation.progress <= stopped_at


def _set_success(
    run: Run, entries: Sequence[LogEntry], counted: Sequence[tuple[Evaluation, bool]], stopped_at: float | None
) -> None:
    """Set success by the status of run_stop, else by quality, and the progress to converge of a successful run.

    `counted` holds each evaluation and whether it meets the target, `stopped_at` the progress that run_stop states.
    """
    met = [evaluation for evaluation, is_met in counted if is_met]
    status = _stop_status([entry for entry in entries if entry.key == "run_stop"])
    if run.duration is None:
        run.success = False
    elif status is None:
        run.success = bool(met)
        run.inferred.append("run_stop has no status: success is inferred from the quality")
    else:
        run.success = status
    run.last_quality = counted[-1][0].quality if counted else {}
    if not run.success or not counted:
        return
    if not met and run.target:
        run.inferred.append("run_stop reports success but no evaluation reaches the target: the last one counts")
    converged = (met or [counted[-1][0]])[0]
    at_stop = [evaluation for evaluation in met if evaluation.progress == stopped_at is not None]
    if at_stop and at_stop[0] is not converged:
        run.inferred.append("an evaluation before that of run_stop reaches the target: that of run_stop counts")
        converged = at_stop[0]
    run.progress_to_converge = converged.progress if (converged.progress or 0.0) > 0 else None


def _find_target(run: Run, entries: Sequence[LogEntry], *, lower_is_better: bool) -> Mapping[str, float]:
    """Return the logged target, else that of the round's rules."""
    for entry in entries:
        if entry.key in ("quality_target", "eval_target", "target_accuracy"):
            logged = quality.parse_quality(entry.value, run.benchmark)
            if logged:
                return quality.target_as_fractions(logged, run.benchmark, lower_is_better=lower_is_better)
    target = rules.quality_target(run.benchmark, run.round)
    if target is None:
        return {}
    suffix = "" if run.round else ", newest known round"
    run.inferred.append(f"the target is that of the rules of {run.round or 'MLPerf'}{suffix}")
    return target


def _int_if_whole(label: float) -> float:
    return int(label) if label == int(label) else label


def _stop_status(stops: Sequence[LogEntry]) -> bool | None:
    """Return the first status in run_stop's metadata or value; None if there is none."""
    for entry in stops:
        for values in (entry.metadata, entry.value if isinstance(entry.value, dict) else {"status": entry.value}):
            for key in ("status", "success"):
                status = str(values.get(key)).strip().lower()
                if status in _SUCCESS:
                    return True
                if status in _FAILURE:
                    return False
    return None


def _set_settings(run: Run, values: _FirstValues) -> None:
    run.global_batch_size = values.integer("global_batch_size")
    if run.global_batch_size and run.benchmark == "transformer" and run.global_batch_size > 10_000:
        run.batch_unit = "tokens"
        run.inferred.append("the batch size of the Transformer is in tokens")
    run.seed = values.integer("seed", "run_set_random_seed")
    for name in _STREAMS:
        if (seed := values.integer(f"seed_{name}")) is not None:
            run.streams[name] = seed
    run.train_samples = values.integer("train_samples", "preproc_num_train_examples")
    reference = rules.train_samples(rules.model_name(run.benchmark, run.round))
    is_own = "timetrial_version" in values.values
    if run.train_samples and reference and not is_own and run.train_samples < reference / 10:
        run.inferred.append(
            f"train_samples of {run.train_samples} are iterations: the data set has {reference} samples"
        )
        run.train_samples = None
    run.hyperparameters = {
        as_name(key): _setting(value) for key, value in values.values.items() if key.startswith(_HYPERPARAMETERS)
    }
    run.execution = {key: _setting(values.values[key]) for key in _EXECUTION_KEYS if key in values.values}


def _setting(value: Any) -> Any:
    """Return a logged setting: numbers as they are, everything else as a short text."""
    is_number = isinstance(value, int | float) and (isinstance(value, bool) or abs(value) <= MAX_NUMBER)
    return value if value is None or is_number else as_name(value)

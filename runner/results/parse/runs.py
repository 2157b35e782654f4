"""One run, as its log tells it: duration, success, quality per evaluation, epochs. What was inferred is said."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import epochs, quality, rules
from .mllog import Event, Log, number

_SUCCESS = {"success", "succeeded", "true"}
_FAILURE = {"aborted", "abort", "fail", "failed", "failure", "false"}
_HYPERPARAMETERS = (
    "opt_", "model_hp_", "input_hp_", "lars_", "sgd_", "max_", "input_batch", "gradient_accumulation",
    "timetrial_network", "timetrial_image_size",
)  # fmt: skip
_STACK = ("timetrial_engine", "timetrial_loader", "timetrial_decoder", "timetrial_data_form")


@dataclass(frozen=True)
class Evaluation:
    """One evaluation: `seconds` after run_start, 1-based `epoch` (None where unlabelled), quality as fractions."""

    seconds: float
    epoch: float | None
    quality: Mapping[str, float]


@dataclass
class Run:
    """One run. Times are in seconds, qualities fractions by metric; None is what the log does not tell.

    `duration` is run_stop - run_start, and None where one of them is missing; `observed` is then the time to the last
    event, at which the run counts as censored. `inferred` lists what was decided and not read.
    """

    path: Path  # as shown: relative to the folder that was asked for
    source: Path
    round: str = ""
    benchmark: str = ""
    submitter: str = ""
    system: str = ""
    division: str = ""
    dialect: str = ""
    started: float = math.nan
    duration: float | None = None
    observed: float = 0.0
    success: bool = False
    target: Mapping[str, float] = field(default_factory=dict)
    evaluations: list[Evaluation] = field(default_factory=list)
    last_quality: Mapping[str, float] = field(default_factory=dict)
    epochs_to_converge: float | None = None
    epoch_offset: int = 0
    eval_seconds: float = 0.0
    accelerator: str = ""
    num_accelerators: int | None = None
    precision: str = ""
    software: str = ""
    scale: str = ""
    global_batch_size: int | None = None
    batch_unit: str = "samples"
    seed: int | None = None
    train_samples: int | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    stack: dict[str, Any] = field(default_factory=dict)  # what trained and what read: of the speed, not of the recipe
    own: dict[str, Any] = field(default_factory=dict)  # status.json of a run folder of ours
    flags: list[str] = field(default_factory=list)  # what speaks against its time: resumed, throttled, ...
    inferred: list[str] = field(default_factory=list)

    @property
    def unfinished(self) -> bool:
        """True for a run of ours that is still going, or stopped and to be resumed: it is no result yet."""
        return self.own.get("state") in ("running", "stopped")

    @property
    def folder(self) -> Path:
        """Where the log lies, as it was found."""
        return self.source.parent

    @property
    def train_seconds(self) -> float:
        """The run without its evaluations, as far as the log tells them apart."""
        return (self.duration or 0.0) - self.eval_seconds

    @property
    def seconds_per_epoch(self) -> float | None:
        """Time-to-train over epochs-to-converge: what is left of it when luck is taken out."""
        return self.duration / self.epochs_to_converge if self.duration and self.epochs_to_converge else None


def read_run(log: Log, *, round_: str = "", benchmark: str = "") -> Run | None:
    """What `log` tells; None where it holds no event. `round_` and `benchmark` are what its place in a tree says."""
    if not log.events:
        return None
    run = Run(log.path, log.path, round=round_, dialect=log.events[0].dialect)
    note = run.inferred.append
    if log.unreadable:
        note(f"{log.unreadable} marked lines are no event and were passed over")
    if log.error:
        note(f"the file could be read only in part ({log.error})")
    events = _without_echo(log.events, run)
    facts = _Facts(events)
    _name(run, facts, events[0].benchmark, benchmark)
    start, stop = _clock(events, run)
    _judge(run, events, start, stop)
    _describe(run, facts)
    if run.seed is None and log.printed_seed is not None:
        run.seed = log.printed_seed
        note("the seed stands in plain text beside the events")
    return run


class _Facts:
    """First value of every key."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.values: dict[str, Any] = {}
        for event in events:
            if event.key not in self.values or self.values[event.key] is None:
                self.values[event.key] = event.value

    def text(self, key: str) -> str:
        value = self.values.get(key)
        return value.strip() if isinstance(value, str) else ""

    def whole(self, *keys: str) -> int | None:
        for key in keys:
            value = number(self.values.get(key))
            if math.isfinite(value):
                return int(value)
        return None


def _without_echo(events: Sequence[Event], run: Run) -> list[Event]:
    """Each event once: loggers that echo write the same key, time and value again, often with another prefix."""
    seen, kept = set(), []
    for event in events:
        identity = (event.key, event.time_ms, repr(event.value), repr(event.metadata))
        if identity not in seen:
            seen.add(identity)
            kept.append(event)
    doubled = len(events) - len(kept)
    if doubled > len(events) / 4:
        run.inferred.append(f"{doubled} of {len(events)} events were written more than once")
    return kept


def _name(run: Run, facts: _Facts, named_in_lines: str, benchmark: str) -> None:
    logged = facts.text("submission_benchmark") or named_in_lines
    run.benchmark = rules.benchmark_of(logged or benchmark)
    if not logged and benchmark:
        run.inferred.append("the benchmark is that of the folder")
    if run.dialect in ("v0.5", "v0.6") and not run.round:  # the later form serves many rounds
        run.round = run.dialect
    run.division = facts.text("submission_division")
    run.submitter = facts.text("submission_org")
    run.system = facts.text("submission_platform")


def _clock(events: Sequence[Event], run: Run) -> tuple[int, int]:
    """Places of run_start and run_stop in `events`; a missing one is -1 and len(events)."""
    starts = [place for place, event in enumerate(events) if event.key == "run_start"]
    start = starts[0] if starts else -1
    if len(starts) > 1:
        run.inferred.append(f"{len(starts)} run_start: the first one counts")
    if not starts:
        run.inferred.append("no run_start: a run without a clock counts as failed")
    stops = [place for place, event in enumerate(events) if event.key == "run_stop"]
    begun = events[start].time_ms if starts else math.nan
    stops = [place for place in stops if place > start] or [place for place in stops if events[place].time_ms >= begun]
    stop = stops[0] if stops else len(events)
    if len(stops) > 1:
        run.inferred.append(f"{len(stops)} run_stop: the first one counts for time, all of them for status")
    run.started = begun / 1000
    times = [event.time_ms for event in events[max(start, 0) :] if event.time_ms >= begun]
    run.observed = max(times, default=begun) / 1000 - run.started if starts and times else 0.0
    if starts and stops:
        seconds = (events[stop].time_ms - begun) / 1000
        if math.isfinite(seconds) and seconds >= 0:
            run.duration = run.observed = seconds
        else:
            run.inferred.append("run_stop lies before run_start: the clock is of no use")
    elif starts:
        run.inferred.append("no run_stop: the run counts as failed, at the time of its last event")
    return start, stop


def _judge(run: Run, events: Sequence[Event], start: int, stop: int) -> None:
    """Evaluations, target, epochs and success."""
    found = _evaluations(run, events, start)
    run.target = _target(run, events)
    note = run.inferred.append
    scale = quality.scale(events, [values for _, _, values in found], run.benchmark, run.dialect, note)
    labels = epochs.labels(events, [place for place, _, _ in found], note)
    if found and labels[0] is not None:
        run.epoch_offset = epochs.offset(events, found[0][0], labels[0], run.dialect, note)
    for (_, time_ms, values), label in zip(found, labels, strict=True):
        epoch = None if label is None else _plain(label + run.epoch_offset)
        scaled = {metric: value / scale for metric, value in values.items()}
        run.evaluations.append(Evaluation(time_ms / 1000 - run.started, epoch, scaled))
    in_time = [
        evaluation
        for (place, _, _), evaluation in zip(found, run.evaluations, strict=True)
        if place < stop or evaluation.seconds <= run.observed
    ]
    if len(in_time) < len(found):
        run.inferred.append(f"{len(found) - len(in_time)} evaluations follow run_stop")
    met = next(
        (evaluation for evaluation in in_time or run.evaluations if quality.meets(evaluation.quality, run.target)), None
    )
    stated = _status([event for event in events if event.key == "run_stop"])
    if run.duration is None:
        run.success = False
    elif stated is None:
        run.success = met is not None
        run.inferred.append("run_stop states no status: success is judged by quality")
    else:
        run.success = stated
    run.eval_seconds = _eval_seconds(events[max(start, 0) : stop])
    counted = in_time or run.evaluations
    last = counted[-1] if counted else None
    run.last_quality = last.quality if last else {}
    if run.success and last:
        if met is None and run.target:
            run.inferred.append("run_stop says success but no evaluation reaches the target: the last one counts")
        run.epochs_to_converge = (met or last).epoch


def _evaluations(run: Run, events: Sequence[Event], start: int) -> list[tuple[int, float, dict[str, float]]]:
    """Place, time in ms and quality as logged of every timed evaluation, in order of time; repeated ones count once."""
    found: list[tuple[int, float, dict[str, float]]] = []
    passed_over = 0
    before: tuple[float | None, dict[str, float]] = (None, {})
    for place, event in enumerate(events):
        if event.key != "eval_accuracy":
            continue
        label, values = epochs.label_of(event), quality.numbers(event.value, run.benchmark)
        if not values:
            passed_over += 1
        elif (label, values) != before or label is None:
            found.append((place, event.time_ms, values))
            before = (label, values)
    before_start = [entry for entry in found if entry[0] < start and not entry[1] / 1000 >= run.started]
    if before_start:
        run.inferred.append(f"{len(before_start)} evaluations before run_start do not count")
        found = [entry for entry in found if entry not in before_start]
    if all(math.isfinite(time_ms) for _, time_ms, _ in found):
        found.sort(key=lambda entry: entry[1])
    if passed_over:
        run.inferred.append(f"{passed_over} eval_accuracy without a number were passed over")
    return found


def _eval_seconds(events: Sequence[Event]) -> float:
    """Seconds from each eval_start to the eval_stop that follows; 0 where training goes on beside."""
    seconds, began = 0.0, math.nan
    for event in events:
        if event.key == "eval_start":
            began = event.time_ms
        elif event.key in ("block_start", "epoch_start", "train_epoch") and math.isfinite(began):
            return 0.0  # evaluation runs beside training: it takes no time of its own
        elif event.key == "eval_stop" and event.time_ms >= began:
            seconds, began = seconds + (event.time_ms - began) / 1000, math.nan
    return seconds


def _target(run: Run, events: Sequence[Event]) -> Mapping[str, float]:
    """The log's own, else that of the rules of the round."""
    for event in events:
        if event.key in ("quality_target", "eval_target"):
            stated = quality.numbers(event.value, run.benchmark)
            if stated:
                percent = max(stated.values()) > 1
                return {metric: value / 100 if percent else value for metric, value in stated.items()}
    known = rules.target(run.benchmark, run.round)
    if known is None:
        return {}
    newest = "" if run.round else ", the newest known"
    run.inferred.append(f"the target is that of the rules of {run.round or 'MLPerf'}{newest}")
    return known


def _plain(label: float) -> float:
    return int(label) if label == int(label) else label


def _status(stops: Sequence[Event]) -> bool | None:
    for event in stops:
        for source in (event.metadata, event.value if isinstance(event.value, dict) else {"status": event.value}):
            for key in ("status", "success"):
                word = str(source.get(key)).strip().lower()
                if word in _SUCCESS:
                    return True
                if word in _FAILURE:
                    return False
    return None


def _describe(run: Run, facts: _Facts) -> None:
    run.global_batch_size = facts.whole("global_batch_size")
    if run.global_batch_size and run.benchmark == "transformer" and run.global_batch_size > 10_000:
        run.batch_unit = "tokens"
        run.inferred.append("the batch of the Transformer is counted in tokens")
    run.seed = facts.whole("seed", "run_set_random_seed")
    run.train_samples = facts.whole("train_samples", "preproc_num_train_examples")
    usual = rules.train_samples(rules.model_of(run.benchmark, run.round))
    if run.train_samples and usual and "timetrial_version" not in facts.values and run.train_samples < usual / 10:
        run.inferred.append(f"train_samples of {run.train_samples} are iterations: {usual} samples are usual")
        run.train_samples = None
    keep = (key for key in facts.values if key.startswith(_HYPERPARAMETERS))
    run.hyperparameters = {key: facts.values[key] for key in keep}
    run.stack = {key: facts.values[key] for key in _STACK if key in facts.values}

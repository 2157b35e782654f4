"""`timetrial estimate`: what a run would take, from a short measurement and the epochs that others needed."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import scipy  # `scipy.stats` loads when it is first used
from omegaconf import DictConfig
from rich.console import Console

from ..config.compose import compose, load_config
from ..config.schema import Config
from ..config.validation import micro_batch_size, validate
from ..core.errors import ConfigurationError, Exit, error_of
from ..core.formatting import format_energy
from ..launch.result_table import show_rows
from ..launch.run import launch
from ..launch.worker import training_plan
from ..record.run_record import RunRecord
from ..results.analysis import expectations
from ..results.analysis.expectations import Expectation
from ..training.loop import TrainingPlan

USUAL_STEPS = 50
_SPAN = 0.95  # of further runs that the interval holds
# On epochs; another folder may hold the same data.
_OF_NO_EFFECT = {f"recipe.data.{name}" for name in ("folder", "workers", "eval_batch_size", "decoder")}


@dataclass(frozen=True)
class Estimate:
    """What is expected, each as (low, middle, high); None is what is not known.

    `seconds` are those of time-to-train: low has the fewest epochs and the fastest block, high the most and slowest.
    `joules` are those of the cards, or of the host where there are none, as `energy_source` told them, by the mean
    watts of training and of evaluation. `micro_batch` samples at a time were trained, with `memory_bytes` a device.
    """

    epochs: tuple[float, float, float]
    basis: str
    reached: float | None
    seconds: tuple[float, float, float]
    joules: tuple[float, float, float] | None
    energy_source: str | None
    dollars: tuple[float, float, float] | None
    memory_bytes: int | None
    micro_batch: int


def from_measurement(settings: Config, recipe: str, changed: Sequence[str], record: RunRecord) -> Estimate:
    """The estimate from status.json of a throughput run; `changed` are keys of the recipe that differ from it."""
    plan, measured = training_plan(settings), record.throughput
    assert measured is not None
    known = expectations.find_expectation(recipe, settings.round.name)
    epochs = _epochs(plan, known)
    if known is None or not known.epochs:
        basis = f"no reference run of {recipe} is known: from the first evaluation to recipe.max_epochs"
    else:
        runs = f"{known.runs} runs" if known.runs else "runs"
        basis = f"{runs} of {recipe} ({known.source})"
        basis += f"; {', '.join(changed)} differs from theirs" if changed else ""

    picks: tuple[Callable[[Iterable[float]], float], ...] = (max, statistics.median, min)
    telemetry = record.telemetry
    mean_watts = telemetry.mean_watts if telemetry else None
    train_watts = (telemetry and telemetry.train_watts) or mean_watts or 0.0
    eval_watts = (telemetry and telemetry.eval_watts) or mean_watts or 0.0
    seconds, joules = [], []
    for count, pick in zip(epochs, picks, strict=True):
        training = count * measured.train_size / pick(measured.train_rates) + measured.first_block_extra_seconds
        evaluation = _evaluations(plan, count) * measured.eval_size / pick(measured.eval_rates)
        seconds.append(training + evaluation)
        joules.append(training * train_watts + evaluation * eval_watts)
    dollars = [(settings.usd_per_gpu_hour or 0.0) * settings.gpus * value / 3600 for value in seconds]
    every_run = known is not None and known.runs and known.epochs and not known.is_range
    return Estimate(
        epochs=epochs,
        basis=basis,
        reached=len(known.epochs) / known.runs if every_run and known and known.runs else None,
        seconds=_span(seconds),
        joules=_span(joules) if mean_watts else None,
        energy_source=(telemetry.energy_source or telemetry.host_energy_source) if telemetry else None,
        dollars=_span(dollars) if settings.usd_per_gpu_hour else None,
        memory_bytes=record.peak_memory_bytes,
        micro_batch=micro_batch_size(settings),
    )


def _span(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = values
    return low, middle, high


def measure(node: DictConfig, console: Console) -> tuple[Config, RunRecord]:
    """The short run, with the micro-batch halved until it fits; raises what else ended it before it had measured."""
    while True:
        result = launch(node, console)
        record = result.run_dir.record()
        if result.exit_code == Exit.TARGET_REACHED:
            return load_config(result.run_dir.config), record
        smaller = micro_batch_size(validate(node), halvings=1)
        if result.exit_code != Exit.OUT_OF_MEMORY or not smaller:
            raise error_of(result.exit_code, record.error or "The measurement ended early: run it again.")
        node.tuning.micro_batch_size = smaller


def _epochs(plan: TrainingPlan, known: Expectation | None) -> tuple[float, float, float]:
    """Low, middle and high: where the next run is to be expected in 95 of 100 cases, moved up to when it evaluates."""
    if known is None or not known.epochs:
        ends = (plan.first_eval_epoch, (plan.first_eval_epoch + plan.max_epochs) / 2, plan.max_epochs)
        return ends[0], _evaluated(plan, ends[1]), ends[2]
    ordered = sorted(known.epochs)
    low, high = _next(ordered, known.runs if known.is_range else len(ordered), known.is_range)
    # The mean, for it is what many runs take on average; without it, the middle of the span.
    return _evaluated(plan, low), statistics.mean(_evaluated(plan, one) for one in ordered), _evaluated(plan, high)


def _next(epochs: Sequence[int], runs: int | None, span: bool) -> tuple[float, float]:
    """Between which epochs 95 of 100 further runs end, by those of `runs` in order, or by their `span` alone.

    Of forty runs and more the middle 95%. Fewer would leave out too much: of them Student's prediction interval on the
    log scale, m +- t s sqrt(1 + 1/n); s of a span is its width over that expected of n normal values (Blom 1958). The
    ends of one run, or of nobody knows how many, are what they are.
    """
    out = int((1 - _SPAN) / 2 * len(epochs))
    if out or runs is None or runs < 2:
        return epochs[out], epochs[-1 - out]
    logs = [math.log(value) for value in epochs]
    usual = 2 * statistics.NormalDist().inv_cdf((runs - 0.375) / (runs + 0.25))
    deviation = (logs[-1] - logs[0]) / usual if span else statistics.stdev(logs)
    reach = float(scipy.stats.t.ppf((1 + _SPAN) / 2, runs - 1)) * deviation * math.sqrt(1 + 1 / runs)
    return math.exp(statistics.mean(logs) - reach), math.exp(statistics.mean(logs) + reach)


def _evaluated(plan: TrainingPlan, epochs: float) -> float:
    """The first epoch from `epochs` on after which the plan evaluates."""
    done = 0
    while done < epochs and done < plan.max_epochs:
        done += plan.epochs_until_eval(done)
    return float(min(done, plan.max_epochs))


def _evaluations(plan: TrainingPlan, epochs: float) -> float:
    """How many evaluations there are until `epochs`."""
    return 1 + max(epochs - plan.first_eval_epoch, 0) / plan.eval_every_epochs


def show(console: Console, title: str, found: Estimate) -> None:
    """Prints the table that ends `timetrial estimate`."""

    def told(values: tuple[float, float, float], words: Callable[[float], str]) -> str:
        low, middle, high = map(words, values)
        return f"{middle} ({low} to {high})"

    rows = [
        ("epochs", f"{told(found.epochs, '{:.3g}'.format)}: {found.basis}"),
        ("time-to-train", told(found.seconds, _duration)),
    ]
    if found.reached is not None and found.reached < 1:
        rows.append(("", f"{found.reached:.0%} of those runs reached the target"))
    if found.joules:
        rows.append(("energy", f"{told(found.joules, format_energy)}, by {found.energy_source}"))
    if found.dollars:
        rows.append(("cost", told(found.dollars, "${:,.3g}".format)))
    held = f"{found.memory_bytes / 2**30:.1f} GiB on each device" if found.memory_bytes else "fits"
    rows.append(("memory", f"{held} with tuning.micro_batch_size={found.micro_batch}"))
    show_rows(console, title, rows)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def run(words: Sequence[str], console: Console) -> Estimate:
    """Measures what `words`, overrides of `run`, would train, and estimates the whole; raises what ends the run."""
    if option := next((word for word in words if word.startswith("-")), None):
        raise ConfigurationError(
            f"{option} is no option of estimate: it takes overrides of one run, such as scale=mini."
        )
    composed = compose(words)
    node, recipe = composed.node, composed.choices["recipe"]
    settings, record = measure(node, console)
    # Another model or other hyperparameters make another recipe.
    changed = [word.split("=")[0].lstrip("+") for word in words]
    changed = [key for key in changed if key.startswith(("recipe.", "model")) and key not in _OF_NO_EFFECT]
    found = from_measurement(settings, recipe, changed, record)
    title = f"{settings.workload.title} {recipe.split('/')[-1]}, {settings.gpus} x {settings.accelerator.name}"
    show(console, f"{title}, {settings.precision.name}, estimated", found)
    return found

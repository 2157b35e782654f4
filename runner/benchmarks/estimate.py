"""`timetrial estimate`: extrapolate a run from a short measurement and the epochs of reference runs."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import scipy  # scipy.stats is imported on first use
from omegaconf import DictConfig
from rich.console import Console

from ..config.compose import compose, load_config
from ..config.schema import Config
from ..config.validation import micro_batch_size, validate
from ..core.errors import ConfigurationError, Exit, error_of
from ..core.formatting import format_energy
from ..launch.rank_pool import RankPool
from ..launch.result_table import show_rows
from ..launch.run import launch
from ..launch.train import training_plan
from ..record.run_record import RunRecord
from ..results.analysis import expectations
from ..results.analysis.expectations import Expectation
from ..results.analysis.intervals import grid_floor
from ..training.loop import TrainingPlan

DEFAULT_STEPS = 50
_COVERAGE = 0.95  # of the prediction interval
# Of the difference between the log times per epoch of two runs on one machine, which no single measurement shows, where
# the reference runs do not tell or differ less. Long runs differ by 0.3% to 3%; the upper end is taken, and said.
PACE_DEVIATION = 0.03
# Keys of the recipe without effect on the epochs; another folder may hold the same data.
_NO_EFFECT = {f"recipe.data.{name}" for name in ("folder", "workers", "eval_batch_size", "decoder")}

Interval = tuple[float, float, float]  # low, middle, high


@dataclass(frozen=True)
class Estimate:
    """The estimate of a run; None stands for what is unknown.

    `seconds` is time-to-train: low combines the fewest epochs with the fastest block, high the most with the slowest,
    both widened by the spread of the pace between runs, `pace_deviation`: that of the reference runs, if it is larger
    than `PACE_DEVIATION`.
    `joules` is the energy of all GPUs, or of the host without GPUs, from the mean power of training and of evaluation;
    `energy_source` names its origin. `reached_fraction` is the share of the reference runs that reached the target
    within the epochs that this run may take.
    `memory_bytes` is the peak on each device with micro-batches of `micro_batch_size`.
    """

    epochs: Interval
    basis: str
    reached_fraction: float | None
    seconds: Interval
    joules: Interval | None
    energy_source: str | None
    usd: Interval | None
    memory_bytes: int | None
    micro_batch_size: int
    pace_deviation: float = PACE_DEVIATION


def extrapolate(
    config: Config, recipe: str, changed_keys: Sequence[str], record: RunRecord, reference: Expectation | None
) -> Estimate:
    """Return the estimate from the record of a throughput run and the reference runs of its recipe.

    `changed_keys` are those whose values differ from the recipe's.
    """
    plan, measured = training_plan(config), record.throughput
    assert measured is not None
    epochs = predict_epochs(plan, reference)
    pick_rate: tuple[Callable[[Iterable[float]], float], ...] = (max, statistics.median, min)
    telemetry = record.telemetry
    mean_watts = telemetry.mean_watts if telemetry else None
    train_watts = (telemetry and telemetry.train_watts) or mean_watts or 0.0
    eval_watts = (telemetry and telemetry.eval_watts) or mean_watts or 0.0
    start_seconds = (measured.opening_seconds or 0.0) + measured.first_block_extra_seconds
    seconds, joules = [], []
    for num_epochs, pick in zip(epochs, pick_rate, strict=True):
        training = num_epochs * measured.train_size / pick(measured.train_rates) + start_seconds
        evaluation = _num_evaluations(plan, num_epochs) * measured.eval_size / pick(measured.eval_rates)
        seconds.append(training + evaluation)
        joules.append(training * train_watts + evaluation * eval_watts)
    pace_deviation = max(PACE_DEVIATION, (reference and reference.pace_deviation) or 0.0)
    seconds, joules = (widen(values, pace_deviation) for values in (seconds, joules))
    usd = [(config.usd_per_gpu_hour or 0.0) * config.gpus * value / 3600 for value in seconds]
    return Estimate(
        epochs=epochs,
        basis=_describe_basis(recipe, changed_keys, reference),
        reached_fraction=_reached_fraction(reference, plan.max_epochs),
        seconds=_interval(seconds),
        joules=_interval(joules) if mean_watts else None,
        energy_source=(telemetry.energy_source or telemetry.host_energy_source) if telemetry else None,
        usd=_interval(usd) if config.usd_per_gpu_hour else None,
        memory_bytes=record.peak_memory_bytes,
        micro_batch_size=micro_batch_size(config),
        pace_deviation=pace_deviation,
    )


def widen(values: Sequence[float], deviation: float) -> list[float]:
    """Return (low, middle, high) with a normal factor of this log deviation in them, by squares on the log scale."""
    low, middle, high = values
    if not middle:
        return [low, middle, high]
    half_width = statistics.NormalDist().inv_cdf((1 + _COVERAGE) / 2) * deviation
    down, up = (math.hypot(math.log(bound / middle), half_width) for bound in (low, high))
    return [middle * math.exp(-down), middle, middle * math.exp(up)]


def _interval(values: Sequence[float]) -> Interval:
    low, middle, high = values
    return low, middle, high


def _describe_basis(recipe: str, changed_keys: Sequence[str], reference: Expectation | None) -> str:
    if reference is None or not reference.epochs:
        return f"no reference run of {recipe} is known: from the first evaluation to recipe.max_epochs"
    runs = f"{reference.runs} runs" if reference.runs else "runs"
    changes = f"; {', '.join(changed_keys)} differs from theirs" if changed_keys else ""
    return f"{runs} of {recipe} ({reference.source}){changes}"


def _reached_fraction(reference: Expectation | None, max_epochs: int) -> float | None:
    """Return the share of the reference runs that reached the target by then; None if not all are listed."""
    if reference is None or not reference.runs or not reference.epochs or reference.is_range:
        return None
    return sum(epochs <= max_epochs for epochs in reference.epochs) / reference.runs


def measure(node: DictConfig, console: Console, pool: RankPool | None = None) -> tuple[Config, RunRecord]:
    """Run the short measurement, halving the micro-batch until it fits; raise any other error that ends it."""
    while True:
        result = launch(node, console, pool)
        record = result.run_dir.record()
        if result.exit_code == Exit.TARGET_REACHED:
            return load_config(result.run_dir.config), record
        smaller = micro_batch_size(validate(node), halvings=1)
        if result.exit_code != Exit.OUT_OF_MEMORY or not smaller:
            raise error_of(result.exit_code, record.error or "The measurement ended early: run it again.")
        node.tuning.micro_batch_size = smaller


def predict_epochs(plan: TrainingPlan, reference: Expectation | None) -> Interval:
    """Return the 95% prediction interval of the epochs of the next run, rounded up to epochs with an evaluation."""
    if reference is None or not reference.epochs:
        first = plan.epochs_until_eval(0)
        return first, _next_eval_epoch(plan, (first + plan.max_epochs) / 2), plan.max_epochs
    epochs = sorted(reference.epochs)
    runs = reference.runs if reference.is_range else len(epochs)
    on_grid = all(_next_eval_epoch(plan, value) == value for value in epochs)
    low, high = _prediction_interval(epochs, runs, reference.is_range, plan.eval_every_epochs if on_grid else 1)
    # The mean is what many runs take on average; of a range, it is the middle.
    middle = statistics.mean(_next_eval_epoch(plan, value) for value in epochs)
    return _next_eval_epoch(plan, low), middle, _next_eval_epoch(plan, high)


def _prediction_interval(
    epochs: Sequence[int], runs: int | None, is_range: bool, spacing: float = 1.0
) -> tuple[float, float]:
    """Return the 95% prediction interval of the next run, from the sorted epochs of `runs` runs or only their range.

    From 39 runs on, these are order statistics: with k runs left out at each end, the next of n + 1 runs lies between
    the others with probability 1 - 2 (k + 1) / (n + 1). For fewer, it is Student's prediction interval on the log
    scale, m +- t s sqrt(1 + 1/n); for a range, s is its width over the expected range of n normal values (Blom 1958).
    s is at least the rounding error of evaluations every `spacing` epochs. For one run or an unknown number of runs,
    it is their range.
    """
    tail = int((1 - _COVERAGE) / 2 * (len(epochs) + 1)) - 1
    if tail >= 0 or runs is None or runs < 2:
        tail = max(tail, 0)
        return epochs[tail], epochs[-1 - tail]
    logs = [math.log(value) for value in epochs]
    expected_range = 2 * statistics.NormalDist().inv_cdf((runs - 0.375) / (runs + 0.25))
    deviation = (logs[-1] - logs[0]) / expected_range if is_range else statistics.stdev(logs)
    deviation = max(deviation, grid_floor(spacing, statistics.mean(epochs)))
    half_width = float(scipy.stats.t.ppf((1 + _COVERAGE) / 2, runs - 1)) * deviation * math.sqrt(1 + 1 / runs)
    return math.exp(statistics.mean(logs) - half_width), math.exp(statistics.mean(logs) + half_width)


def _next_eval_epoch(plan: TrainingPlan, epochs: float) -> float:
    """Return the first epoch from `epochs` on that is followed by an evaluation."""
    epoch = 0
    while epoch < epochs and epoch < plan.max_epochs:
        epoch += plan.epochs_until_eval(epoch)
    return float(min(epoch, plan.max_epochs))


def _num_evaluations(plan: TrainingPlan, epochs: float) -> float:
    """Return the number of evaluations in `epochs`, which need not be whole."""
    extra = sum(epoch <= epochs for epoch in plan.extra_eval_epochs)
    regular = 1 + (epochs - plan.first_eval_epoch) / plan.eval_every_epochs
    return extra + max(regular, 0 if extra else 1)


def show(console: Console, title: str, estimate: Estimate) -> None:
    """Print the table that ends `timetrial estimate`."""

    def format_interval(interval: Interval, format_value: Callable[[float], str]) -> str:
        low, middle, high = map(format_value, interval)
        return f"{middle} ({low} to {high})"

    pace_source = "as those runs do" if estimate.pace_deviation > PACE_DEVIATION else "not measured here"
    rows = [
        ("epochs", f"{format_interval(estimate.epochs, '{:.3g}'.format)}: {estimate.basis}"),
        ("time-to-train", format_interval(estimate.seconds, _format_duration)),
        ("", f"runs on one machine are taken to differ by {estimate.pace_deviation:.0%} in pace ({pace_source})"),
    ]
    if estimate.reached_fraction is not None and estimate.reached_fraction < 1:
        rows.append(("", f"{estimate.reached_fraction:.0%} of those runs reached the target within recipe.max_epochs"))
    if estimate.joules:
        rows.append(("energy", f"{format_interval(estimate.joules, format_energy)} ({estimate.energy_source})"))
    if estimate.usd:
        rows.append(("cost", format_interval(estimate.usd, "${:,.3g}".format)))
    memory = f"{estimate.memory_bytes / 2**30:.1f} GiB on each device" if estimate.memory_bytes else "fits"
    rows.append(("memory", f"{memory} with tuning.micro_batch_size={estimate.micro_batch_size}"))
    show_rows(console, title, rows)


def _format_duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def run(overrides: Sequence[str], console: Console, pool: RankPool | None = None) -> Estimate:
    """Measure the start of the run with these overrides, and estimate and print the whole; raise what ends the run."""
    if option := next((override for override in overrides if override.startswith("-")), None):
        raise ConfigurationError(
            f"{option} is no option of timetrial estimate: it takes overrides of one run, such as scale=mini."
        )
    composition = compose(overrides)
    recipe = composition.choices["recipe"]
    config, record = measure(composition.node, console, pool)
    # Another model or other hyperparameters make another recipe.
    keys = [override.split("=")[0].lstrip("+") for override in overrides]
    changed_keys = [key for key in keys if key.startswith(("recipe.", "model", "target")) and key not in _NO_EFFECT]
    reference = expectations.find_expectation(recipe, config.round.name)
    estimate = extrapolate(config, recipe, changed_keys, record, reference)
    title = f"{config.workload.title} {recipe.split('/')[-1]}, {config.gpus} x {config.accelerator.name}"
    show(console, f"{title}, {config.precision.name}, estimated", estimate)
    return estimate

"""Outcomes of the runs in docs/studies/seeds.tar.xz, and how much of their variance each random stream has.

The outcome is the log of the fractional epochs to the target. `scripts/measure/seed_study.py` makes tables of it.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from timetrial.runner.record.record_file import read_record
from timetrial.runner.record.run_record import RunRecord, RunState
from timetrial.runner.record.training_result import Block, TrainingResult
from timetrial.runner.results.analysis.intervals import UNKNOWN, Interval

STREAMS = ("initialization", "data_order", "dropout", "sampling")
_NOT_ENDED = {RunState.CREATED, RunState.RUNNING, RunState.STOPPED, RunState.TIME_LIMIT}
_TAILS = np.array([0.025, 0.975])
_POWER = 0.8
_DRAWS = 100_000


def read_ended(folder: Path) -> list[RunRecord]:
    """Return the records of all runs at or below a folder that have ended, in the order of their starts."""
    records = (record for path in folder.rglob("status.json") if (record := read_record(path.parent)))
    ended = (record for record in records if record.state not in _NOT_ENDED)
    return sorted(ended, key=lambda record: record.attempts[0].started_at)


def read_arm(folder: Path, arm: str) -> list[RunRecord]:
    """Return one ended run per processor and value of the seed that an arm varies; of several, the first result."""
    found: dict[tuple[int, str], RunRecord] = {}
    for record in sorted(read_ended(folder), key=lambda record: record.training is None):
        found.setdefault((varied_seed(record, arm), processor(record)), record)
    return [found[key] for key in sorted(found)]


def varied_seed(record: RunRecord, arm: str) -> int:
    """Return the seed that an arm varies; raise ValueError if the run varies another one."""
    seed: int = record.config["seed"]
    own: dict[str, int] = {name: value for name, value in record.config["seeds"].items() if value is not None}
    if (own or arm != "all") and (seed != 1 or list(own) != [arm]):
        raise ValueError(f"a run of the arm {arm} has seed={seed} and seeds={own}")
    return own[arm] if own else seed


def tabulate(records: Sequence[RunRecord]) -> pd.DataFrame:
    """Return a row per run: `processor`, `outcome`, `reached`, `at_first` evaluation, and what the tables state of it.

    Values that a run without its target or without a result does not have are NaN.
    """
    columns = ["outcome", "fractional", "epochs", "seconds", "joules", "rate"]
    rows = []
    for record in records:
        training, where = record.training, processor(record)
        reached = training is not None and training.reached
        if training is None:
            rows.append([record, where, False, False, *[math.nan] * len(columns)])
            continue
        fractional = fractional_epochs(training, lower_is_better=record.config["recipe"]["lower_is_better"])
        joules = record.telemetry.energy_joules if record.telemetry else None
        of_target = [training.epochs_to_converge, training.seconds, joules]
        at_first = reached and len(timed_blocks(training)) == 1 and not has_fixed_length(record)
        rows.append([record, where, reached, at_first, outcome(record), fractional])
        rows[-1] += [*(value if reached else None for value in of_target), training_rate(training)]
    table = pd.DataFrame(rows, columns=["record", "processor", "reached", "at_first", *columns])
    return table.astype(dict.fromkeys(columns, float))


def processor(record: RunRecord) -> str:
    """Return the name of the accelerator that a run used, of a CPU its model and the machine's number of cores."""
    accelerator: str = record.config["accelerator"]["name"]
    if accelerator != "cpu":
        return accelerator.upper()
    cpu = record.environment["cpu"]
    return f"{cpu['model']}, {cpu['logical_cores']} cores"


def timed_blocks(training: TrainingResult) -> list[Block]:
    """Return the blocks on the clock."""
    return [block for block in training.blocks if not block.past_target]


def has_fixed_length(record: RunRecord) -> bool:
    """Return whether the recipe evaluates only once, after its last epoch."""
    return bool(record.config["recipe"]["first_eval_epoch"] == record.config["recipe"]["max_epochs"])


def outcome(record: RunRecord) -> float:
    """Return the log of the fractional epochs to the target, NaN for a run that missed it.

    That of a recipe of fixed length is the log of the error rate of its one evaluation, whether the target is met or
    not.
    """
    training = record.training
    if training is None:
        return math.nan
    if has_fixed_length(record):
        (quality,) = training.quality.values() if training.quality else [math.nan]
        return math.log1p(-quality)
    return math.log(fractional_epochs(training, lower_is_better=record.config["recipe"]["lower_is_better"]))


def fractional_epochs(training: TrainingResult, *, lower_is_better: bool = False) -> float:
    """Return when the quality crossed the target, in epochs: linear between the last two evaluations on the clock.

    The last evaluation is the first that meets every target. Of several metrics the latest crossing counts: one that
    the evaluation before met crossed earlier. If the first evaluation meets the target, this is its epoch. NaN for a
    run that missed the target.
    """
    blocks = timed_blocks(training)
    if not training.reached:
        return math.nan
    if len(blocks) == 1:
        return float(blocks[0].last_epoch)
    before, met = blocks[-2:]
    sign = -1 if lower_is_better else 1
    missing = {metric: target - before.quality[metric] for metric, target in training.target.items()}
    position = max(
        distance / (met.quality[metric] - before.quality[metric])
        for metric, distance in missing.items()
        if sign * distance > 0
    )
    return before.last_epoch + position * (met.last_epoch - before.last_epoch)


def training_rate(training: TrainingResult) -> float:
    """Return training samples per second, the median over blocks after the first; of the first if it is the only."""
    rate = training.samples_per_second or training.first_block_samples_per_second
    return math.nan if rate is None else rate


def epoch_seconds(record: RunRecord) -> float:
    """Return the seconds of training in an epoch, without evaluation; NaN for a run without a result."""
    if not (training := record.training) or not training.blocks:
        return math.nan
    first = training.blocks[0]
    return first.samples / first.epochs / training_rate(training)


def first_unequal_epoch(records: Sequence[RunRecord]) -> int | None:
    """Return the epoch of the first evaluation up to which two runs differ in a bit of loss or quality, None if none.

    Raises ValueError for runs of several seeds.
    """
    seeds = {(record.config["seed"], *record.config["seeds"].values()) for record in records}
    if len(seeds) > 1:
        raise ValueError(f"repeats have several seeds: {seeds}")
    for blocks in itertools.zip_longest(*(record.training.blocks for record in records if record.training)):
        values = {block and (block.last_epoch, block.loss, *sorted(block.quality.items())) for block in blocks}
        if len(values) > 1:
            return min(block.last_epoch for block in blocks if block)
    return None


@dataclass(frozen=True)
class Variance:
    """A variance that was estimated with `dof` degrees of freedom."""

    value: float
    dof: float

    @classmethod
    def of(cls, runs: pd.DataFrame) -> "Variance | None":
        """Return the variance of the outcomes on one processor, exactly 0 of equal ones; None without two on any.

        Each outcome counts by its distance from the mean of its processor, so that what processors differ by is left
        out. The variances of processors may differ, so their mean has Satterthwaite's (1946) degrees of freedom: all
        of theirs if they are equal, else fewer. Outcomes that are NaN are left out.
        """
        by_processor = runs.dropna(subset="outcome").groupby("processor").outcome
        dofs = by_processor.count() - 1
        dofs, variances = dofs[dofs > 0], by_processor.var()[dofs > 0].where(by_processor.nunique() > 1, 0.0)
        if dofs.empty:
            return None
        squares = dofs * variances
        if not squares.any():
            return cls(0.0, float(dofs.sum()))
        return cls(float(squares.sum() / dofs.sum()), float(squares.sum() ** 2 / (squares * variances).sum()))


def welch_ratio(values: pd.Series, base: pd.Series) -> Interval | None:
    """Return the ratio of geometric means with Welch's 95% interval; None without two values on each side."""
    if min(len(values), len(base)) < 2:
        return None
    logs = np.log(values), np.log(base)
    difference = float(logs[0].mean() - logs[1].mean())
    if not any(map(np.ptp, logs)):
        return _exponential(difference, (math.nan, math.nan), len(values))
    return _exponential(difference, stats.ttest_ind(*logs, equal_var=False).confidence_interval(), len(values))


def paired_ratio(values: pd.Series, base: pd.Series) -> Interval | None:
    """Return the geometric mean of the ratios of equal seeds, the index, with Student's 95% interval; None for one."""
    logs = (values / base).dropna().map(math.log)
    if len(logs) < 2:
        return None
    bounds = stats.ttest_1samp(logs, 0).confidence_interval() if np.ptp(logs) else (math.nan, math.nan)
    return _exponential(float(logs.mean()), bounds, len(logs))


def _exponential(log: float, bounds: tuple[float, float], n: int) -> Interval:
    low, high = np.exp(bounds)
    return Interval(math.exp(log), float(low), float(high), n)


def share(part: Variance, whole: Variance) -> Interval:
    """Return the ratio of two variances of normal values with its 95% F interval; unknown over a variance of zero."""
    if not whole.value:
        return UNKNOWN
    ratio = part.value / whole.value
    high, low = ratio / stats.f.ppf(_TAILS, part.dof, whole.dof)
    return Interval(ratio, float(low), float(high), round(part.dof) + 1)


def least_ratio(part: Variance, whole: Variance) -> float:
    """Return the least ratio, the whole over its part, that a two-sided F test at 5% finds with 80% power."""
    bounds = stats.f.ppf([_TAILS[1], 1 - _POWER], whole.dof, part.dof)
    return float(bounds[0] / bounds[1])


def sum_of_shares(streams: Sequence[Variance], repeats: Variance, whole: Variance, draws: int = _DRAWS) -> Interval:
    """Return the sum of the streams' shares in the variance, 1 if they add up, with its 95% interval.

    Every variance, that of all streams too, contains the variance of repeats once, so that all but one of those in the
    sum are subtracted. The interval is a generalized one (Weerahandi 1993): each variance is drawn by its chi-squared
    distribution. Satterthwaite's approximation fails for differences of variances.
    """
    if not whole.value:
        return UNKNOWN
    generator = np.random.default_rng(0)
    # The first entry of each array is the estimate, the others are draws.
    *each, fixed, total = (
        part.value * part.dof / np.append(part.dof, generator.chisquare(part.dof, draws))
        for part in (*streams, repeats, whole)
    )
    sums = (sum(each) - (len(each) - 1) * fixed) / total
    low, high = np.quantile(sums[1:], _TAILS)
    return Interval(float(sums[0]), float(low), float(high), round(whole.dof) + 1)

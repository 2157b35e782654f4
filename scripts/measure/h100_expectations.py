"""Expected epochs and times of the recipes in docs/studies/h100.tar.xz, and how well they predict each of its runs.

`scripts/measure/h100_study.py` writes both: the rows of recipes.csv, which `timetrial list` and `timetrial estimate`
read, and a table of docs/studies/h100.md.
"""

import csv
import io
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from timetrial.runner.benchmarks import estimate
from timetrial.runner.config.compose import load_config
from timetrial.runner.record.record_file import read_record
from timetrial.runner.record.run_record import RunRecord
from timetrial.runner.record.throughput_result import ThroughputResult
from timetrial.runner.results.analysis.expectations import Expectation

_SETTING = "1 x h100, bf16"


def read_mini_runs(folder: Path, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of mini recipes in the order of their starts, with columns `folder`, `record`, `recipe`."""
    mini = runs[runs.scale == "mini"].sort_values("started_at")
    folders = [(folder / path).parent for path in mini.path]
    records = [record for run_dir in folders if (record := read_record(run_dir))]
    overrides = (dict(override.split("=", 1) for override in record.attempts[-1].overrides) for record in records)
    return mini.assign(folder=folders, record=records, recipe=[each["recipe"] for each in overrides])


def expect(runs: pd.DataFrame) -> Expectation:
    """Return what the runs of one recipe, of which some reached the target, let expect of a further run."""
    reached = runs[runs.success]
    seconds, pace = reached.duration_s, reached.duration_s / reached.epochs_to_converge
    memory_bytes = max(record.peak_memory_bytes for record in reached.record)
    return Expectation(
        recipe=runs.recipe.iloc[0],
        round="",
        runs=len(runs),
        epochs=tuple(sorted(map(int, reached.epochs_to_converge))),
        is_range=False,
        seconds=_round(seconds.median(), 2),
        seconds_range=(_round(seconds.min(), 3), _round(seconds.max(), 3)),
        pace_deviation=_round(math.sqrt(2) * spread_within_machines(pace, reached.system), 2),
        setting=f"{_SETTING}, four runs side by side",
        memory_gib=round(memory_bytes / 2**30, 1),
        memory_setting=_SETTING,
        source="docs/studies/h100.md",
    )


def spread_within_machines(values: pd.Series, systems: pd.Series) -> float:
    """Return the standard deviation of the logs within a machine, pooled over machines."""
    logs = np.log(values.astype(float))
    within = logs - logs.groupby(systems).transform("mean")
    return float(np.sqrt((within**2).sum() / (len(logs) - systems.nunique())))


def write_rows(table: str, expected: Iterable[Expectation]) -> str:
    """Return the text of recipes.csv with these expectations in the place of those of the same recipes."""
    rows = {row["recipe"]: row for row in csv.DictReader(io.StringIO(table))}
    for known in expected:
        counts = ((epochs, len(list(same))) for epochs, same in itertools.groupby(known.epochs))
        rows[known.recipe] = {
            "recipe": known.recipe,
            "by": known.by,
            "runs": f"{known.runs}",
            "epochs": " ".join(f"{epochs}x{times}" if times > 1 else f"{epochs}" for epochs, times in counts),
            "seconds": f"{known.seconds:g}",
            "seconds_range": "{:g}..{:g}".format(*known.seconds_range or ()),
            "pace_deviation": f"{known.pace_deviation:g}",
            "setting": known.setting,
            "memory_gib": f"{known.memory_gib:g}",
            "memory_setting": known.memory_setting,
            "source": known.source,
        }
    written = io.StringIO()
    writer = csv.DictWriter(written, next(iter(rows.values())), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows.values())
    return written.getvalue()


Prediction = tuple[list[bool], float]
"""Which intervals contain a run, and the upper over the lower bound of its time-to-train."""


def hit_rates(
    runs: pd.DataFrame, names: Mapping[str, str], predict: Callable[[pd.DataFrame], Iterator[Prediction]]
) -> list[list[str]]:
    """Return a row per workload and one for all: how many runs lie in the intervals that `timetrial estimate` prints.

    `predict` yields the prediction of each run of one workload. Columns: a share for each of its intervals; the median
    width.
    """
    rows, all_hits = [], []
    for benchmark, name in names.items():
        predictions = list(predict(runs[(runs.benchmark == benchmark) & runs.success]))
        if predictions:
            hits = [hit for hit, _ in predictions]
            width = statistics.median(width for _, width in predictions)
            rows.append([name, *_shares(hits), f"{width:.2g}"])
            all_hits += hits
    return [*rows, ["all", *_shares(all_hits), ""]]


def predict_on_two_machines(same: pd.DataFrame) -> Iterator[Prediction]:
    """Predict each run from the others.

    Intervals: epochs from the other runs of the machine and from those of the other machine; time-to-train from the
    same two; time-to-train from runs and speed of the other machine. The width is that of the third. The speed is that
    of a run, the one before on the machine or the one in the same place on the other, instead of a short measurement.
    """
    for system, mine in same.groupby("system"):
        other = same[same.system != system]
        config = load_config(mine.folder.iloc[0] / "config.yaml")
        for place, (index, run) in enumerate(mine.iterrows()):
            here, there = measured(mine.record.iloc[place - 1]), measured(other.record.iloc[place])
            references = expect(mine.drop(index)), expect(other)
            left_out, from_other, elsewhere = (
                estimate.extrapolate(config, run.recipe, (), record, reference)
                for record, reference in zip((here, here, there), (*references, references[1]), strict=True)
            )
            hits = [
                _contains(left_out.epochs, run.epochs_to_converge),
                _contains(from_other.epochs, run.epochs_to_converge),
                *(_contains(each.seconds, run.duration_s) for each in (left_out, from_other, elsewhere)),
            ]
            yield hits, left_out.seconds[2] / left_out.seconds[0]


def predict_on(system: str, same: pd.DataFrame) -> Iterator[Prediction]:
    """Predict each run on a system from those elsewhere, if there are any.

    Intervals: epochs; time-to-train, where the speed is that of the run before on the system.
    """
    mine, others = same[same.system == system], same[same.system != system]
    if not len(others):
        return
    config, reference = load_config(mine.folder.iloc[0] / "config.yaml"), expect(others)
    for place, (_, run) in enumerate(mine.iterrows()):
        found = estimate.extrapolate(config, run.recipe, (), measured(mine.record.iloc[place - 1]), reference)
        hits = [_contains(found.epochs, run.epochs_to_converge), _contains(found.seconds, run.duration_s)]
        yield hits, found.seconds[2] / found.seconds[0]


def measured(record: RunRecord) -> RunRecord:
    """Return the record with what a throughput run of five blocks would have measured in its first blocks."""
    training = record.training
    assert training is not None
    first, *steady = training.blocks[:5]
    rates = [block.samples / block.train_seconds for block in steady]
    rate, eval_seconds = statistics.median(rates), statistics.median(block.eval_seconds for block in steady)
    first_seconds = first.train_seconds + first.eval_seconds
    throughput = ThroughputResult(
        steps=0,
        samples_per_second=rate,
        tokens_per_second=None,
        train_ms=0,
        eval_samples_per_second=1 / eval_seconds,
        eval_tokens_per_second=None,
        eval_ms=1000 * eval_seconds,
        train_seconds=sum(block.train_seconds for block in steady),
        data_wait_seconds=0,
        spread=0,
        train_size=first.samples // first.epochs,
        eval_size=1,  # an evaluation is the unit of the rates below
        train_rates=tuple(rates),
        eval_rates=tuple(1 / block.eval_seconds for block in steady),
        first_block_extra_seconds=max(first_seconds - first.samples / rate - eval_seconds, 0),
        gpus=1,
        datasheet_tflops=None,
        peer_to_peer=True,
        usd_per_samples_per_second=None,
        step_cost=None,
        opening_seconds=first.ended_at - first_seconds - training.started_at,
    )
    return replace(record, training=None, throughput=throughput)


def _contains(interval: estimate.Interval, value: float) -> bool:
    return interval[0] <= value <= interval[2]


def _shares(hits: Sequence[Sequence[bool]]) -> Iterator[str]:
    """Yield the hits in each column, with the Clopper-Pearson interval of their share."""
    for column in zip(*hits, strict=True):
        interval = stats.binomtest(sum(column), len(column)).proportion_ci()
        yield f"{sum(column)} of {len(column)} ({interval.low:.0%} to {interval.high:.0%})"


def _round(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")

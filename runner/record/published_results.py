"""Published results of MLPerf Training, v0.5 to v5.1: a baseline for everyone who runs a benchmark.

The file holds facts from MLCommons' results repositories (github.com/mlcommons/training_results_v*, Apache-2.0):
`scripts/measure/published_results.py` wrote it. It does not have every benchmark of every round.
"""

import csv
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..core.errors import ConfigurationError
from ..core.suggestions import choose_one_of
from .reference_throughput import look_up
from .run_record import RunRecord

FILE = Path(__file__).parents[1] / "results" / "reference_data" / "mlperf_results.csv"
COLUMNS = (
    *("round", "division", "submitter", "system", "accelerator", "accelerators", "benchmark", "runs", "converged"),
    *("minutes", "epochs", "samples", "cv_time", "cv_pace", "global_batch", "source"),
)
TITLES = ("round", "division", "accelerators", "submitter", "minutes", "runs", "CV", "batch")
"""Columns of a table of entries."""
TEXT_TITLES = 4
"""How many of them, from the first, hold text."""
LEGEND = (
    "Minutes are MLPerf's scores; runs that converged of all; CV of time-to-train over the former. Source: MLCommons' "
    "results repositories."
)
_KEYS = (
    "workload.benchmark",
    "round.name",
    "gpus",
    "recipe.global_batch_size",
    "recipe.scale",
    "data.loader",
    "target",
)
_TARGETS = {"v05": ("v0.5",), "v07": ("v0.6", "v0.7", "v1.0", "v1.1", "v2.0", "v2.1", "v3.0", "v3.1", "v4.0")}
"""Rounds with the target that the name of a round in conf/round stands for."""


@dataclass(frozen=True)
class PublishedEntry:
    """A published entry. `minutes` is MLPerf's score, None without one; `epochs` and `samples` are medians.

    `cv_time` and `cv_pace` are the coefficients of variation of time-to-train and of the time per epoch or sample over
    the converged runs. None is not known. `source` is "logs" if timetrial read the logs, else "table".
    """

    round: str
    division: str
    submitter: str
    system: str
    accelerator: str
    accelerators: int | None
    benchmark: str
    runs: int
    converged: int
    minutes: float | None
    epochs: float | None
    samples: float | None
    cv_time: float | None
    cv_pace: float | None
    global_batch: int | None
    source: str

    def cells(self) -> list[str]:
        """Return the texts of `TITLES`."""
        return [
            self.round,
            self.division,
            f"{self.accelerators} x {self.accelerator}" if self.accelerators else self.system,
            self.submitter,
            f"{self.minutes:.4g}" if self.minutes else "none",
            f"{self.converged}/{self.runs}",
            f"{self.cv_time:.1%}" if self.cv_time is not None else "",
            f"{self.global_batch:,}" if self.global_batch else "",
        ]


@cache
def read_all() -> tuple[PublishedEntry, ...]:
    """Return all entries, by round, benchmark, submitter and system."""
    with open(FILE, newline="", encoding="utf-8") as file:
        return tuple(map(_parse, csv.DictReader(file)))


def find_benchmark(name: str) -> list[PublishedEntry]:
    """Return the entries of a benchmark by number of accelerators, the fastest first.

    Raises `ConfigurationError` for a benchmark without entries.
    """
    known = sorted({entry.benchmark for entry in read_all()})
    if name not in known:
        raise ConfigurationError(f"No published entry has the benchmark {name}: {choose_one_of(name, known)}.")
    entries = [entry for entry in read_all() if entry.benchmark == name]
    return sorted(entries, key=lambda entry: (entry.accelerators or 0, entry.minutes or math.inf))


def nearest(benchmark: str, round_name: str, accelerators: int) -> PublishedEntry | None:
    """Return the fastest closed entry with the same target on as many accelerators, or on the nearest number of them.

    `round_name` is that of conf/round. None if the benchmark has no entry with this target.
    """
    entries = [
        entry
        for entry in read_all()
        if entry.benchmark == benchmark
        and entry.round in _TARGETS.get(round_name, ())
        and entry.minutes
        and entry.accelerators
        and entry.division == "closed"
    ]
    return min(entries, key=lambda entry: (_distance(entry, accelerators), entry.minutes), default=None)


def describe(entry: PublishedEntry) -> str:
    """Return the entry in words, such as "11.9 min on 4 x A100-SXM4-40GB, v1.1, NVIDIA, at batch 1,632"."""
    batch = f", at batch {entry.global_batch:,}" if entry.global_batch else ""
    return (
        f"{entry.minutes:.4g} min on {entry.accelerators} x {entry.accelerator or 'accelerators'}, {entry.round}, "
        f"{entry.submitter}{batch}"
    )


def compare_with_published(record: RunRecord) -> list[str]:
    """Return how a run that reached the target of a benchmark stands to the nearest published entry, if there is one.

    Runs of smaller recipes and on synthetic data have another task, and no line.
    """
    config, training = record.config, record.training
    benchmark, round_name, gpus, batch, scale, loader, target = (look_up(config, key) for key in _KEYS)
    if training is None or not training.reached or scale != "reference" or loader == "synthetic" or target or not gpus:
        return []
    entry = nearest(benchmark, round_name, gpus)
    if entry is None:
        return []
    own = f"{training.seconds / 60:.4g} min on {gpus} GPU{'s' * (gpus > 1)} at batch {batch:,}"
    return [f"{describe(entry)}; this run: {own}"]


def _distance(entry: PublishedEntry, accelerators: int) -> float:
    return abs(math.log((entry.accelerators or 1) / accelerators))


def _parse(row: dict[str, str]) -> PublishedEntry:
    whole = {key: int(row[key]) if row[key] else None for key in ("accelerators", "global_batch")}
    real = {
        key: float(row[key]) if row[key] else None for key in ("minutes", "epochs", "samples", "cv_time", "cv_pace")
    }
    texts = {
        key: row[key] for key in ("round", "division", "submitter", "system", "accelerator", "benchmark", "source")
    }
    return PublishedEntry(**texts, **whole, **real, runs=int(row["runs"]), converged=int(row["converged"]))  # type: ignore[arg-type]

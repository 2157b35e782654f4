"""Coverage of the shares of the variance that seeds and machines have."""

import math

import numpy as np

from timetrial.runner.results.analysis.intervals import Interval
from timetrial.runner.results.analysis.variance import variance_shares

from .rows import Row, coverage


def variance_rows(replicates: int, seed: int) -> list[Row]:
    """Shares of the variance: seeds crossed with two GPUs; columns are the numbers of seeds, each on both GPUs."""
    rows, studies = [], replicates // 5
    for number, share in enumerate((0.0, 0.3, 0.8)):
        rng = np.random.default_rng([seed, 500 + number])
        cells = {}
        for n in (10, 20, 40):
            intervals = []
            for _ in range(studies):
                logs = math.sqrt(share) * rng.standard_normal((n, 1)) + math.sqrt(1 - share) * rng.standard_normal(
                    (n, 4)
                )
                factors = {"seed": np.repeat(np.arange(n), 4).tolist(), "GPU": [0, 0, 1, 1] * n}
                found = variance_shares(np.exp(0.05 * logs).ravel().tolist(), factors)
                intervals += [entry.share for entry in found if entry.factor == "seed"]
            cells[n] = coverage(intervals, share)[0], math.nan
        rows.append(Row(f"share of the seed in the variance, truth {share:.0%}", cells, studies, 0.9))
    return rows


def machine_share_rows(replicates: int, seed: int) -> list[Row]:
    """A small share of the seed, 10%, beside one of the machine, 80%; columns are seeds, each twice on 12 machines."""
    studies = replicates // 10
    rng = np.random.default_rng([seed, 510])
    truths = {"seed": 0.1, "machine": 0.8}
    cells: dict[str, dict[int, tuple[float, float]]] = {factor: {} for factor in truths}
    for n in (5, 10, 20):
        seeds, machines = np.repeat(np.arange(n), 24), np.tile(np.repeat(np.arange(12), 2), n)
        levels = {"seed": seeds.tolist(), "machine": machines.tolist()}
        found: dict[str, list[Interval]] = {factor: [] for factor in truths}
        for _ in range(studies):
            logs = math.sqrt(0.1) * rng.standard_normal(n)[seeds] + math.sqrt(0.8) * rng.standard_normal(12)[machines]
            logs += math.sqrt(0.1) * rng.standard_normal(len(seeds))
            for entry in variance_shares(np.exp(0.05 * logs).tolist(), levels):
                found[entry.factor].append(entry.share)
        for factor, truth in truths.items():
            cells[factor][n] = coverage(found[factor], truth)[0], math.nan
    return [
        Row("share of the seed, truth 10% beside 80% of the machine", cells["seed"], studies, 0.9),
        Row("share of the machine, truth 80% beside 10% of the seed", cells["machine"], studies, 0.9),
    ]


def nested_share_rows(replicates: int, seed: int) -> list[Row]:
    """Two GPUs with 8 or 16 machines each, on which all seeds run once; the shares are those at equal GPU."""
    rows, studies = [], replicates // 10
    for number, machines in enumerate((8, 16)):
        rng = np.random.default_rng([seed, 515 + number])
        for share in (0.2, 0.6):
            cells = {}
            for n in (3, 5, 10, 20):
                seeds, of_run = np.repeat(np.arange(n), 2 * machines), np.tile(np.arange(2 * machines), n)
                levels = {"seed": seeds.tolist(), "machine": of_run.tolist(), "GPU": (of_run // machines).tolist()}
                intervals = []
                for _ in range(studies):
                    logs = math.sqrt(0.8 - share) * rng.standard_normal(n)[seeds]
                    logs += math.sqrt(share) * rng.standard_normal(2 * machines)[of_run]
                    logs += math.sqrt(0.2) * rng.standard_normal(len(seeds)) + 4 * (of_run // machines)
                    found = variance_shares(np.exp(0.05 * logs).tolist(), levels)
                    intervals += [entry.share for entry in found if entry.factor == "machine"]
                cells[n] = coverage(intervals, share)[0], math.nan
            name = f"share of the machine at equal GPU, truth {share:.0%}; two GPUs with {machines} machines each"
            rows.append(Row(name, cells, studies, 0.9))
    return rows


ALL = (variance_rows, machine_share_rows, nested_share_rows)

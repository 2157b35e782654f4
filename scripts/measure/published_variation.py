"""Print how much published results vary within an entry: a Markdown table with one row per benchmark.

    .venv/bin/python -P scripts/measure/published_variation.py RESULTS...

An entry is a run group with at least three converged runs. Its coefficient of variation is the standard deviation with
n - 1 degrees of freedom over the arithmetic mean, of time-to-train, of the epochs or samples to converge, and of their
ratio per run. Over the entries of a benchmark the table gives the median, and in parentheses the root of the mean
square, weighted by n - 1.
"""

import argparse
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from timetrial.runner.results.analysis.groups import RunGroup, group_runs
from timetrial.runner.results.analysis.stats import coefficient_of_variation
from timetrial.runner.results.parse.sources import read_runs

MIN_RUNS = 3
HEADER = (
    "| benchmark | counts | entries | runs | time-to-train | epochs or samples | time per epoch or sample |",
    "|---|---|---|---|---|---|---|",
)


def pool_variation(entries: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return median and root mean square of the entries' coefficients of variation, the latter weighted by n - 1."""
    variations = [coefficient_of_variation(values) for values in entries]
    degrees = [len(values) - 1 for values in entries]
    mean_square = statistics.fmean([variation**2 for variation in variations], weights=degrees)
    return statistics.median(variations), math.sqrt(mean_square)


def table_row(benchmark: str, groups: Sequence[RunGroup]) -> str:
    """Return the row of a benchmark; every group has at least `MIN_RUNS` converged runs."""
    entries = [group.converged_runs for group in groups]
    measures = (
        [[run.duration or 0.0 for run in runs] for runs in entries],
        [[run.progress_to_converge or 0.0 for run in runs] for runs in entries],
        [[run.pace or 0.0 for run in runs] for runs in entries],
    )
    cells = ["{:.2%} ({:.2%})".format(*pool_variation(values)) for values in measures]
    num_runs = sum(len(runs) for runs in entries)
    return f"| {benchmark} | {groups[0].progress_unit} | {len(groups)} | {num_runs} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, help="folders of published results")
    groups = group_runs(read_runs(parser.parse_args().results))
    by_benchmark: dict[str, list[RunGroup]] = {}
    for group in groups:
        if len(group.converged_runs) >= MIN_RUNS and all(run.pace for run in group.converged_runs):
            by_benchmark.setdefault(f"{group.benchmark} {group.round}".strip(), []).append(group)
    print(*HEADER, *(table_row(name, by_benchmark[name]) for name in sorted(by_benchmark)), sep="\n")


if __name__ == "__main__":
    main()

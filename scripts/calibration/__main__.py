"""Simulate every table and write the page; exit with 1 if a bar is missed."""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from . import interval_rows, plausibility_rows, verdict_rows
from .rows import Row, format_table

_PAGE = Path(__file__).parents[2] / "docs" / "calibration.md"
_TABLES = interval_rows.TABLES | verdict_rows.TABLES
_TABLES["Plausibility flags and predictions"] = (
    plausibility_rows.convergence_rows,
    plausibility_rows.scaling_rows,
    plausibility_rows.interconnect_rows,
    plausibility_rows.regression_rows,
    plausibility_rows.estimate_rows,
    plausibility_rows.estimate_time_rows,
)
_INTRODUCTION = """\
# Calibration of the verdicts

<!-- Written by scripts/calibrate: do not edit. -->

How often the statistics of timetrial are right, found by simulating studies whose truth is known and judging them with
the functions that judge real runs. `scripts/calibrate` repeats it with {replicates:,} replicates of each interval and
fewer of what takes longer (seed {seed}); frequencies therefore vary by a point or less. Columns are the runs of each
group, unless a row says otherwise. In brackets is the median half-width of the interval.

An interval that is called 95% should contain the truth in 95% of studies, whatever the number of runs. Two runs a side
are so few that intervals are very wide and that no verdict is given; no interval is given for one.

What no method can see: a rare slow or failed run that no run of the study shows. If one run in ten takes twice as long,
three to ten runs often show none, and their interval covers the mean in about half of the studies. `timetrial study`
and `timetrial compare` describe runs like those that were made.
"""
_TEXTS = {
    "One group": (
        "Share of the studies whose interval contains the truth: geometric means, as all times and epochs are shown; "
        "arithmetic means, as energy and cost; MLPerf's olympic mean; and what is shown where runs fail."
    ),
    "Two groups": "Share of the studies whose interval of a ratio contains the truth.",
    "Several workloads and factors": (
        "One number a GPU: its interval for these workloads lets only the runs vary, that for further workloads uses "
        "Student's t over workloads. The hierarchical bootstrap (workloads, then runs) is shown beside it: it is far "
        "too narrow for the few workloads there are, so it is not used. Columns are numbers of workloads in these "
        "rows, and numbers of seeds in the rows on variance, where an empty cell is a design too small to show a share."
    ),
    "False verdicts": (
        'Share of the studies of equal groups in which one is called "faster" or "slower", and of unequal ones in '
        "which the worse is called faster or both are called equal. With two runs a side there is no verdict."
    ),
    "Families": (
        "A page, a table or a command makes one promise about all its words: share of those in which one is false. "
        "Each has twenty, which are judged together."
    ),
    "Found differences and plans": (
        "Share of the studies that call a faster GPU faster; and share of the pilots whose planned number of runs (the "
        "upper number of `timetrial study --plan`) finds 5% with a power of at least 80%."
    ),
    "Looking after every run": (
        "Studies that stop as soon as `timetrial study --plan` says so, with a look after every run of each group from "
        "3 to 30: share of the studies of equal groups that stop with a false verdict."
    ),
    "Plausibility flags and predictions": (
        "Share of the groups that are flagged, which is to be small for honest ones; and share of the predictions of "
        "reports and of `timetrial estimate` that contain what comes."
    ),
}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="scripts/calibrate", description=__doc__)
    parser.add_argument("--replicates", type=int, help="studies per frequency; prints the page instead of writing it")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    replicates, started = options.replicates or 10_000, time.monotonic()
    with ProcessPoolExecutor() as pool:
        jobs = {
            title: [pool.submit(rows_of, replicates, options.seed) for rows_of in functions]
            for title, functions in _TABLES.items()
        }
        tables = {title: [row for job in of_title for row in job.result()] for title, of_title in jobs.items()}
    page = _format_page(tables, replicates, options.seed)
    if options.replicates:
        print(page)
    else:
        _PAGE.write_text(page)
    problems = [problem for rows in tables.values() for row in rows for problem in row.problems()]
    print(*problems, sep="\n", file=sys.stderr)
    print(f"{time.monotonic() - started:.0f} s, {len(problems)} bars missed", file=sys.stderr)
    sys.exit(bool(problems))


def _format_page(tables: dict[str, list[Row]], replicates: int, seed: int) -> str:
    sections = (f"## {title}\n\n{_TEXTS[title]}\n\n{format_table(rows)}\n" for title, rows in tables.items())
    return "\n".join([_INTRODUCTION.format(replicates=replicates, seed=seed), *sections])


if __name__ == "__main__":
    main()

#!/usr/bin/env python
"""Compare runs that share a process with runs that each start in a new one.

    python -P scripts/measure/shared_process.py [--runs N] [--folder FOLDER] KEY=VALUE...

Makes a sweep of seeds 1 to N with `launcher.reuse_process=true`, between the halves of one with false, so that a
machine that slowly changes its speed favours neither. Prints a JSON line: the seconds on the clock, the seconds from
the end of the run before to the clock, and the peak memory, of each run; and the ratio of the times-to-train, later
runs of a process over first ones of the same seeds, with its 95% interval. Let all runs do the same work, so that no
luck is in the ratio: `recipe.first_eval_epoch=E` and a target that every run meets then. The run directories stay in
FOLDER. Leave the machine idle.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from timetrial.runner.record.record_file import read_record
from timetrial.runner.record.run_record import RunRecord
from timetrial.runner.results.analysis.intervals import bounds_as_json, geometric_ratio


def run_sweep(place: Path, seeds: range, overrides: Sequence[str], *, share: bool) -> None:
    """Run the seeds one after the other, in one process or each in a new one."""
    words = [*overrides, f"seed=range({seeds.start},{seeds.stop})", f"launcher.reuse_process={str(share).lower()}"]
    subprocess.run(
        [sys.executable, "-P", "-m", "timetrial", "run", "-m", *words, f"runs_dir={place}"], stdout=sys.stderr
    )


def read_records(place: Path) -> list[RunRecord]:
    """Return the records of a folder's runs, in the order of their starts."""
    records = [record for path in place.rglob("status.json") if (record := read_record(path.parent))]
    return sorted(records, key=lambda record: record.attempts[0].started_at)


def describe(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return what was measured of each run of a sweep."""
    attempts = [record.attempts[0] for record in records]
    return {
        "earlier_runs": [attempt.earlier_runs for attempt in attempts],
        "seconds": [record.training and record.training.seconds for record in records],
        "start": [round(sum(attempt.startup.values()), 2) for attempt in attempts],
        "peak_memory_mib": [round((record.peak_memory_bytes or 0) / 2**20, 1) for record in records],
    }


def main() -> None:
    """Make both sweeps and print how they compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--folder", type=Path, default=Path("shared_process"))
    options, overrides = parser.parse_known_args()
    separate, shared = options.folder / "separate", options.folder / "shared"
    middle, stop = 1 + options.runs // 2, 1 + options.runs
    run_sweep(separate, range(1, middle), overrides, share=False)
    run_sweep(shared, range(1, stop), overrides, share=True)
    run_sweep(separate, range(middle, stop), overrides, share=False)
    sides = {False: read_records(separate), True: read_records(shared)}
    seeds = {record.config["seed"] for record in sides[True] if record.attempts[0].earlier_runs}
    later, first = (
        [record.training.seconds for record in sides[share] if record.training and record.config["seed"] in seeds]
        for share in (True, False)
    )
    line = {"overrides": overrides, "separate": describe(sides[False]), "shared": describe(sides[True])}
    print(json.dumps(line | bounds_as_json(geometric_ratio(later, first), "later_over_first")))


if __name__ == "__main__":
    main()

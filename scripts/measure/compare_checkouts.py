#!/usr/bin/env python
"""Train with two checkouts in turn on one machine, and compare them: is the other version faster, or was it luck?

    python -P scripts/measure/compare_checkouts.py BASELINE OTHER [--seeds N] [--out FOLDER] KEY=VALUE...

Trains with the seeds 1 to N, each with BASELINE and then with OTHER, so that a drift of the machine favors neither; two
folders, whose names do not matter. The runs are in FOLDER/baseline and FOLDER/other, and the end is that of
`timetrial compare`. Runs that have ended are not repeated when the command is. Leave the machine idle.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from timetrial.scripts.measure import checkouts

SIDES = ("baseline", "other")


def train(checkout: Path, run_dir: Path, overrides: list[str]) -> int:
    """Start or resume a run of the checkout and return its exit code; 0 if it has ended before."""
    if (run_dir / "status.json").exists() and json.loads((run_dir / "status.json").read_text())["training"]:
        return 0
    with checkouts.importing(checkout) as environment:
        command = [sys.executable, "-P", "-m", "timetrial", "run", *overrides, f"run_dir={run_dir}", "resume=true"]
        return subprocess.run(command, env=environment).returncode


def main() -> int:
    """Train and compare; return the exit code of the comparison, or of a run that left no result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs=2, type=Path, metavar="CHECKOUT")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of each side (default: 5)")
    parser.add_argument("--out", type=Path, default=Path("runs/checkouts"), metavar="FOLDER")
    options, overrides = parser.parse_known_args()
    for seed in range(1, options.seeds + 1):
        for side, checkout in zip(SIDES, options.checkouts, strict=True):
            words = [*overrides, f"seed={seed}", f"system={side}"]
            exit_code = train(checkout, (options.out / side / f"seed_{seed}").absolute(), words)
            if exit_code not in (0, 10):  # 10: the target was not reached, which is a result
                return exit_code
    folders = [str(options.out / side) for side in SIDES]
    return subprocess.run([sys.executable, "-P", "-m", "timetrial", "compare", *folders]).returncode


if __name__ == "__main__":
    sys.exit(main())

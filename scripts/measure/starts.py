#!/usr/bin/env python
"""Time the start of a run, from the command to the clock, with one checkout or several in turn.

    python -P scripts/measure/starts.py [--checkout FOLDER]... [--runs N] KEY=VALUE...

Makes N runs of one epoch with each checkout; their first run may compile kernels that later ones find. Prints a JSON
line for each: the seconds of each phase of the start, as the run record has them, and their sum. A FOLDER is a checkout
whose name does not matter; the default is this one. Leave the machine idle.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from timetrial.scripts.measure import checkouts


def time_start(checkout: Path, overrides: list[str]) -> dict[str, Any]:
    """Return the seconds of each phase of the start of a run, and their sum."""
    with checkouts.importing(checkout) as environment, tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder, "run")
        words = [*overrides, "recipe.max_epochs=1", f"run_dir={run_dir}"]
        done = subprocess.run(
            [sys.executable, "-P", "-m", "timetrial", "run", *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if not (run_dir / "status.json").exists():
            raise SystemExit(done.stdout)
        startup: dict[str, float] = json.loads((run_dir / "status.json").read_text())["attempts"][-1]["startup"]
    return {"seconds": round(sum(startup.values()), 2), **startup}


def main() -> None:
    """Time the starts of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, action="append")
    parser.add_argument("--runs", type=int, default=3)
    options, overrides = parser.parse_known_args()
    for number in range(1, options.runs + 1):
        for checkout in options.checkout or [checkouts.THIS]:
            line = {"checkout": str(checkout), "run": number, **time_start(checkout, overrides)}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

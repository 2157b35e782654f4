#!/usr/bin/env python
"""Find the first training step, and its tensor, in which two runs of one seed differ.

    python -P scripts/measure/first_difference.py [--steps N] [--seconds S] KEY=VALUE...

Trains the same steps again and again from one state, with the kernels and captured steps of `timetrial run`, and
compares a checksum of every tensor of the model after each step. Prints one JSON line. Batches are synthetic, so that
no loader is between; add engine.deterministic=true to see whether the steps are then equal to the bit.
"""

import argparse
import itertools
import json
import tempfile
import time
from typing import Any

from timetrial.runner.benchmarks.accept.replay import MIN_REPEATS, replay
from timetrial.scripts.measure.engines import build, configure


def find(overrides: list[str], steps: int, seconds: float) -> dict[str, Any]:
    """Return how many replays were equal to the bit, or where the first one differed."""
    with tempfile.TemporaryDirectory() as folder:
        config = configure(["data=synthetic", *overrides], f"{folder}/run")
        engine = build(config)
        engine.open_data()
        batches = list(itertools.islice(engine.data.train_batches(1), steps))
        done = replay(config.workload.title, engine, batches, time.time() + seconds, lambda *_: None)
    found = done.difference
    where = {"differs": found is not None}
    if found:
        where |= {"repeat": found.repeat, "step": found.step, "tensor": found.tensor}
    return {
        "accelerator": config.accelerator.name,
        "workload": done.name,
        "steps": len(batches),
        "replays": done.repeats,
    } | where


def main() -> None:
    """Replay the run of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10, help=f"of replays; at least {MIN_REPEATS} are made")
    options, overrides = parser.parse_known_args()
    print(json.dumps({"run": " ".join(overrides)} | find(overrides, options.steps, options.seconds)), flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python
"""Print the loss of each of the first training steps of a run, on one GPU or several.

    python -P scripts/measure/losses.py [--steps N] KEY=VALUE...

Prints one JSON line. The loss of a step is the mean over its global batch. Two runs that differ only in gpus= have the
same losses up to rounding, with three exceptions. Each rank draws its own dropout masks: set recipe.training.dropout=0.
Batch normalization uses the statistics of each rank: tuning.micro_batch_size gives one GPU the statistics of several.
Mask R-CNN samples regions on each rank.
"""

import argparse
import itertools
import json
import tempfile

from timetrial.runner.training.torch_engine import TorchEngine
from timetrial.scripts.measure.engines import build, configure, joined_ranks, training_steps


def losses(engine: TorchEngine, steps: int) -> list[float]:
    """Train `steps` steps and return the loss of each; raise `Diverged` for one that is not finite."""
    engine.open_data()
    return [engine.synchronize().loss for _ in itertools.islice(training_steps(engine), steps)]


def main() -> None:
    """Train the run of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    options, overrides = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        config = configure(overrides, f"{folder}/run")
        with joined_ranks(config.gpus) as world:
            found = losses(build(config, world), options.steps)
            if world.rank == 0:
                run = {"run": " ".join(overrides), "workload": config.workload.title, "gpus": config.gpus}
                print(json.dumps(run | {"losses": found}), flush=True)


if __name__ == "__main__":
    main()

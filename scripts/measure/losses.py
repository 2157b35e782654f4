#!/usr/bin/env python
"""Print the loss of each of the first training steps of a run, on one GPU or several.

    python -P scripts/measure/losses.py [--steps N] KEY=VALUE...

Prints one JSON line. The loss of a step is the mean over its global batch. If two runs differ in gpus= alone, their
losses differ by rounding, by dropout, which each rank draws for itself (recipe.training.dropout=0 leaves it out), by
the statistics of batch normalization, which are those of a rank (on one GPU, tuning.micro_batch_size can give it the
batches of two), and in Mask R-CNN by the regions that a rank samples.
"""

import argparse
import itertools
import json
import tempfile

from timetrial.runner.training.torch_engine import TorchEngine
from timetrial.scripts.measure.engines import build, configure, joined_ranks


def losses(engine: TorchEngine, steps: int) -> list[float]:
    """Train `steps` steps and return the loss of each; raise `Diverged` for one that is not finite."""
    engine.open_data()
    training = (step for epoch in itertools.count(1) for step in engine.train_epoch(epoch))
    return [engine.synchronize().loss for _ in itertools.islice(training, steps)]


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
                print(json.dumps({"run": " ".join(overrides), "gpus": config.gpus, "losses": found}), flush=True)


if __name__ == "__main__":
    main()

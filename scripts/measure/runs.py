#!/usr/bin/env python
"""Time whole runs of an image workload in one process, with several seeds.

    python -P scripts/measure/runs.py [--seeds N] KEY=VALUE...

Trains to the end with the weights, data order and dropout of seeds 1 to N. Prints one JSON line: of each run the
seconds, from the first training step, with the data open, to the end of the last evaluation, and its quality; and
their means and standard deviations. Leave the machine idle.
"""

import argparse
import copy
import json
import math
import statistics
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import torch

from timetrial.runner.config.schema import Config
from timetrial.runner.hardware import devices
from timetrial.runner.launch.train import training_plan
from timetrial.runner.training.events import BlockStarted, EvalEnded, Event
from timetrial.runner.training.loop import train_to_target
from timetrial.runner.training.seeds import derive_seed, derive_streams, seed_everything
from timetrial.scripts.measure.engines import build, configure
from timetrial.workloads.common.vision.image_data import ImageData


class RunClock:
    """Observes the times of the first training step and of the last evaluation, and the quality of the latter."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.started = self.stopped = math.nan
        self.quality: Mapping[str, float] = {}

    def __call__(self, event: Event) -> None:
        """Note the time of an event."""
        if isinstance(event, BlockStarted) and math.isnan(self.started):
            devices.synchronize(self._device)
            self.started = time.perf_counter()
        if isinstance(event, EvalEnded):
            self.stopped, self.quality = time.perf_counter(), event.quality


def time_runs(config: Config, seeds: int) -> list[dict[str, float]]:
    """Return the seconds and the quality of a run with each of the seeds."""
    engine = build(config)
    data = engine.data
    if not isinstance(data, ImageData):
        raise SystemExit("Only workloads of images are timed: the data of others cannot be given another seed.")
    initial_state = copy.deepcopy(engine.state_dict())
    runs = []
    for seed in range(1, seeds + 1):
        data.seeds = derive_streams(seed)
        seed_everything(data.seeds.initialization)
        model = engine.workload.build_model().state_dict()
        engine.load_state_dict(copy.deepcopy(initial_state) | {"model": model})
        seed_everything(derive_seed(data.seeds.dropout, engine.world.rank))
        clock = RunClock(engine.device)
        train_to_target(engine, training_plan(config), [clock])
        runs.append({"seconds": clock.stopped - clock.started, **clock.quality})
    return runs


def summary(runs: list[dict[str, float]]) -> dict[str, Any]:
    """Return the values of all runs by name, their means and standard deviations."""
    result: dict[str, Any] = {}
    for name in runs[0]:
        values = [run[name] for run in runs]
        result |= {name: [round(value, 4) for value in values], f"mean_{name}": round(statistics.mean(values), 5)}
        if len(values) > 1:
            result[f"stdev_{name}"] = round(statistics.stdev(values), 5)
    return result


def main() -> None:
    """Time the runs of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    options, overrides = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = time_runs(configure(overrides, f"{folder}/run"), options.seeds)
    print(json.dumps({"run": " ".join(overrides)} | summary(runs)))


if __name__ == "__main__":
    main()

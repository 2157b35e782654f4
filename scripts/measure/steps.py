#!/usr/bin/env python
"""Time the training steps of a run, and trace their kernels.

    python -P scripts/measure/steps.py [--steps N] [--longest N] KEY=VALUE...

Prints one JSON line: `step_ms` of --steps steps in a row, the loading of their data included; `host_ms`, of which the
host needs until it has submitted a step; and of as many traced steps the time and number of their kernels, the time of
NCCL's kernels and how much of it no other kernel hid, and the longest ones. `kernel_share_untraced` is the kernels'
share in `step_ms`, which the profiler does not slow down. With gpus=N, the figures are those of the first GPU. Add
engine.capture=false for eager steps. Leave the machine idle.
"""

import argparse
import itertools
import json
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from timetrial.runner.hardware import devices
from timetrial.runner.training.torch_engine import TorchEngine
from timetrial.scripts.measure.engines import build, configure, joined_ranks, training_steps
from timetrial.scripts.measure.kernels import trace_kernels

_WARM_UP_STEPS = 20


def measure(engine: TorchEngine, steps: int, longest: int) -> dict[str, Any]:
    """Return the figures of an engine."""
    engine.open_data()
    training = training_steps(engine)
    train(training, _WARM_UP_STEPS)
    devices.synchronize(engine.device)
    started = time.perf_counter()
    train(training, steps)
    submitted = time.perf_counter()
    devices.synchronize(engine.device)
    step_ms = (time.perf_counter() - started) / steps * 1e3
    result: dict[str, Any] = {"step_ms": round(step_ms, 4), "host_ms": round((submitted - started) / steps * 1e3, 4)}
    if engine.device.type != "cpu":
        result |= trace_kernels(engine.device, lambda: train(training, steps), steps, longest)
        result["kernel_share_untraced"] = round(result["kernel_ms"] / step_ms, 3)
    return result


def train(training: Iterator[object], steps: int) -> None:
    """Train some steps."""
    deque(itertools.islice(training, steps), maxlen=0)


def main() -> None:
    """Measure the run of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--longest", type=int, default=8, help="kernels that are listed")
    options, overrides = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        config = configure(overrides, f"{folder}/run")
        with joined_ranks(config.gpus) as world:
            result = measure(build(config, world), options.steps, options.longest)
            if world.rank == 0:
                print(json.dumps({"run": " ".join(overrides)} | result), flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python
"""Time evaluations of an untrained model, and trace the kernels of one.

    python -P scripts/measure/evaluations.py [--longest N] KEY=VALUE...

Prints one JSON line: the seconds of four evaluations, and of a fifth without the score, of which the kernels are
traced. Leave the machine idle.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

from timetrial.runner.training.torch_engine import TorchEngine
from timetrial.scripts.measure.engines import build, configure
from timetrial.scripts.measure.kernels import trace_kernels

_EVALUATIONS = 4


def measure(engine: TorchEngine, longest: int) -> dict[str, Any]:
    """Return the figures of an engine."""
    engine.open_data()
    result: dict[str, Any] = {
        "evaluation_s": [seconds_of(engine.evaluate) for _ in range(_EVALUATIONS)],
        "without_score_s": seconds_of(lambda: predict(engine)),
    }
    if engine.device.type != "cpu":
        result |= trace_kernels(engine.device, lambda: predict(engine), 1, longest)
    return result


def predict(engine: TorchEngine) -> None:
    """Evaluate without the score."""
    engine.model.eval()
    with torch.no_grad(), engine.precision.autocast():
        engine.workload.predict(engine.model, engine.data.eval_batches())
    engine.model.train()


def seconds_of(work: Callable[[], object]) -> float:
    """Return the seconds of `work`, whose results are on the host when it returns."""
    started = time.perf_counter()
    work()
    return round(time.perf_counter() - started, 4)


def main() -> None:
    """Measure the run of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longest", type=int, default=8, help="kernels that are listed")
    options, overrides = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(build(configure(overrides, f"{folder}/run")), options.longest)
    print(json.dumps({"run": " ".join(overrides)} | result))


if __name__ == "__main__":
    main()

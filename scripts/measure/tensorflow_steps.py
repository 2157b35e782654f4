#!/usr/bin/env python
"""Measure training steps of `engine=tensorflow`, which `timetrial throughput` cannot, on one resident batch.

    python -P scripts/measure/tensorflow_steps.py [--steps N] workload=resnet50 engine=tensorflow KEY=VALUE...

Prints one JSON line: `ready_s` is the warm-up with tracing and compilation, `step_ms` and `samples_per_second` are
those of N steps in a row. A batch of random pixels is copied from the host in every step, as those of the loader are;
no image is decoded. Leave the machine idle.
"""

import argparse
import json
import tempfile
import time

import numpy as np

from timetrial.runner.config.compose import compose
from timetrial.runner.config.validation import resolve_classes, validate
from timetrial.runner.core.progress import no_progress
from timetrial.runner.hardware import devices
from timetrial.runner.launch.build_engine import build_engine
from timetrial.runner.launch.overrides import with_accelerator
from timetrial.runner.launch.staging import data_settings
from timetrial.runner.training.distributed import World

_WARM_UP_STEPS = 5


def main() -> None:
    """Measure the run of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    arguments, overrides = parser.parse_known_args()
    overrides = with_accelerator(overrides)
    with tempfile.TemporaryDirectory() as folder:
        config = validate(compose([f"run_dir={folder}/run", *overrides]).node)
        if config.engine.name != "tensorflow":
            parser.error("Add engine=tensorflow, or use scripts/measure/steps.py.")
        from timetrial.workloads.resnet50.tensorflow_engine import TensorFlowEngine, tf

        _, data_class = resolve_classes(config)
        data_class.prepare_data(data_settings(config, data_class), no_progress)
        engine = build_engine(config, World(), devices.select_device(config.accelerator.name, 0))
        assert isinstance(engine, TensorFlowEngine)
        started = time.perf_counter()
        engine.warm_up()
        ready = time.perf_counter() - started
        generator, data = np.random.default_rng(0), engine.data
        with tf.device("CPU:0"):
            pixels = generator.integers(256, size=(data.step_size, data.image_size, data.image_size, 3), dtype=np.uint8)
            batch = tf.constant(pixels), tf.constant(generator.integers(data.num_classes, size=data.step_size))
        for _ in range(_WARM_UP_STEPS):
            engine._train(*batch)
        engine.synchronize()
        started = time.perf_counter()
        for _ in range(arguments.steps):
            engine._train(*batch)
        engine.synchronize()
        seconds = (time.perf_counter() - started) / arguments.steps
    print(
        json.dumps(
            {
                "run": " ".join(overrides),
                "tensorflow": tf.__version__,
                "devices": [device.name for device in tf.config.get_visible_devices()],
                "ready_s": round(ready, 1),
                "step_ms": round(seconds * 1e3, 3),
                "samples_per_second": round(data.step_size / seconds, 1),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()

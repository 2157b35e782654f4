"""Fixtures of the workloads' tests."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def build_engine(compose):
    """Compose a configuration, prepare its data, build its engine and open the data: build_engine(*overrides).

    With `warm_up`, the engine is warmed up before.
    """
    import torch

    from timetrial.runner.config.validation import resolve_classes, validate
    from timetrial.runner.launch import staging
    from timetrial.runner.launch.build_engine import build_engine
    from timetrial.runner.training.distributed import World

    def build(*overrides, device="cpu", warm_up=False):
        config = validate(compose(*overrides))
        _, data_class = resolve_classes(config)
        data_class.prepare_data(staging.data_settings(config, data_class), lambda *progress: None)
        engine = build_engine(config, World(), torch.device(device))
        if warm_up:
            engine.warm_up()
        engine.open_data()
        return engine

    return build


@pytest.fixture
def build_on_accelerator(build_engine, tmp_path):
    """build_engine() for the accelerator of this machine, with data in a temporary folder."""
    from timetrial.runner.hardware import devices

    def build(*overrides, warm_up=False):
        name = devices.detect_accelerator()
        choices = [*overrides, f"accelerator={name}", f"data_dir={tmp_path}"]
        return build_engine(*choices, device=devices.select_device(name, 0), warm_up=warm_up)

    return build


@pytest.fixture
def random_boxes():
    """Return boxes (x0, y0, x1, y1) of many sizes, as float32: random_boxes(count, edge of the image in pixels)."""
    import numpy as np
    import torch

    def draw(count, edge=1300):
        random = np.random.default_rng(count)
        low = random.uniform(0, edge - 10, (count, 2))
        extent = np.exp(random.uniform(1.5, 6, (count, 2)))
        return torch.from_numpy(np.concatenate([low, np.minimum(low + extent, edge)], 1)).float()

    return draw


@pytest.fixture
def data_files_opened_before_run_start(tmp_path):
    """Run a configuration on one rank; return the data files opened between init_start and run_start.

    Data files are all files and folders below `data_dir` but manifests: the files whose names end with `manifest.json`.
    Fails if the run reads no data file after run_start, because the trace would then prove nothing, and if it imports
    a library that scores on the clock.

    data_files_opened_before_run_start(["workload=ssd", "data=dali"]) -> []
    """

    def run(overrides):
        trace, data_dir = tmp_path / "trace", tmp_path / "data"
        keys = {override.split("=")[0] for override in overrides}
        defaults = ["scale=embedded", "accelerator=cpu", "launcher=inline", "recipe.max_epochs=1"]
        defaults = [override for override in defaults if override.split("=")[0] not in keys]
        folders = [f"data_dir={data_dir}", f"runs_dir={tmp_path}/runs"]
        command = [sys.executable, "-P", Path(__file__).with_name("trace_file_opens.py"), trace]
        done = subprocess.run([*command, *defaults, *folders, *overrides], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        lines = trace.read_text().splitlines()
        before, after = lines.index("init_start"), lines.index("run_start")
        on_clock = {Path(line).parts for line in lines[after : lines.index("run_stop")]}
        libraries = {parts[parts.index("site-packages") + 1] for parts in on_clock if "site-packages" in parts}
        assert libraries.isdisjoint({"sacrebleu", "hotcoco", "pycocotools"})

        def data_files(opened):
            paths = [Path(line) for line in opened if data_dir in Path(line).parents]
            return [path for path in paths if not path.name.endswith("manifest.json")]

        assert data_files(lines[after:])
        return data_files(lines[before:after])

    return run

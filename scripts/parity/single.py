"""Train one side with one seed and write its curve to a file: the process of a run, started by `__main__.py`."""

import argparse
import datetime
import importlib
from dataclasses import replace
from pathlib import Path

import torch

from timetrial.runner.config.schema import Config
from timetrial.runner.launch.train import training_plan
from timetrial.runner.training.events import BlockEnded, EvalEnded, Event
from timetrial.runner.training.loop import train_to_target
from timetrial.scripts.measure.engines import build, configure

from . import curves
from .curves import Curve, Recorder


def train_timetrial(config: Config, recorder: Recorder) -> None:
    """Train to the recipe's last epoch, whatever the target."""
    losses: list[float] = []

    def observe(event: Event) -> None:
        if isinstance(event, BlockEnded):
            losses.append(event.loss)
        if isinstance(event, EvalEnded):
            recorder.evaluated(event.epoch, next(iter(event.quality.values())), losses[-1])

    train_to_target(build(config), replace(training_plan(config), target={}), [observe])


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="single", description=__doc__)
    parser.add_argument("workload")
    parser.add_argument("side", choices=curves.SIDES)
    parser.add_argument("seed", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--checkout", type=Path)
    options, overrides = parser.parse_known_args()
    workload = importlib.import_module(f".{options.workload}", __package__)
    settings = [*workload.DEFAULTS, *overrides, f"seed={options.seed}"]
    if prepare := getattr(workload, "prepare", None):
        settings += prepare(options.folder)
    config, recorder = configure(settings, str(options.folder / "run")), Recorder()
    if options.side == "timetrial":
        train_timetrial(config, recorder)
    else:
        workload.train_reference(config, options.checkout, options.seed, options.folder, recorder)
    curve = Curve(
        workload=options.workload,
        side=options.side,
        seed=options.seed,
        overrides=curves.of_recipe(overrides),
        device=torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        date=datetime.date.today().isoformat(),
        epochs=tuple(recorder.epochs),
        losses=tuple(recorder.losses),
        qualities=tuple(recorder.qualities),
    )
    (options.folder / "curve.json").write_text(curves.write_line(curve))


if __name__ == "__main__":
    main()

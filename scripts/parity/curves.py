"""Learning curves, their file, and the recipe that both sides train."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from timetrial.runner.config.schema import Config
from timetrial.runner.config.validation import build_settings, resolve_classes
from timetrial.runner.launch.train import training_plan

SIDES = ("reference", "timetrial")


@dataclass(frozen=True)
class Curve:
    """What one run learned: its quality after each evaluation, and the mean loss of the steps before it.

    `overrides` are the settings of the recipe that the caller changed. An epoch is 1-based.
    """

    workload: str
    side: str
    seed: int
    overrides: tuple[str, ...]
    device: str
    date: str
    epochs: tuple[int, ...]
    losses: tuple[float, ...]
    qualities: tuple[float, ...]

    @property
    def best(self) -> float:
        """The best quality of all evaluations."""
        return max(self.qualities)


@dataclass
class Recorder:
    """Collects the points of a curve while a run trains."""

    epochs: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    qualities: list[float] = field(default_factory=list)
    _steps: list[Tensor] = field(default_factory=list)

    def step(self, loss: Tensor | float) -> None:
        """Note the loss of a step, without waiting for the device."""
        self._steps.append(torch.as_tensor(loss).detach().float())

    def evaluated(self, epoch: int, quality: float, loss: float | None = None) -> None:
        """Note the quality after an epoch; without `loss`, it is the mean of the steps since the last call."""
        if loss is None:
            loss = float(torch.stack(self._steps).mean()) if self._steps else math.nan
        self._steps.clear()
        self.epochs.append(epoch)
        self.losses.append(loss)
        self.qualities.append(float(quality))


def recipe_settings(config: Config) -> tuple[Any, Any]:
    """Return the settings of the recipe's training and of its data, with their defaults."""
    workload_class, data_class = resolve_classes(config)
    return (
        build_settings(workload_class, config.recipe.training, "recipe.training"),
        build_settings(data_class, config.recipe.data, "recipe.data"),
    )


def eval_epochs(config: Config) -> list[int]:
    """Return the epochs after which the recipe evaluates, up to its last epoch."""
    plan, epochs = training_plan(config), [0]
    while epochs[-1] < plan.max_epochs:
        epochs.append(min(epochs[-1] + plan.epochs_until_eval(epochs[-1]), plan.max_epochs))
    return epochs[1:]


def of_recipe(overrides: Iterable[str]) -> tuple[str, ...]:
    """Return the overrides that change what is trained: not where the data are."""
    return tuple(override for override in overrides if not override.startswith("data_dir="))


def write_line(curve: Curve) -> str:
    """Return a curve as a line of JSON."""
    return json.dumps(asdict(curve)) + "\n"


def read(paths: Iterable[Path]) -> Iterator[Curve]:
    """Yield the curves in files of JSON lines."""
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            values = json.loads(line)
            yield Curve(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def parse_seeds(text: str) -> Sequence[int]:
    """Return the seeds of a list such as `1-5,9`."""
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds.extend(range(int(first), int(last or first) + 1))
    return seeds

"""Train steps with the `timetrial` that can be imported, for compare_versions.py, which asks over stdin.

    python version_under_test.py STEPS BLOCK BATCHES KEY=VALUE...

Answers each line with a line of JSON: at first that the engine is warm, then to `train` with the loss of each of STEPS
steps and digests of the state, and to `time` with the milliseconds of one of BLOCK steps on the first BATCHES batches.
It must work with older versions, so it finds functions by their names wherever they are defined.
"""

import hashlib
import importlib
import itertools
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import timetrial
from timetrial.runner.core.errors import Diverged
from timetrial.runner.core.progress import no_progress
from timetrial.runner.hardware import devices
from timetrial.runner.training.distributed import World

_OUT_OF_MEMORY = ("out of memory", "ALLOC_FAILED")  # of PyTorch, and of the libraries it calls


if os.environ.get("SAME_ALGORITHMS"):
    torch.backends.cudnn.benchmark_limit = 1  # the first that the heuristics name
    torch.backends.cudnn.deterministic = True
    devices.search_convolution_plans = lambda setting: None  # which the engine calls with its own
    torch.backends.cudnn.benchmark = True
if os.environ.get("DETERMINISTIC"):
    torch.use_deterministic_algorithms(True)


def find(name: str) -> Any:
    """Return the function `name` of the package, in whichever module of `runner` this version defines it."""
    root = Path(timetrial.__path__[0])
    [path] = [path for path in (root / "runner").rglob("*.py") if f"\ndef {name}(" in path.read_text()]
    return getattr(
        importlib.import_module(".".join(["timetrial", *path.relative_to(root).with_suffix("").parts])), name
    )


def build(overrides: list[str]) -> Any:
    """Return the engine of a run, warmed up and with its data open."""
    config = find("validate")(find("compose")(find("with_accelerator")(overrides)).node)
    if config.gpus != 1:
        raise SystemExit("Versions are compared on one device: leave gpus= out.")
    _, data_class = find("resolve_classes")(config)
    data_class.prepare_data(find("data_settings")(config, data_class), no_progress)
    engine = find("build_engine")(config, World(), devices.select_device(config.accelerator.name, 0))
    engine.warm_up()
    engine.open_data()
    return engine


class Training:
    """The training of one engine."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._train_step: Callable[[Any], object] = getattr(engine, "train_step", None) or engine._step
        self._kept: list[Any] = []

    def train(self, steps: int) -> dict[str, Any]:
        """Train the first steps, one by one."""
        results = (result for epoch in itertools.count(1) for result in self._engine.train_epoch(epoch))
        losses = [self._synchronize().hex() for _ in itertools.islice(results, steps)]
        results.close()
        state = self._engine.state_dict()
        return {"losses": losses, "weights": digest(state["model"]), "optimizer": digest(state["optimizer"])}

    def time(self, steps: int, batches: int) -> dict[str, Any]:
        """Train a block of steps on the first batches of the first epoch, each of which was trained before."""
        if not self._kept:
            self._kept = list(itertools.islice(self._engine.data.train_batches(1), batches))
            self._block(len(self._kept))
        return {"step_ms": self._block(steps) / steps * 1e3}

    def _block(self, steps: int) -> float:
        """Return the seconds of a block of steps."""
        self._synchronize()
        started = time.perf_counter()
        for batch in itertools.islice(itertools.cycle(self._kept), steps):
            self._train_step(batch)
        self._synchronize()
        return time.perf_counter() - started

    def _synchronize(self) -> float:
        """Wait for the device and return the mean loss since the last call."""
        try:
            return float(self._engine.synchronize().loss)
        except Diverged:
            return math.nan


def digest(state: Any) -> str:
    """Return a digest of all tensors in a state, in order; names do not count, so that they may be changed."""
    found = hashlib.sha256()
    for tensor in tensors(state):
        values = tensor.detach().cpu().contiguous()
        found.update(f"{values.dtype} {tuple(values.shape)}".encode())
        found.update(values.reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()


def tensors(state: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of nested dictionaries and lists."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict | list | tuple):
        for value in state.values() if isinstance(state, dict) else state:
            yield from tensors(value)


def main() -> None:
    """Answer each line of stdin."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    (steps, block, batches), overrides = map(int, sys.argv[1:4]), sys.argv[4:]

    def answer(value: dict[str, Any]) -> None:
        print(json.dumps(value), file=answers, flush=True)

    try:
        training = Training(engine := build(overrides))
        name = platform.processor() or "cpu" if engine.device.type == "cpu" else torch.cuda.get_device_name()
        answer({"device": name, "torch": torch.__version__})
        for line in sys.stdin:
            answer(training.train(steps) if line.strip() == "train" else training.time(block, batches))
    except Exception as error:
        if not any(text in str(error) for text in _OUT_OF_MEMORY):
            raise
        answer({"out_of_memory": True})


if __name__ == "__main__":
    main()

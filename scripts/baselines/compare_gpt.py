#!/usr/bin/env python
"""Train nanoGPT's model beside ours: the same batches, schedule, clipping and validation windows.

    python -P scripts/baselines/compare_gpt.py --peer FILE [--steps N] [--every N] [--seeds N] [--first-seed N]
        [--eager] KEY=VALUE...

FILE is nanoGPT's model.py. With gpus=N, the peer is wrapped in DistributedDataParallel. Prints a JSON line for each
code and seed: the validation losses after every N steps, the mean training losses between them, and the seconds and
tokens a second of training, without evaluations, and without the first steps, in which the peer is compiled. --eager
does not compile the peer. Leave the machine idle.
"""

import argparse
import importlib.util
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
import torch._dynamo
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from timetrial.runner.config.compose import compose
from timetrial.runner.config.validation import validate
from timetrial.runner.hardware import devices
from timetrial.runner.training.torch_engine import TorchEngine
from timetrial.runner.training.workload import Batch
from timetrial.scripts.measure.engines import build, joined_ranks

_UNTIMED_STEPS = 10


class Peer:
    """nanoGPT's model and optimizer at the settings of our run, on the batches of our engine."""

    def __init__(self, engine: TorchEngine, module: ModuleType, seed: int, *, compiled: bool) -> None:
        self._engine, settings, data = engine, engine.workload.settings, engine.data  # type: ignore[attr-defined]
        torch.manual_seed(seed)
        config = module.GPTConfig(
            block_size=data.context,  # type: ignore[attr-defined]
            vocab_size=data.padded_vocab_size,  # type: ignore[attr-defined]
            n_layer=settings.num_layers,
            n_head=settings.num_heads,
            n_embd=settings.hidden_size,
            dropout=settings.dropout,
            bias=settings.bias,
        )
        model: nn.Module = module.GPT(config).to(engine.device)
        betas = (settings.beta_1, settings.beta_2)
        rate, decay = settings.learning_rate, settings.weight_decay
        self._optimizer = model.configure_optimizers(decay, rate, betas, engine.device.type)  # type: ignore[operator]
        if compiled:  # anew, and whatever our engine did before
            torch._dynamo.reset()
            torch.compiler.set_stance("default")
        self._ranks = engine.world.size
        if self._ranks > 1:
            ids = None if engine.device.type == "cpu" else [engine.device.index]
            model = DistributedDataParallel(
                model, ids, process_group=engine.world.device_group, gradient_as_bucket_view=True
            )
        self._wrapped, self._model = model, torch.compile(model) if compiled else model
        self._updates = self._steps = 0  # of the schedule, and since the last mean loss
        self._loss_sum = torch.zeros((), device=engine.device)

    def step(self, micro_batches: Sequence[Batch]) -> None:
        """Update the weights once."""
        rate = self._engine.workload.settings.learning_rate  # type: ignore[attr-defined]
        for group in self._optimizer.param_groups:
            group["lr"] = rate * self._engine.workload.lr_factor(self._updates)  # type: ignore[attr-defined]
        for number, batch in enumerate(micro_batches, 1):
            if self._ranks > 1:
                self._wrapped.require_backward_grad_sync = number == len(micro_batches)  # type: ignore[assignment]
            loss = self._mean_loss(batch) / len(micro_batches)
            loss.backward()
            self._loss_sum += loss.detach() / self._ranks
        if self._engine.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self._model.parameters(), self._engine.max_grad_norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._updates += 1
        self._steps += 1

    def evaluate(self) -> float:
        """Return the mean loss of the validation windows in nats a token."""
        self._model.eval()
        with torch.no_grad():
            pairs = [(float(self._mean_loss(batch)), len(batch.inputs)) for batch in self._engine.data.eval_batches()]
        self._model.train()
        world = self._engine.world
        pairs = world.broadcast(list(itertools.chain.from_iterable(world.gather(pairs))))
        return sum(loss * windows for loss, windows in pairs) / sum(windows for _, windows in pairs)

    def mean_loss(self) -> float:
        """Return the mean loss of the steps since the last call."""
        loss = float(self._engine.world.all_reduce_sum(self._loss_sum.clone())) / self._steps
        self._loss_sum.zero_()
        self._steps = 0
        return loss

    def _mean_loss(self, batch: Batch) -> Tensor:
        tokens = batch.inputs.long()
        with self._engine.precision.autocast():
            loss: Tensor = self._model(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())[1]
        return loss


class Ours:
    """Our engine behind the methods of `Peer`."""

    def __init__(self, engine: TorchEngine) -> None:
        self._engine = engine

    def step(self, micro_batches: Sequence[Batch]) -> None:
        """Update the weights once."""
        self._engine.train_step(micro_batches)

    def evaluate(self) -> float:
        """Return the mean loss of the validation windows in nats a token."""
        result = self._engine.evaluate()
        assert result is not None
        return result.quality["log_perplexity"]

    def mean_loss(self) -> float:
        """Return the mean loss of the steps since the last call."""
        return self._engine.synchronize().loss


def train(code: Ours | Peer, engine: TorchEngine, steps: int, every: int) -> dict[str, Any]:
    """Train for `steps` updates and return losses and speed."""
    engine.open_data()
    batches = itertools.chain.from_iterable(engine.data.train_batches(epoch) for epoch in itertools.count(1))
    seconds, timed_steps, tokens = 0.0, 0, 0
    training, validation = [], []
    for first in range(0, steps, every):
        untimed = _UNTIMED_STEPS if not first else 0
        for batch in itertools.islice(batches, untimed):
            code.step(batch)
        devices.synchronize(engine.device)
        started = time.perf_counter()
        for batch in itertools.islice(batches, min(every, steps - first) - untimed):
            code.step(batch)
            timed_steps, tokens = timed_steps + 1, tokens + batch[0].global_tokens
        devices.synchronize(engine.device)
        seconds += time.perf_counter() - started
        training.append(round(code.mean_loss(), 4))
        validation.append(round(code.evaluate(), 4))
    return {
        "training": training,
        "validation": validation,
        "seconds": round(seconds, 3),
        "step_ms": round(seconds / timed_steps * 1e3, 3),
        "tokens_per_s": round(tokens / seconds),
    }


def load_module(path: str) -> ModuleType:
    """Return the Python file at `path` as a module."""
    spec = importlib.util.spec_from_file_location("peer_model", path)
    if spec is None or spec.loader is None:
        sys.exit(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules["peer_model"] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Compare at the run of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--steps", type=int, default=1750)
    parser.add_argument("--every", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--eager", action="store_true")
    arguments, overrides = parser.parse_known_args()
    if arguments.every <= _UNTIMED_STEPS:
        parser.error(f"--every must be more than {_UNTIMED_STEPS}, the steps that are not timed.")
    module = load_module(arguments.peer)
    wrappers: dict[str, Callable[[TorchEngine, int], Ours | Peer]] = {
        "timetrial": lambda engine, seed: Ours(engine),
        "peer": lambda engine, seed: Peer(engine, module, seed, compiled=not arguments.eager),
    }
    gpus = validate(compose(["workload=gpt", *overrides]).node).gpus
    with joined_ranks(gpus) as world:
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            for name, wrap in wrappers.items():
                with tempfile.TemporaryDirectory() as folder:
                    chosen = [f"run_dir={folder}/run", "workload=gpt", *overrides, f"seed={seed}"]
                    engine = build(validate(compose(chosen).node), world)
                    result = train(wrap(engine, seed), engine, arguments.steps, arguments.every)
                if world.rank == 0:
                    print(json.dumps({"code": name, "gpus": gpus, "seed": seed, **result}), flush=True)


if __name__ == "__main__":
    main()

"""The PyTorch engine: ranks, precision, accumulation, clipping, compilation, evaluation, divergence."""

import copy
import inspect
import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..core.errors import Diverged
from ..hardware import devices
from ..hardware.precision import Precision
from . import seeds
from .distributed import World
from .engine import EvalResult, StepResult, TrainingStats
from .workload import Batch, Data, TextPredictions, Workload

# What `engine.compile` may say beyond torch.compile's own modes.
_COMPILERS: dict[str, dict[str, Any]] = {"tuned": {"options": {"coordinate_descent_tuning": True}}}


class TorchEngine:
    """Trains a `Workload` on `Data` over all ranks of `world`; one instance a rank."""

    def __init__(
        self,
        workload: Workload,
        data: Data,
        *,
        global_batch_size: int,
        accumulation: int,
        precision: Precision,
        max_grad_norm: float | None = None,
        compile_mode: str | None = None,
        seeds_of_run: seeds.Seeds,
        world: World,
    ) -> None:
        self.workload, self.data, self.world, self.precision = workload, data, world, precision
        self.global_batch_size, self.accumulation, self.max_grad_norm = global_batch_size, accumulation, max_grad_norm
        self.seeds, self.device = seeds_of_run, precision.device
        precision.apply()
        seeds.seed_everything(seeds_of_run.initialization)
        self.unwrapped_model = workload.build_model().to(self.device)
        self.compiled = compile_mode is not None
        if compile_mode:
            self.unwrapped_model.compile(dynamic=False, **_COMPILERS.get(compile_mode, {"mode": compile_mode}))
        self.model = self._wrap(self.unwrapped_model)
        self.optimizer, self.lr_scheduler = workload.build_optimizer(self.unwrapped_model, data.steps_per_epoch)
        self.scaler = precision.scaler()
        self._forget_losses()
        self._waiting = devices.Stopwatch(self.device)
        self._position = (0, 0)  # the epoch last trained in, and the steps made in it
        seeds.seed_everything(seeds.derive_seed(seeds_of_run.dropout, world.rank))

    def mlperf_params(self) -> dict[str, Any]:
        """Sizes and hyperparameters under their MLPerf names."""
        return {
            "global_batch_size": self.global_batch_size,
            "gradient_accumulation_steps": self.accumulation,
            **self.workload.mlperf_params(),
            **self.data.mlperf_params(),
            "train_samples": self.data.train_size,
            "eval_samples": self.data.eval_size,
            "timetrial_engine": "torch",
        }

    def warm_up(self, steps: int = 3) -> None:
        """Compiles and allocates on synthetic batches, then puts the state back as it was: nothing is learned.

        Where the compiler records kernels to replay them, it does so in the second of `steps` passes.
        """
        before = copy.deepcopy(self.state_dict())
        batches = self.data.synthetic_train_batches()
        # Ranks compile at different speeds: the first step waits for nobody, so that no collective times out.
        if self.world.size > 1:
            with self._silent():
                self._backward(batches[0], batches[0].weight or 1.0)
            self.world.barrier()
        for _ in range(steps):
            self._step(batches)
        self.unwrapped_model.eval()
        with torch.no_grad(), self.precision.autocast():
            self.workload.predict(self.unwrapped_model, [self.data.synthetic_eval_batch()] * steps)
        self.unwrapped_model.train()
        self.load_state_dict(before)
        self.optimizer.zero_grad(set_to_none=True)
        if self.compiled:  # an epoch's last batch is smaller than the others: not worth a compilation on the clock
            torch.compiler.set_stance("eager_on_recompile")

    def train_epoch(self, number: int) -> Iterator[StepResult]:
        """Trains the 1-based epoch `number`; after a resume in its middle, only the steps that are left."""
        epoch, made = self._position
        if number < epoch:  # resumed in a later epoch of this block
            return
        made = made if epoch == number else 0
        self._waiting.start()
        for micro_batches in itertools.islice(self.data.train_batches(number), made, None):
            self._waiting.stop()
            samples = self._step(micro_batches)
            made += 1
            self._position = (number, made)
            yield StepResult(samples, micro_batches[0].global_tokens)
            self._waiting.start()

    def synchronize(self) -> TrainingStats:
        """Waits for all devices; sums up since the last call (waiting is this rank's), or raises `Diverged`."""
        loss = float(self.world.all_reduce_sum(self._loss_sum).item()) / max(1, self._steps)
        self._forget_losses()
        if not math.isfinite(loss):
            raise Diverged(
                "The training loss is no longer a finite number: lower the learning rate, or use precision=fp32."
            )
        return TrainingStats(loss, self._waiting.seconds())

    def evaluate(self) -> EvalResult:
        """Evaluate the unwrapped model on the whole evaluation set."""
        self._average_buffers()
        self.unwrapped_model.eval()
        with torch.no_grad(), self.precision.autocast():
            part = self.workload.predict(self.unwrapped_model, self.data.eval_batches())
        self.unwrapped_model.train()
        parts = self.world.gather(part)
        quality = self.workload.score(parts) if self.world.rank == 0 else None
        tokens = part.tokens if isinstance(part, TextPredictions) else 0
        return EvalResult(dict(self.world.broadcast(quality)), tokens)

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, schedule, loss scale, position in the data, and every rank's own: generators and loss."""
        own = (torch.get_rng_state(), devices.random_state(self.device), float(self._loss_sum))
        return {
            "model": self.unwrapped_model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.lr_scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "position": self._position,
            "steps": self._steps,
            "ranks": self.world.broadcast(self.world.gather(own)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up a `state()` of the same number of ranks."""
        self.unwrapped_model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.lr_scheduler.load_state_dict(state["schedule"])
        self.scaler.load_state_dict(state["scaler"])
        self._position = tuple(state["position"])
        self._steps = state["steps"]
        cpu, device, loss = state["ranks"][self.world.rank]
        self._loss_sum.fill_(loss)
        torch.set_rng_state(cpu)
        devices.set_random_state(self.device, device)

    def _wrap(self, model: nn.Module) -> Any:
        if self.world.size == 1:
            return model
        ids = None if self.device.type == "cpu" else [self.device.index]
        # Buffers are averaged before evaluation, as the references do, so they are not broadcast at every step.
        known = inspect.signature(DistributedDataParallel).parameters
        no_broadcast = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # torch 2.14
        return DistributedDataParallel(
            model,
            device_ids=ids,
            process_group=self.world.gradients,
            gradient_as_bucket_view=True,
            **{no_broadcast: False},  # type: ignore[arg-type]
        )

    def _step(self, micro_batches: Sequence[Batch]) -> int:
        """One update; returns the samples of the global batch. Nothing here waits for the device."""
        total = self._total_weight(micro_batches)
        self.optimizer.zero_grad(set_to_none=True)
        for batch in micro_batches[:-1]:
            with self._silent():
                self._backward(batch, total)
        self._backward(micro_batches[-1], total)
        if self.max_grad_norm is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.unwrapped_model.parameters(), self.max_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.lr_scheduler.step()
        self._steps += 1
        return micro_batches[0].global_samples

    def _backward(self, batch: Batch, total: float | Tensor) -> None:
        with self.precision.autocast():
            loss = self.workload.compute_loss(self.model, batch) / total
        self._loss_sum += loss.detach()
        # DDP averages over the ranks; the losses are shares of one sum, so the average is multiplied back.
        self.scaler.scale(loss * self.world.size).backward()

    def _total_weight(self, micro_batches: Sequence[Batch]) -> float | Tensor:
        known = micro_batches[0].global_weight
        if known is not None:
            return known
        mine = sum(batch.weight for batch in micro_batches)
        return self.world.all_reduce_sum(torch.tensor(mine, device=self.device, dtype=torch.float32))

    def _forget_losses(self) -> None:
        self._loss_sum, self._steps = torch.zeros((), device=self.device), 0

    def _silent(self) -> AbstractContextManager[object]:
        return self.model.no_sync() if self.world.size > 1 else nullcontext()

    def _average_buffers(self) -> None:
        if self.world.size == 1:
            return
        for buffer in self.unwrapped_model.buffers():
            if buffer.is_floating_point():
                dist.all_reduce(buffer, group=self.world.gradients)
                buffer /= self.world.size

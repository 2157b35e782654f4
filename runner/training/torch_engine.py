"""The PyTorch engine: ranks, precision, accumulation, clipping, compilation, evaluation, divergence."""

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..config import step_execution
from ..core.errors import Diverged
from ..hardware import device_timing, devices
from ..hardware.device_graphs import supports_graphs
from ..hardware.precision import Precision
from . import seeds
from .captured_steps import CapturedSteps, load_optimizer_state
from .distributed import World
from .engine import EvalResult, StepResult, TrainingStats
from .gradient_reduction import GradientReduction
from .row_shards import RowShards
from .run_ahead import RunAhead
from .workload import Batch, Data, TextPredictions, Workload

# Values of `engine.compile` beyond the modes of torch.compile.
_COMPILE_OPTIONS: dict[str, dict[str, Any]] = {"tuned": {"options": {"coordinate_descent_tuning": True}}}


class _EvaluationStopped(Exception):
    """A stop was requested within an evaluation."""


def _until_stopped(batches: Iterable[Batch], stop_requested: Callable[[], bool]) -> Iterator[Batch]:
    for batch in batches:
        if stop_requested():
            raise _EvaluationStopped
        yield batch


class TorchEngine:
    """Train a `Workload` on `Data` over all ranks of `world`; one instance per rank."""

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
        capture: bool = True,
        run_seeds: seeds.Seeds,
        world: World,
    ) -> None:
        self.workload, self.data, self.world, self.precision = workload, data, world, precision
        self.global_batch_size, self.accumulation, self.max_grad_norm = global_batch_size, accumulation, max_grad_norm
        self.seeds, self.device = run_seeds, precision.device
        precision.apply()
        seeds.seed_everything(run_seeds.initialization)
        self.model = workload.build_model().to(self.device)
        self.compiled = compile_mode is not None
        if compile_mode:
            self.model.compile(dynamic=False, **_COMPILE_OPTIONS.get(compile_mode, {"mode": compile_mode}))
        self.optimizer, self.lr_scheduler = workload.build_optimizer(self.model, data.steps_per_epoch)
        self.scaler = precision.grad_scaler()
        self._shards: RowShards | None = None
        self._reduction: GradientReduction | None = None
        if world.size > 1:
            self._distribute_parameters()
        self._loss_sum, self._steps = torch.zeros((), device=self.device), 0
        self._captured_steps: CapturedSteps | None = None
        can_capture = workload.capturable and supports_graphs(self.device)
        if capture and can_capture and step_execution.can_capture(precision.name, compile_mode):
            self._captured_steps = CapturedSteps(self.optimizer, self.device)
        self._run_ahead = RunAhead(self.device, world.hang_timeout_seconds)
        self._data_wait = device_timing.DeviceTimer(self.device)
        self._position = (0, 0)  # epoch last trained in, and steps completed in it
        seeds.seed_everything(seeds.derive_seed(run_seeds.dropout, world.rank))

    def mlperf_params(self) -> dict[str, Any]:
        """Return sizes and hyperparameters under their MLPerf names."""
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
        """Compile, allocate and capture on synthetic batches, then restore the state: nothing is learned.

        Compilers that record device graphs do so in the second of `steps` passes.
        """
        self.data.warm_up()
        initial_state = copy.deepcopy(self.state_dict())
        if self.compiled:  # an earlier engine of this process has changed it
            torch.compiler.set_stance("default")
        for number, batches in enumerate(self.data.synthetic_train_steps()):
            # Ranks compile at different speeds: without collectives in the first step, none can time out.
            if self.world.size > 1 and not number:
                with self.reduction_paused():
                    self._backward(batches[0], batches[0].weight or 1.0)
                self.world.barrier()
            for _ in range(steps):
                self._step(batches)
            if self._captured_steps is not None:
                self._captured_steps.capture(self._update, batches)
        self.model.eval()
        self._warm_up_evaluation(self.data.synthetic_eval_batches(), steps if self.compiled else 1)
        if self.compiled:  # the last batch of an evaluation is smaller: not worth a compilation
            torch.compiler.set_stance("eager_on_recompile")
        self._warm_up_evaluation(self.data.synthetic_last_eval_batches(), 1)
        self.model.train()
        self.load_state_dict(initial_state)
        self.optimizer.zero_grad(set_to_none=True)

    def _warm_up_evaluation(self, batches: Iterable[Batch], passes: int) -> None:
        with torch.no_grad(), self.precision.autocast():
            for batch in batches:
                self.workload.predict(self.model, [batch] * passes)

    def open_data(self) -> None:
        """Wait for all ranks, so that none reads data before the clock of rank 0 runs, then open the data."""
        self.world.barrier()
        self.data.open()

    def train_epoch(self, epoch: int) -> Iterator[StepResult]:
        """Train the 1-based `epoch`; after a resume in its middle, only the remaining steps."""
        last_epoch, completed = self._position
        if epoch < last_epoch:  # resumed in a later epoch of this block
            return
        completed = completed if epoch == last_epoch else 0
        self._data_wait.start()
        for micro_batches in itertools.islice(self.data.train_batches(epoch), completed, None):
            self._data_wait.stop()
            samples = self._step(micro_batches)
            completed += 1
            self._position = (epoch, completed)
            yield StepResult(samples, micro_batches[0].global_tokens)
            self._data_wait.start()

    def synchronize(self) -> TrainingStats:
        """Wait for all devices and return the statistics since the last call; raise `Diverged` for NaN."""
        self._run_ahead.wait()
        loss = float(self.world.all_reduce_sum(self._loss_sum).item()) / max(1, self._steps)
        self._reset_loss()
        if not math.isfinite(loss):
            raise Diverged(
                "The training loss is no longer a finite number: lower the learning rate, or use precision=fp32."
            )
        return TrainingStats(loss, self._data_wait.pop_seconds())

    def evaluate(self, stop_requested: Callable[[], bool] = lambda: False) -> EvalResult | None:
        """Evaluate the model on the whole evaluation set, unless a rank's `stop_requested` ends it early."""
        self._average_buffers()
        self.model.eval()
        predictions, stopped = None, False
        try:
            with torch.no_grad(), self.precision.autocast():
                batches = _until_stopped(self.data.eval_batches(), stop_requested)
                predictions = self.workload.predict(self.model, batches)
        except _EvaluationStopped:
            stopped = True
        self.model.train()
        self.world.wait_for_evaluation()
        if self.world.any(stopped):
            return None
        parts = self.world.gather(predictions)
        quality = self.workload.score(parts) if self.world.rank == 0 else None
        tokens = predictions.tokens if isinstance(predictions, TextPredictions) else 0
        return EvalResult(dict(self.world.broadcast(quality)), tokens)

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizer, schedule, loss scale, data position, and the generators and loss of each rank.

        All ranks call it at the same time.
        """
        model, optimizer = self.model.state_dict(), self.optimizer.state_dict()
        if self._shards is not None:
            model, optimizer = self._shards.gather(model, optimizer)
        rank_state = (torch.get_rng_state(), devices.get_rng_state(self.device), float(self._loss_sum))
        return {
            "model": model,
            "optimizer": optimizer,
            "schedule": self.lr_scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "position": self._position,
            "steps": self._steps,
            "ranks": self.world.broadcast(self.world.gather(rank_state)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict()` of the same number of ranks."""
        model, optimizer = state["model"], state["optimizer"]
        if self._shards is not None:
            model, optimizer = self._shards.own(model, optimizer)
        self.model.load_state_dict(model)
        if self._captured_steps is None or not self.optimizer.state:
            self.optimizer.load_state_dict(optimizer)
        else:
            load_optimizer_state(self.optimizer, optimizer)
        self.lr_scheduler.load_state_dict(state["schedule"])
        self.scaler.load_state_dict(state["scaler"])
        self._position = tuple(state["position"])
        self._steps = state["steps"]
        cpu, device, loss = state["ranks"][self.world.rank]
        self._loss_sum.fill_(loss)
        torch.set_rng_state(cpu)
        devices.set_rng_state(self.device, device)

    def reduction_paused(self) -> AbstractContextManager[object]:
        """Return a context in which gradients accumulate on this rank without being reduced."""
        return nullcontext() if self._reduction is None else self._reduction.paused()

    def _distribute_parameters(self) -> None:
        """Start from equal weights on all ranks and reduce their gradients, except for rows that only one rank has."""
        sharded = self.data.sharded_rows()
        if sharded:
            self._shards = RowShards(sharded, self.model, self.optimizer, self.world)
        self._replicated = [value for name, value in self.model.named_parameters() if name not in sharded]
        self._reduction = GradientReduction(self._replicated, self.world)
        # Initial weights may differ in rounding if the ranks have CPUs of different kinds.
        for tensor in (*self._replicated, *self.model.buffers()):
            dist.broadcast(tensor.detach(), src=0, group=self.world.device_group)

    def _step(self, micro_batches: Sequence[Batch]) -> int:
        """Update the weights once and return the samples of the global batch. Nothing here waits for the device."""
        total_weight = self._total_weight(micro_batches)
        if self._captured_steps is None or not self._captured_steps.replay(micro_batches, total_weight):
            self._update(micro_batches, total_weight)
        elif self.world.size > 1:
            self._run_ahead.step_submitted()
        self.lr_scheduler.step()
        self._steps += 1
        return micro_batches[0].global_samples

    def _update(self, micro_batches: Sequence[Batch], total_weight: float | Tensor) -> None:
        """Compute the gradients and update the weights."""
        self.optimizer.zero_grad(set_to_none=True)
        for batch in micro_batches[:-1]:
            with self.reduction_paused():
                self._backward(batch, total_weight)
        self._backward(micro_batches[-1], total_weight)
        if self._reduction is not None:
            self._reduction.finish()
        if self._shards is not None and self.scaler.is_enabled():
            # GradScaler skips the update on all ranks if it must on one.
            gradient = self._replicated[0].grad
            assert gradient is not None
            gradient += self._shards.nan_unless_finite()
        if self.max_grad_norm is not None:
            self.scaler.unscale_(self.optimizer)
            self._clip_gradients(self.max_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _clip_gradients(self, max_norm: float) -> None:
        """Scale all gradients down to a total norm of `max_norm`."""
        if self._shards is None:
            nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)
            return
        replicated = nn.utils.get_total_norm([value.grad for value in self._replicated if value.grad is not None])
        total = (replicated.square() + self._shards.square_sum()).sqrt()
        nn.utils.clip_grads_with_norm_(self.model.parameters(), max_norm, total)

    def _backward(self, batch: Batch, total_weight: float | Tensor) -> None:
        with self.precision.autocast():
            loss = self.workload.compute_loss(self.model, batch) / total_weight
        self._loss_sum += loss.detach()
        self.scaler.scale(loss).backward()

    def _total_weight(self, micro_batches: Sequence[Batch]) -> float | Tensor:
        global_weight = micro_batches[0].global_weight
        if global_weight is not None:
            return global_weight
        rank_weight = sum(batch.weight for batch in micro_batches)
        return self.world.all_reduce_sum(torch.tensor(rank_weight, device=self.device, dtype=torch.float32))

    def _reset_loss(self) -> None:
        self._loss_sum.zero_()
        self._steps = 0

    def _average_buffers(self) -> None:
        if self.world.size == 1:
            return
        for buffer in self.model.buffers():
            if buffer.is_floating_point():
                dist.all_reduce(buffer, group=self.world.device_group)
                buffer /= self.world.size

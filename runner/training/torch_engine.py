"""The PyTorch engine: trains a `Workload` on `Data`, one instance per rank.

train_step                                  the same on every rank
    total weight                            known to the data, or else summed over the ranks
    a captured step of this shape           one device graph of all of `_update` (captured_steps.py), or else
    _update
        zero the gradients
        forward and backward ...            of each micro-batch; over slow links the last one sums over the ranks
        finish                              sums over the ranks what is left, and waits for it (replication.py)
        clip                                unscaled gradients, by the norm over all parameters
        optimizer
    learning rate schedule

With l[r, m] the summed loss and w[r, m] the weight of micro-batch m on rank r, the loss of a step is the mean over the
global batch:

    L = sum over r and m of l[r, m] / W,    W = sum over r and m of w[r, m]

Each backward pass computes the gradient of its l[r, m] / W. Gradients are therefore summed over micro-batches and
ranks, never averaged, and the sum is the gradient of L for any number of ranks and micro-batches, and for unequal
weights.
"""

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..config import step_execution
from ..core import execution_paths
from ..core.errors import Diverged
from ..hardware import device_timing, devices
from ..hardware.device_graphs import supports_graphs
from ..hardware.precision import Precision
from . import eager, seeds
from .captured_steps import CapturedSteps, load_optimizer_state
from .distributed import World
from .engine import EvalResult, StepResult, TrainingStats
from .replication import replicate
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
        cudnn_benchmark: bool = True,
        run_seeds: seeds.Seeds,
        world: World,
    ) -> None:
        self.workload, self.data, self.world, self.precision = workload, data, world, precision
        self.global_batch_size, self.accumulation, self.max_grad_norm = global_batch_size, accumulation, max_grad_norm
        self.seeds, self.device = run_seeds, precision.device
        precision.apply()
        devices.search_convolution_plans(cudnn_benchmark)
        seeds.seed_everything(run_seeds.initialization)
        self.model = workload.build_model().to(self.device)
        self.compiled = compile_mode is not None
        self._compiler_captures = not step_execution.can_capture(compile_mode)
        execution_paths.take("model", "compiled" if self.compiled else "not compiled")
        execution_paths.fall_back("steps", "not captured")
        if compile_mode is None:
            eager.leave_compiler_unloaded()
        else:
            eager.use_compiler()
            self.model.compile(dynamic=False, **_COMPILE_OPTIONS.get(compile_mode, {"mode": compile_mode}))
        self.optimizer, self.lr_scheduler = workload.build_optimizer(self.model, data.steps_per_epoch)
        self.scaler = precision.grad_scaler()
        self.replication = replicate(
            self.model, self.optimizer, data.sharded_rows(), world, skips_nonfinite=self.scaler.is_enabled()
        )
        self._loss_sum, self._steps = torch.zeros((), device=self.device), 0
        may_capture = capture and workload.capturable and not self._compiler_captures
        captures = may_capture and supports_graphs(self.device) and self._updates_on_device()
        self._captured_steps = CapturedSteps(self.optimizer, self.device) if captures else None
        self._run_ahead = RunAhead(self.device, world.hang_timeout_seconds)
        self._data_wait = device_timing.DeviceTimer(self.device)
        self._position = (0, 0)  # epoch last trained in, and steps completed in it
        seeds.seed_everything(seeds.derive_seed(run_seeds.dropout, world.rank))

    def _updates_on_device(self) -> bool:
        """Whether the host decides nothing: of a loss scaler's updates, only fused optimizers skip on the device."""
        return not self.scaler.is_enabled() or getattr(self.optimizer, "_step_supports_amp_scaling", False)

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

        Compilers that record device graphs do so in the second of `steps` passes. A capture makes eager passes itself.
        """
        initial_state = copy.deepcopy(self.state_dict())
        if self.compiled:  # an earlier engine of this process has changed it
            torch.compiler.set_stance("default")
        for number, micro_batches in enumerate(self.data.warm_up_steps()):
            # Ranks compile at different speeds: without collectives in the first step, none can time out.
            if self.world.size > 1 and not number:
                with self.replication.paused():
                    self._backward(micro_batches[0], micro_batches[0].weight or 1.0)
                self.world.barrier()
            if self._captured_steps is not None:
                self._captured_steps.capture(self._update, micro_batches)
            for _ in range(steps if self._captured_steps is None else 1):  # a first replay uploads the graph
                self.train_step(micro_batches)
        self._warm_up_evaluation(steps if self._compiler_captures else 1)
        self.load_state_dict(initial_state)
        self.optimizer.zero_grad(set_to_none=True)

    def _warm_up_evaluation(self, passes: int) -> None:
        with self._evaluation_mode():
            for batch in self.data.warm_up_eval_batches():
                if self.compiled and batch.is_partial:
                    torch.compiler.set_stance("eager_on_recompile")
                self.workload.predict(self.model, [batch] * (1 if batch.is_partial else passes))
        if self.compiled:
            torch.compiler.set_stance("eager_on_recompile")

    @contextmanager
    def _evaluation_mode(self) -> Iterator[None]:
        self.model.eval()
        try:
            with torch.no_grad(), self.precision.autocast():
                yield
        finally:
            self.model.train()

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
        batches = itertools.islice(self.data.train_batches(epoch), completed, None)
        for micro_batches in batches if self.data.makes_batches_on_device else self._data_wait.timed(batches):
            result = self.train_step(micro_batches)
            completed += 1
            self._position = (epoch, completed)
            yield result

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
        self.replication.average_statistics()
        predictions, stopped = None, False
        try:
            with self._evaluation_mode():
                batches = _until_stopped(self.data.eval_batches(), stop_requested)
                predictions = self.workload.predict(self.model, batches)
        except _EvaluationStopped:
            stopped = True
        self.world.wait_for_evaluation()
        if self.world.any(stopped):
            return None
        parts = self.world.gather(predictions)
        quality = self.workload.score(parts) if self.world.rank == 0 else None
        tokens = predictions.tokens if isinstance(predictions, TextPredictions) else 0
        return EvalResult(dict(self.world.broadcast(quality)), tokens)

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizer, schedule, loss scale, data position, and each rank's private state.

        The private state is a rank's generators, loss and running statistics. All ranks call it at the same time.
        """
        model, optimizer = self.replication.gather_rows(self.model.state_dict(), self.optimizer.state_dict())
        generators = (torch.get_rng_state(), devices.get_rng_state(self.device))
        rank_state = (*generators, float(self._loss_sum), self.replication.statistics())
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
        model, optimizer = self.replication.select_rows(state["model"], state["optimizer"])
        self.model.load_state_dict(model)
        if self._captured_steps is None or not self.optimizer.state:
            self.optimizer.load_state_dict(optimizer)
        else:
            load_optimizer_state(self.optimizer, optimizer)
        self.lr_scheduler.load_state_dict(state["schedule"])
        self.scaler.load_state_dict(state["scaler"])
        self._position = tuple(state["position"])
        self._steps = state["steps"]
        cpu, device, loss, statistics = state["ranks"][self.world.rank]
        self._loss_sum.fill_(loss)
        self.replication.load_statistics(statistics)
        torch.set_rng_state(cpu)
        devices.set_rng_state(self.device, device)

    def train_step(self, micro_batches: Sequence[Batch]) -> StepResult:
        """Update the weights once, by this rank's micro-batches of a global batch, without waiting for the device.

        With captured steps on several ranks, it waits for an earlier step once the host is far ahead (run_ahead.py).
        """
        total_weight = self._total_weight(micro_batches)
        if self._captured_steps is None or not self._captured_steps.replay(micro_batches, total_weight):
            self._update(micro_batches, total_weight)
        elif self.world.size > 1:
            self._run_ahead.step_submitted()
        self.lr_scheduler.step()
        self._steps += 1
        return StepResult(micro_batches[0].global_samples, micro_batches[0].global_tokens)

    def _update(self, micro_batches: Sequence[Batch], total_weight: float | Tensor) -> None:
        """Compute the gradients and update the weights."""
        self.optimizer.zero_grad(set_to_none=True)
        with self.replication.paused():
            for batch in micro_batches[:-1]:
                self._backward(batch, total_weight)
        self._backward(micro_batches[-1], total_weight)
        self.replication.finish()
        if self.max_grad_norm is not None:
            self.scaler.unscale_(self.optimizer)
            norm = self.replication.total_norm()
            nn.utils.clip_grads_with_norm_(self.model.parameters(), self.max_grad_norm, norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()

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

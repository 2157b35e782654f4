"""The seam between the PyTorch engine and a task: what a task author writes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


@dataclass
class Batch:
    """A micro-batch of one rank, on its device.

    `loss` of the workload is a sum over `weight`. `global_samples`, `global_weight` and `global_tokens` are of the
    whole global batch, over all ranks and micro-batches; without a `global_weight` the engine adds the weights up.
    Tokens are those of text, source and target, without padding.
    """

    inputs: Any
    weight: float
    global_samples: int
    global_weight: float | None = None
    global_tokens: int = 0


@dataclass(frozen=True)
class TextPredictions:
    """The predictions of one rank for text, and the source and output tokens they took, without padding."""

    predictions: Any
    tokens: int


@dataclass(frozen=True)
class BatchSharding:
    """Which part of every global batch a rank trains: rank `rank` of `ranks`, in `accumulation` micro-batches."""

    rank: int = 0
    ranks: int = 1
    accumulation: int = 1

    def micro_batches(self, samples: int) -> list[slice]:
        """This rank's slices of a global batch of `samples` samples; together the ranks cover it once."""
        parts = self.ranks * self.accumulation
        edges = [samples * part // parts for part in range(parts + 1)]
        first = self.rank * self.accumulation
        return [slice(edges[part], edges[part + 1]) for part in range(first, first + self.accumulation)]

    def shard(self, items: int) -> slice:
        """This rank's slice of `items` things that are shared out once, as in evaluation: no overlap, no padding."""
        return slice(items * self.rank // self.ranks, items * (self.rank + 1) // self.ranks)


class Data(Protocol):
    """The samples of one rank; built per loader. Building may read sizes but no samples: the clock is not running.

    A class that has `prepare_data(settings, progress)` has it called once before ranks start, to prepare what lies on
    disk; `progress` takes what is being done and to how many lines so far.
    """

    train_size: int
    eval_size: int
    steps_per_epoch: int

    def train_batches(self, epoch: int) -> Iterable[Sequence[Batch]]:
        """For each global batch of the 1-based `epoch`, this rank's micro-batches; equal for equal seeds."""
        ...

    def eval_batches(self) -> Iterable[Batch]:
        """This rank's share of the evaluation set: shares never overlap and never pad."""
        ...

    def synthetic_train_batches(self) -> Sequence[Batch]:
        """One step's micro-batches in the shapes of `train`, made without touching the data."""
        ...

    def synthetic_eval_batch(self) -> Batch:
        """One batch in the shape of `eval`'s, made without touching the data."""
        ...

    def mlperf_params(self) -> dict[str, Any]:
        """What the log should say of the data beyond their sizes, under MLPerf names.

        A value with metadata, as some rules want it, is {"value": ..., "metadata": {...}}.
        """
        ...


class Workload(Protocol):
    """A task. It never sees rank, device, process group, scaler, clock or log."""

    def build_model(self) -> nn.Module:
        """A newly initialised model, drawing from torch's default generator."""
        ...

    def build_optimizer(self, model: nn.Module, steps_per_epoch: int) -> tuple[Optimizer, LRScheduler]:
        """The optimizer of `model` and its schedule, which is stepped after every update."""
        ...

    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Loss summed over `batch.weight`: a scalar. `model` may be wrapped, so it is called as a whole."""
        ...

    def predict(self, model: nn.Module, batches: Iterable[Batch]) -> Any:
        """Return this rank's part of the evaluation, as plain Python or CPU values; runs without gradients.

        A workload that counts tokens returns `TextPredictions`.
        """
        ...

    def score(self, parts: Sequence[Any]) -> dict[str, float]:
        """Quality in fractions from all ranks' parts; runs on rank 0 alone."""
        ...

    def mlperf_params(self) -> dict[str, Any]:
        """Hyperparameters under their MLPerf names."""
        ...

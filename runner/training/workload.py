"""The interface between the PyTorch engine and a workload: what the author of a workload writes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..core.errors import DataError
from ..core.progress import ProgressCallback, no_progress
from .seeds import Seeds


@dataclass
class Batch:
    """A micro-batch of one rank, on its device.

    `compute_loss` of the workload is a sum over `weight`. `global_samples`, `global_weight` and `global_tokens` are
    those of the whole global batch, over all ranks and micro-batches; without a `global_weight` the engine sums the
    weights over the ranks. Tokens are the source and target tokens of text, without padding. A warm-up batch that
    `is_partial` has a shape too rare to compile the model for it, such as the last batch of an evaluation.
    """

    inputs: Any
    weight: float
    global_samples: int
    global_weight: float | None = None
    global_tokens: int = 0
    is_partial: bool = False


@dataclass(frozen=True)
class TextPredictions:
    """The predictions of one rank for text, and the source and output tokens they took, without padding."""

    predictions: Any
    tokens: int


@dataclass(frozen=True)
class BatchSharding:
    """The part of every global batch that a rank trains: rank `rank` of `ranks`, in `accumulation` micro-batches."""

    rank: int = 0
    ranks: int = 1
    accumulation: int = 1

    def micro_batches(self, samples: int) -> list[slice]:
        """Return this rank's slices of a global batch of `samples` samples; together the ranks cover it once."""
        parts = self.ranks * self.accumulation
        edges = [samples * part // parts for part in range(parts + 1)]
        first = self.rank * self.accumulation
        return [slice(edges[part], edges[part + 1]) for part in range(first, first + self.accumulation)]

    def shard(self, items: int) -> slice:
        """Return this rank's slice of `items` evaluation items: no overlap, no padding."""
        return slice(items * self.rank // self.ranks, items * (self.rank + 1) // self.ranks)

    def eval_spans(self, items: int, batch_size: int) -> list[slice]:
        """Return this rank's evaluation batches as slices of `items` items, each item once; the last may be smaller."""
        own = self.shard(items)
        starts = range(own.start, own.stop, batch_size)
        return [slice(start, min(start + batch_size, own.stop)) for start in starts]


class Data(Protocol):
    """The samples of one rank, one class per loader.

    The clock starts before any part of the system touches the data (MLPerf training rules, "Run Results"). Constructing
    it and its warm-up batches therefore read nothing but the manifest that `prepare_data` has written: sizes and
    counts.
    """

    Settings: ClassVar[type]
    """Dataclass of the keys of `recipe.data`."""
    dataset_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of `Settings` that name the dataset's files or folders: who sets one trains on these, not generated data."""
    train_size: int
    eval_size: int
    steps_per_epoch: int
    makes_batches_on_device: bool = False
    """Whether the device makes the batches itself, ahead of the steps: waits for them are not timed and count as 0."""

    def __init__(
        self, settings: Any, *, global_batch_size: int, sharding: BatchSharding, device: torch.device, seeds: Seeds
    ) -> None:
        """Set the sizes above; `settings` is an instance of `Settings`."""
        ...

    @classmethod
    def prepare_data(cls, settings: Any, progress: ProgressCallback) -> None:
        """Prepare files on disk; called once before the ranks start. Default: nothing to prepare."""

    @classmethod
    def preparation_notes(cls, settings: Any) -> Sequence[str]:
        """Return a sentence for each thing that `prepare_data` mended in the files. Default: none."""
        return ()

    @classmethod
    def prepared_content(cls, settings: Any) -> Iterator[Path | bytes]:
        """Yield what `prepare_data` stored of the samples, as files or bytes that are equal wherever the data lie.

        The digest of it says which data a run trained on. Default: nothing.
        """
        return iter(())

    @classmethod
    def verify(cls, settings: Any) -> Iterator[str]:
        """Yield a sentence for each problem of the files. Default: what stops `prepare_data`."""
        try:
            cls.prepare_data(settings, no_progress)
        except DataError as error:
            yield str(error)

    def start_processes(self) -> None:
        """Start processes that will read, but touch no data yet; called before the model is built. Default: none."""

    def open(self) -> None:
        """Open files and read annotations, offsets and indexes; called once, when the clock runs. Default: nothing."""

    def train_batches(self, epoch: int) -> Iterable[Sequence[Batch]]:
        """Yield this rank's micro-batches for each global batch of the 1-based `epoch`; equal for equal seeds."""
        ...

    def eval_batches(self) -> Iterable[Batch]:
        """Yield this rank's part of the evaluation set: parts do not overlap and are not padded."""
        ...

    def sharded_rows(self) -> Mapping[str, Sequence[int]]:
        """Return the names of parameters whose rows are divided over the ranks, and bounds of the rows. Default: none.

        The model of rank r has only the rows from bounds[r] to before bounds[r + 1], and its batches reach no others.
        Their gradients are not exchanged; checkpoints hold all rows.
        """
        return {}

    def warm_up_steps(self) -> Iterable[Sequence[Batch]]:
        """Yield the micro-batches of a step in each shape that `train_batches` yields often, without touching the data.

        What later batches need, such as decoders, is started here too.
        """
        ...

    def warm_up_eval_batches(self) -> Iterable[Batch]:
        """Yield a batch in each shape of `eval_batches`, without touching the data; rare shapes last, `is_partial`."""
        ...

    def mlperf_params(self) -> dict[str, Any]:
        """Return the data's entries in the log other than sizes, under MLPerf names.

        A value with metadata, which some rules require, is {"value": ..., "metadata": {...}}.
        """
        ...


class Workload(Protocol):
    """A task. It never sees rank, device, process group, gradient scaler, clock or log.

    It is constructed with `(settings, data)`, where `settings` is an instance of `Settings`.
    """

    Settings: ClassVar[type]
    """Dataclass of the keys of `recipe.training`."""

    @property
    def capturable(self) -> bool:
        """Whether steps can be captured in device graphs; a class attribute is enough.

        Steps in the shapes of `Data.warm_up_steps` are then captured before the clock starts. `compute_loss`
        reads only tensors of `batch.inputs`, all on the device, and never waits for it. The optimizer reads its
        learning rate on the device, as PyTorch's fused ones do.
        """
        ...

    def build_model(self) -> nn.Module:
        """Return a newly initialized model, drawing from torch's default generator."""
        ...

    def build_optimizer(self, model: nn.Module, steps_per_epoch: int) -> tuple[Optimizer, LRScheduler]:
        """Return the optimizer of `model` and its schedule, which is stepped after every update."""
        ...

    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss summed over `batch.weight`, a scalar. `model` may be compiled, so it is called as a whole."""
        ...

    def predict(self, model: nn.Module, batches: Iterable[Batch]) -> Any:
        """Return this rank's part of the evaluation, as plain Python or CPU values; runs without gradients.

        A workload that counts tokens returns `TextPredictions`.
        """
        ...

    def score(self, parts: Sequence[Any]) -> dict[str, float]:
        """Return the quality in fractions from the parts of all ranks; runs on rank 0 only."""
        ...

    def mlperf_params(self) -> dict[str, Any]:
        """Return hyperparameters under their MLPerf names."""
        ...

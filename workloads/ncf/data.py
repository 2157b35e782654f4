"""NCF's samples: the whole rating matrix on the device, negatives drawn there anew every epoch."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import MISSING
from torch import Generator, Tensor

from ...datasets.formats import movielens
from ...datasets.synthetic import ratings
from ...runner.training.seeds import Seeds
from ...runner.training.workload import Batch, BatchSharding
from . import sampling


@dataclass
class _OnDevice:
    """Training positives in order of user (int32 [P] each), their bitset, and the fixed evaluation set."""

    users: Tensor
    items: Tensor
    bits: Tensor
    eval_items: Tensor
    eval_counted: Tensor


class Interactions:
    """One rank's samples; `train_size` counts positives and their negatives, `eval_size` users."""

    @dataclass
    class Settings:
        """`path` is a MovieLens ratings file; `generate` makes it where it is absent; sizes as in MLPerf v0.5."""

        path: str = MISSING
        prepared: str = MISSING
        generate: ratings.Tastes | None = None
        min_ratings: int = 1
        train_negatives: int = 4
        eval_negatives: int = 999
        eval_batch_size: int = 4096

        def __post_init__(self) -> None:
            if min(self.train_negatives, self.eval_batch_size) < 1 or self.eval_negatives < 10:
                raise ValueError("train_negatives and eval_batch_size must be 1 or more, eval_negatives 10 or more.")

    def __init__(
        self, settings: Settings, *, global_batch_size: int, sharding: BatchSharding, device: torch.device, seeds: Seeds
    ) -> None:
        self._settings, self._sharding, self._device, self._seeds = settings, sharding, device, seeds
        self._global_batch_size = global_batch_size
        source = Path(settings.path)
        if settings.generate is not None:
            source = ratings.path_of(source, settings.generate)
            if not source.exists():
                ratings.write_ratings(source, settings.generate)
        self._prepared = movielens.prepare(source, Path(settings.prepared), settings.min_ratings)
        self.num_users, self.num_items, positives = movielens.read_sizes(self._prepared)
        self.train_size = positives * (1 + settings.train_negatives)
        self.eval_size = self.num_users
        self.steps_per_epoch = math.ceil(self.train_size / global_batch_size)
        self._loaded: _OnDevice | None = None

    def train_batches(self, epoch: int) -> Iterable[Sequence[Batch]]:
        """Every positive and fresh negatives, shuffled over the whole epoch; equal on every rank but for its share."""
        data = self._load()
        negatives = sampling.draw_negatives(
            data.users, data.bits, self.num_items, self._settings.train_negatives, self._generator("sampling", epoch)
        )
        order = sampling.shuffle(self.train_size, self._global_batch_size, self._generator("data_order", epoch))
        for start in range(0, self.train_size, self._global_batch_size):
            samples = order[start : start + self._global_batch_size]
            parts = (samples[part] for part in self._sharding.micro_batches(samples.numel()))
            yield [self._batch(part, samples.numel(), data, negatives) for part in parts]

    def eval_batches(self) -> Iterable[Batch]:
        """This rank's users with their 999 negatives and the held-out positive last."""
        data, mine = self._load(), self._sharding.shard(self.num_users)
        size = self._settings.eval_batch_size
        for start in range(mine.start, mine.stop, size):
            users = torch.arange(start, min(start + size, mine.stop), dtype=torch.int32, device=self._device)
            some = slice(start, start + users.numel())
            content = (users, data.eval_items[some], data.eval_counted[some])
            yield Batch(content, users.numel(), self.num_users, self.num_users)

    def synthetic_train_batches(self) -> Sequence[Batch]:
        """Random ids in the shapes of the first step."""
        samples = min(self._global_batch_size, self.train_size)
        return [self._random_batch(part.stop - part.start, samples) for part in self._sharding.micro_batches(samples)]

    def synthetic_eval_batch(self) -> Batch:
        """Random ids in the shape of the first evaluation batch."""
        size = min(self._settings.eval_batch_size, self.num_users)
        negatives = self._settings.eval_negatives
        users = torch.arange(size, dtype=torch.int32, device=self._device)
        items = torch.randint(self.num_items, (size, negatives + 1), dtype=torch.int32, device=self._device)
        return Batch((users, items, torch.ones_like(items[:, 1:], dtype=torch.bool)), size, size, size)

    def mlperf_params(self) -> dict[str, Any]:
        """What MLPerf v0.5 wanted to be logged of the samples."""
        return {
            "preproc_hp_min_ratings": self._settings.min_ratings,
            "input_hp_num_neg": self._settings.train_negatives,
            "eval_hp_num_neg": self._settings.eval_negatives,
        }

    def _load(self) -> _OnDevice:
        """The data on the device; the first call touches them, which is on the clock, and draws the evaluation set."""
        if self._loaded is None:
            split = movielens.read_split(self._prepared)
            users, items, held_out = (
                torch.from_numpy(array).to(self._device) for array in (split.users, split.items, split.held_out)
            )
            bits = sampling.membership(users, items, self.num_users, self.num_items)
            evaluation = sampling.evaluation_items(
                bits, held_out, self.num_items, self._generator("sampling", 0), self._settings.eval_negatives
            )
            self._loaded = _OnDevice(users, items, bits, *evaluation)
        return self._loaded

    def _batch(self, samples: Tensor, global_samples: int, data: _OnDevice, negatives: Tensor) -> Batch:
        content = sampling.gather_batch(samples, data.users, data.items, negatives, self.num_users, self.num_items)
        return Batch(content, samples.numel(), global_samples, global_samples)

    def _random_batch(self, size: int, global_samples: int) -> Batch:
        users = torch.randint(self.num_users, (size,), dtype=torch.int32, device=self._device).sort().values
        items = torch.randint(self.num_items, (size,), dtype=torch.int32, device=self._device)
        labels = torch.randint(2, (size,), device=self._device).float()
        by_item, item_starts = sampling.runs_by_item(items, self.num_items)
        content = (users, items, labels, by_item, sampling.run_starts(users, self.num_users), item_starts)
        return Batch(content, size, global_samples, global_samples)

    def _generator(self, stream: str, epoch: int) -> Generator:
        return Generator(self._device).manual_seed(self._seeds.derive(stream, epoch))

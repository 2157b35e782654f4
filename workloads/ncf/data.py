"""NCF's data: the whole rating matrix on the device, where negatives are sampled anew in every epoch."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import MISSING
from torch import Tensor

from ...datasets.formats import movielens
from ...datasets.synthetic import ratings
from ...datasets.synthetic.spec_digest import path_with_digest
from ...runner.core.errors import ConfigurationError
from ...runner.core.progress import ProgressCallback
from ...runner.hardware.devices import synchronize
from ...runner.hardware.side_stream import SideStream
from ...runner.training.seeds import Seeds
from ...runner.training.workload import Batch, BatchSharding, Data
from . import sampling
from .epochs_ahead import EpochsAhead

_SAMPLES_AT_A_TIME = 1 << 20  # gathered together: the workspace of sorting
_MAX_SAMPLES = 2**31 - 2**20  # that int32 numbers, with room for the samples that kernels look ahead
_MAX_BATCHES_AT_A_TIME = 2**16 - 1  # rows of a launch
_STARTS_AT_A_TIME = 1 << 26  # of users' and items' segments: 256 MiB
_USER_PARAMETERS = ("gmf_user.weight", "mlp_user.weight")
_DEVIATIONS = 8  # standard deviations above their mean that a rank's samples in a batch may have: p < 1e-14


@dataclass
class _OnDevice:
    """Training positives sorted by user (int32 [P] each), their bitset, and the fixed evaluation set."""

    users: Tensor
    items: Tensor
    bits: Tensor
    eval_items: Tensor
    eval_mask: Tensor


class NCFData(Data):
    """One rank's samples; `train_size` counts positives and their negatives, `eval_size` users.

    With several ranks, each has its own users, whose gradients are not exchanged. Its part of a batch is all samples of
    these users, in a tensor of a fixed size, so that steps keep their shapes; the rest of it is ignored.
    """

    dataset_keys = ("path",)

    @dataclass
    class Settings:
        """Settings of MovieLens data; the defaults are MLPerf v0.5's."""

        path: str = MISSING
        """MovieLens ratings file: ratings.csv or ratings.dat."""
        cache_dir: str = MISSING
        """Folder of the cache of preprocessed ratings."""
        generate: ratings.RatingsSpec | None = None
        """Synthetic dataset, generated if the file does not exist; null: real ratings."""
        min_ratings_per_user: int = 1
        """Users with fewer ratings are dropped."""
        train_negatives: int = 4
        """Negative samples per positive in training."""
        eval_negatives: int = 999
        """Negative samples per user in the evaluation."""
        eval_batch_size: int = 4096
        """Users of a rank evaluated at a time."""

        def __post_init__(self) -> None:
            if min(self.train_negatives, self.eval_batch_size) < 1 or self.eval_negatives < 10:
                raise ValueError("train_negatives and eval_batch_size must be 1 or more, eval_negatives 10 or more.")

    def __init__(
        self, settings: Settings, *, global_batch_size: int, sharding: BatchSharding, device: torch.device, seeds: Seeds
    ) -> None:
        self._settings, self._sharding, self._device, self._seeds = settings, sharding, device, seeds
        self._global_batch_size = global_batch_size
        sizes = self._read_sizes()
        self.num_users, self.num_items = sizes.users, sizes.items
        samples_per_positive = 1 + settings.train_negatives
        self.train_size = sizes.positives * samples_per_positive
        self.eval_size = self.num_users
        if max(self.train_size, self.num_users * (1 + settings.eval_negatives)) > _MAX_SAMPLES:
            raise ConfigurationError(
                f"An epoch or an evaluation has more than {_MAX_SAMPLES} samples: lower recipe.data.train_negatives or "
                "recipe.data.eval_negatives, or use fewer ratings."
            )
        self.steps_per_epoch = math.ceil(self.train_size / global_batch_size)
        self._user_bounds, positive_bounds = sizes.share_users(sharding.ranks)
        self.own_users = range(*self._user_bounds[sharding.rank : sharding.rank + 2])
        if any(start == stop for start, stop in itertools.pairwise(self._user_bounds)):
            raise ConfigurationError(f"{self.num_users} users cannot be divided over {sharding.ranks} GPUs: use fewer.")
        bounds = [bound * samples_per_positive for bound in positive_bounds[sharding.rank : sharding.rank + 2]]
        self._own_samples = range(*bounds)
        self._overflow = torch.zeros((), dtype=torch.int64, device=device)
        self._side_stream = SideStream(device)
        self._epochs = EpochsAhead(self._side_stream, self._gather_from)
        self.makes_batches_on_device = self._side_stream.is_used

    @classmethod
    def prepare_data(cls, settings: Settings, progress: ProgressCallback) -> None:
        """Split the ratings before the first run on them."""
        movielens.check_items(Path(settings.path), movielens.read_sizes(cls._prepare(settings)).items)

    @classmethod
    def preparation_notes(cls, settings: Settings) -> Sequence[str]:
        """Return what was mended in the ratings file, and whether chance alone hits often."""
        sizes = movielens.read_sizes(cls._prepare(settings))
        return [*sizes.notes, *movielens.check_items(Path(settings.path), sizes.items)]

    @classmethod
    def prepared_content(cls, settings: Settings) -> Iterator[Path | bytes]:
        """Yield the split of the ratings."""
        yield cls._prepare(settings)

    @classmethod
    def _prepare(cls, settings: Settings) -> Path:
        """Return the path of the split; generate ratings and split them if that has not been done yet."""
        source = Path(settings.path)
        if settings.generate is not None:
            source = path_with_digest(source, settings.generate)
            if not source.exists():
                ratings.write_ratings(source, settings.generate)
        return movielens.prepare(source, Path(settings.cache_dir), settings.min_ratings_per_user)

    def open(self) -> None:
        """Read the ratings to the device and sample the evaluation set, which the reference does on the clock too."""
        users, items, held_out = self._read_ratings()
        bits = sampling.build_bitset(users, items, self.num_users, self.num_items)
        evaluation = sampling.sample_evaluation_items(
            bits, held_out, self.num_items, self._seeds.derive("sampling", 0), self._settings.eval_negatives
        )
        self._opened = _OnDevice(users, items, bits, *evaluation)

    def _warm_up_sampling(self) -> None:
        """Compile the kernels that draw samples, on ratings of the first user."""
        zeros = torch.zeros(self.train_size // (1 + self._settings.train_negatives), dtype=torch.int32)
        users = items = zeros.to(self._device)
        bits = sampling.build_bitset(users[:1], items[:1], self.num_users, self.num_items)
        evaluation = sampling.sample_evaluation_items(
            bits, items[: min(8, self.num_users)], self.num_items, 0, self._settings.eval_negatives
        )
        data = _OnDevice(users, items, bits, *evaluation)

        def batches() -> Iterator[Iterator[list[Batch]]]:
            shuffled, groups = self._shuffle(0), self._groups()
            for chosen in {groups[0][0], groups[-1][-1]}:
                yield self._gather(self._select(*shuffled, *chosen), data, 0)

        for _ in self._side_stream.make_ahead(batches()):
            pass

    def _read_sizes(self) -> movielens.Sizes:
        self._prepared = self._prepare(self._settings)
        return movielens.read_sizes(self._prepared)

    def _read_ratings(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return users and items of all training pairs, by user, and the held-out item of each user: int32."""
        split = movielens.read_split(self._prepared)
        arrays = split.users, split.items, split.held_out
        users, items, held_out = (torch.from_numpy(array).to(self._device) for array in arrays)
        return users, items, held_out

    def train_batches(self, epoch: int) -> Iterable[Sequence[Batch]]:
        """Yield this rank's micro-batches of all positives and newly sampled negatives, shuffled over the epoch.

        On a GPU, batches are gathered while the steps before them run, also those of the next epoch.
        """
        return itertools.chain.from_iterable(self._epochs.take(epoch, len(self._groups())))

    def _gather_from(self, epoch: int) -> Iterator[Iterator[list[Batch]]]:
        """Yield what is gathered at once, of this epoch and all later ones."""
        for number in itertools.count(epoch):
            order, starts = self._shuffle(self._seeds.derive("data_order", number))
            seed = self._seeds.derive("sampling", number)
            for group in self._groups():
                samples = [self._select(order, starts, *batches) for batches in group]
                yield itertools.chain(*[self._gather(own, self._opened, seed) for own in samples])
            del order, samples  # those of the next epoch take as much memory

    def _shuffle(self, seed: int) -> tuple[Tensor, Tensor]:
        """Return this rank's samples batch by batch, and where each batch starts, as `shuffle_into_batches` does."""
        return sampling.shuffle_into_batches(
            self._own_samples, self.train_size, self._global_batch_size, seed, self._device
        )

    def _groups(self) -> list[list[tuple[range, int]]]:
        """Return what is gathered together: batches of one global size, and that size."""
        num_full, rest = divmod(self.train_size, self._global_batch_size)
        numbers, step = range(num_full), self._batches_at_a_time
        groups = [[(numbers[i : i + step], self._global_batch_size)] for i in range(0, num_full, step)] or [[]]
        if rest:  # not a group of its own: its one step is too short to gather the next epoch's first group beside it
            groups[-1].append((range(num_full, num_full + 1), rest))
        return groups

    def _select(self, order: Tensor, starts: Tensor, batches: range, global_size: int) -> sampling.OwnSamples:
        """Return the samples of some batches, which are all of `global_size` samples."""
        if self._sharding.ranks == 1:
            first = batches.start * self._global_batch_size
            numbers = order[first : first + len(batches) * global_size].view(len(batches), global_size)
            return sampling.OwnSamples(numbers, None, global_size)
        size = sum(self._micro_batch_sizes(global_size))
        bounds = starts[batches.start : batches.stop + 1, None]
        counts = bounds.diff(dim=0)
        self._overflow = torch.maximum(self._overflow, (counts - size).max())
        # What follows a batch fills it up: samples of many items, of which none gets a long segment.
        places = bounds[:-1] + torch.arange(size, device=self._device)
        return sampling.OwnSamples(order[places.remainder_(len(order))], counts, global_size)

    def eval_batches(self) -> Iterable[Batch]:
        """Yield this rank's users with their negatives; the held-out positive is the last item.

        Raise `RuntimeError` if a training batch before had more samples of this rank's users than its fixed size: this
        is known only here, where waiting for the device costs nothing.
        """
        synchronize(self._device)  # the side stream too
        if missing := int(self._overflow):
            raise RuntimeError(f"A training batch had {missing} samples of this rank's users more than were expected.")
        data, size = self._opened, self._settings.eval_batch_size
        for start in range(0, len(self.own_users), size):
            users = torch.arange(start, min(start + size, len(self.own_users)), dtype=torch.int32, device=self._device)
            rows = slice(self.own_users.start + start, self.own_users.start + start + users.numel())
            inputs = (users, data.eval_items[rows], data.eval_mask[rows])
            yield Batch(inputs, users.numel(), self.num_users, self.num_users)

    def sharded_rows(self) -> dict[str, list[int]]:
        """Return the tables of users, whose rows are divided over the ranks, and the bounds of their rows."""
        return dict.fromkeys(_USER_PARAMETERS, self._user_bounds) if self._sharding.ranks > 1 else {}

    def warm_up_steps(self) -> Iterator[Sequence[Batch]]:
        """Compile the kernels that draw samples, and yield random ids in the shapes of the first step."""
        self._warm_up_sampling()
        samples = min(self._global_batch_size, self.train_size)
        yield [self._random_batch(size, samples) for size in self._micro_batch_sizes(samples)]

    def warm_up_eval_batches(self) -> Iterator[Batch]:
        """Yield random ids in the shapes of the first evaluation batch."""
        size = min(self._settings.eval_batch_size, len(self.own_users))
        negatives = self._settings.eval_negatives
        users = torch.arange(size, dtype=torch.int32, device=self._device)
        items = torch.randint(self.num_items, (size, negatives + 1), dtype=torch.int32, device=self._device)
        yield Batch((users, items, torch.ones_like(items[:, 1:], dtype=torch.bool)), size, size, size)

    def mlperf_params(self) -> dict[str, Any]:
        """Return the hyperparameters of the data under their names in MLPerf v0.5."""
        return {
            "preproc_hp_min_ratings": self._settings.min_ratings_per_user,
            "input_hp_num_neg": self._settings.train_negatives,
            "eval_hp_num_neg": self._settings.eval_negatives,
        }

    @property
    def _batches_at_a_time(self) -> int:
        """Batches that are gathered together, so that small ones cost few kernels, within limits of memory."""
        samples, starts = sum(self._micro_batch_sizes(self._global_batch_size)), len(self.own_users) + self.num_items
        limits = _SAMPLES_AT_A_TIME // samples, _STARTS_AT_A_TIME // starts, _MAX_BATCHES_AT_A_TIME
        return max(1, min(limits))

    def _gather(self, samples: sampling.OwnSamples, data: _OnDevice, seed: int) -> Iterator[list[Batch]]:
        """Gather this rank's micro-batches of the global batches of `samples`; yield those of one batch at a time."""
        ratings = (data.users, data.items, data.bits, len(self.own_users), self.num_items)
        negatives, parts, start = self._settings.train_negatives, [], 0
        for size in self._micro_batch_sizes(samples.global_size):
            numbers = samples.numbers[:, start : start + size].contiguous()
            counts = None if samples.counts is None else samples.counts - start
            gathered = sampling.gather_batches(
                numbers, *ratings, negatives=negatives, seed=seed, counts=counts, first_user=self.own_users.start
            )
            parts.append(gathered)
            start += size
        return map(partial(_micro_batches, parts, samples.global_size), range(len(samples.numbers)))

    def _micro_batch_sizes(self, samples: int) -> list[int]:
        """Return the sizes of this rank's micro-batches of a global batch, into which samples fall at random.

        `eval_batches` raises an error if they were too small for a batch.
        """
        share = len(self._own_samples) / self.train_size
        size = math.ceil(samples * share + _DEVIATIONS * math.sqrt(samples * share * (1 - share)))
        parts = BatchSharding(accumulation=self._sharding.accumulation).micro_batches(min(size, samples))
        return [part.stop - part.start for part in parts]

    def _random_batch(self, size: int, global_samples: int) -> Batch:
        users = torch.randint(len(self.own_users), (size,), dtype=torch.int32, device=self._device).sort().values
        items = torch.randint(self.num_items, (size,), dtype=torch.int32, device=self._device)
        labels = torch.randint(2, (size,), device=self._device).float()
        by_item, item_starts = sampling.sort_by_item(items, self.num_items)
        inputs = (users, items, labels, by_item, sampling.segment_starts(users, len(self.own_users)), item_starts)
        return Batch(inputs, size, global_samples, global_samples)


def _micro_batches(parts: Sequence[tuple[Tensor, ...]], global_samples: int, number: int) -> list[Batch]:
    """Return the micro-batches of a global batch that was gathered as `number` of several."""
    inputs = [tuple(tensor[number] for tensor in part) for part in parts]
    return [Batch(tensors, tensors[0].numel(), global_samples, global_samples) for tensors in inputs]

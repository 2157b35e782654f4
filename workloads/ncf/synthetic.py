"""data=synthetic: as many ratings as MovieLens-20M has, or as `generate` says; nothing is read or learned."""

import torch
from torch import Tensor

from ...datasets.formats.movielens import Sizes
from ...runner.core.progress import ProgressCallback
from .data import NCFData

_NUM_USERS, _NUM_ITEMS, _NUM_RATINGS = 138_493, 26_744, 20_000_263  # MovieLens-20M


class SyntheticNCFData(NCFData):
    """Every user has rated equally many items, one of which is held out."""

    @classmethod
    def prepare_data(cls, settings: NCFData.Settings, progress: ProgressCallback) -> None:
        """Do nothing: there is nothing to prepare."""

    def _read_sizes(self) -> Sizes:
        if spec := self._settings.generate:
            users, items, ratings = spec.num_users, spec.num_items, spec.num_ratings
        else:
            users, items, ratings = _NUM_USERS, _NUM_ITEMS, _NUM_RATINGS
        self._ratings_per_user = max(2, min(ratings // users, items - 1))
        positives_per_user = self._ratings_per_user - 1
        positives = users * positives_per_user
        return Sizes(users, items, positives, range(0, positives + 1, positives_per_user))

    def _read_ratings(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return each user's items at equal distances, from a random one on: no pair comes twice."""
        generator = torch.Generator(self._device).manual_seed(self._seeds.derive("sampling", 0))
        first = torch.randint(self.num_items, (self.num_users, 1), generator=generator, device=self._device)
        number = torch.arange(self._ratings_per_user, device=self._device)
        distance = self.num_items // self._ratings_per_user
        items = ((first + number * distance) % self.num_items).int()
        users = torch.arange(self.num_users, dtype=torch.int32, device=self._device)
        return users.repeat_interleave(self._ratings_per_user - 1), items[:, 1:].flatten(), items[:, 0]

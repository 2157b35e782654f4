"""Neural collaborative filtering (NeuMF, He et al. 2017) as MLPerf v0.5 defines it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import MISSING
from torch import Tensor, nn
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ...runner.training.workload import Batch
from . import sampling
from .data import Interactions
from .model import NeuMF


class NCF:
    """Ranks a held-out item among 999 others; quality is the hit rate at 10."""

    @dataclass
    class Settings:
        """`layers` starts with the width of both MLP embeddings together; the optimizer is Adam at a constant rate."""

        factors: int = MISSING
        layers: list[int] = MISSING
        learning_rate: float = MISSING
        beta_1: float = MISSING
        beta_2: float = MISSING
        epsilon: float = 1e-8

        def __post_init__(self) -> None:
            if self.factors < 1 or len(self.layers) < 2 or min(self.layers) < 1 or self.layers[0] % 2:
                raise ValueError(
                    f"factors={self.factors}, layers={self.layers}: widths above 0, the first of two or more even."
                )
            if self.learning_rate <= 0 or self.epsilon <= 0 or not (0 <= self.beta_1 < 1 and 0 <= self.beta_2 < 1):
                raise ValueError("learning_rate and epsilon must be above 0, beta_1 and beta_2 from 0 to below 1.")

    def __init__(self, settings: Settings, data: Interactions) -> None:
        self._settings, self._users, self._items = settings, data.num_users, data.num_items

    def build_model(self) -> NeuMF:
        """NeuMF at the data's sizes."""
        return NeuMF(self._users, self._items, self._settings.factors, self._settings.layers)

    def build_optimizer(self, model: nn.Module, steps_per_epoch: int) -> tuple[Optimizer, LRScheduler]:
        """Adam over all rows of all tables, as the reference has it; the rate is constant."""
        chosen = self._settings
        betas = (chosen.beta_1, chosen.beta_2)
        optimizer = Adam(model.parameters(), chosen.learning_rate, betas, chosen.epsilon, fused=True)
        return optimizer, LambdaLR(optimizer, lambda step: 1.0)

    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Binary cross entropy summed over the samples."""
        return model(*batch.inputs)

    def predict(self, model: nn.Module, batches: Iterable[Batch]) -> tuple[int, int]:
        """(hits, users) of this rank."""
        assert isinstance(model, NeuMF)
        found, users = [], 0
        for batch in batches:
            some, items, counted = batch.inputs
            found.append(sampling.hits(model.scores(some, items), counted))
            users += some.numel()
        return int(torch.stack(found).sum()) if found else 0, users

    def score(self, parts: Sequence[tuple[int, int]]) -> dict[str, float]:
        """Hit rate at 10 over all users."""
        return {"hit_rate": sum(hits for hits, _ in parts) / sum(users for _, users in parts)}

    def mlperf_params(self) -> dict[str, Any]:
        """Adam's hyperparameters and the model's sizes."""
        chosen = self._settings
        return {
            "opt_name": "adam",
            "opt_base_learning_rate": chosen.learning_rate,
            "opt_adam_beta_1": chosen.beta_1,
            "opt_adam_beta_2": chosen.beta_2,
            "opt_adam_epsilon": chosen.epsilon,
            "model_hp_mf_dim": chosen.factors,
            "model_hp_mlp_layer_sizes": list(chosen.layers),
        }

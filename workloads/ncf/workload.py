"""Neural collaborative filtering (NeuMF, He et al. 2017) of MLPerf v0.5."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import MISSING
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ...runner.training.workload import Batch
from . import sampling
from .adam import PiecewiseAdam
from .data import NCFData
from .model import NeuMF


class NCF:
    """Rank a held-out item among 999 others; quality is the hit rate at 10."""

    capturable = True

    @dataclass
    class Settings:
        """Sizes of NeuMF and hyperparameters of Adam, whose learning rate is constant."""

        mf_dim: int = MISSING
        """Embedding size of generalized matrix factorization (GMF)."""
        mlp_layer_sizes: list[int] = MISSING
        """Input size of the MLP, which is the size of both embeddings together, and the sizes of its layers."""
        learning_rate: float = MISSING
        """Learning rate."""
        beta_1: float = MISSING
        """Adam's decay rate of the first moment."""
        beta_2: float = MISSING
        """Adam's decay rate of the second moment."""
        epsilon: float = 1e-8
        """Adam's epsilon."""

        def __post_init__(self) -> None:
            sizes = self.mlp_layer_sizes
            if self.mf_dim < 1 or len(sizes) < 2 or min(sizes) < 1 or sizes[0] % 2:
                raise ValueError(
                    f"mf_dim={self.mf_dim} must be above 0, and mlp_layer_sizes={sizes} two or more sizes above 0, "
                    "of which the first is even."
                )
            if self.learning_rate <= 0 or self.epsilon <= 0 or not (0 <= self.beta_1 < 1 and 0 <= self.beta_2 < 1):
                raise ValueError("learning_rate and epsilon must be above 0, beta_1 and beta_2 from 0 to below 1.")

    def __init__(self, settings: Settings, data: NCFData) -> None:
        self._settings, self._data = settings, data

    def build_model(self) -> NeuMF:
        """Build NeuMF for the data's items and this rank's users, with the weights that it has for all users."""
        data, settings = self._data, self._settings
        model = NeuMF(data.num_users, data.num_items, settings.mf_dim, settings.mlp_layer_sizes)
        if len(data.own_users) < data.num_users:
            model.keep_users(data.own_users)
        return model

    def build_optimizer(self, model: nn.Module, steps_per_epoch: int) -> tuple[Optimizer, LRScheduler]:
        """Build dense Adam over all embedding rows, as in the reference, with a constant learning rate."""
        settings = self._settings
        betas = (settings.beta_1, settings.beta_2)
        optimizer = PiecewiseAdam(model.parameters(), settings.learning_rate, betas, settings.epsilon)
        return optimizer, LambdaLR(optimizer, lambda step: 1.0)

    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the binary cross entropy summed over the samples."""
        return model(*batch.inputs)

    def predict(self, model: nn.Module, batches: Iterable[Batch]) -> tuple[int, int]:
        """Return this rank's (hits, users)."""
        assert isinstance(model, NeuMF)
        hits, num_users = [], 0
        for batch in batches:
            users, items, mask = batch.inputs
            hits.append(sampling.count_hits(model.scores(users, items), mask))
            num_users += users.numel()
        return int(torch.stack(hits).sum()) if hits else 0, num_users

    def score(self, parts: Sequence[tuple[int, int]]) -> dict[str, float]:
        """Return the hit rate at 10 over all users."""
        return {"hit_rate": sum(hits for hits, _ in parts) / sum(users for _, users in parts)}

    def mlperf_params(self) -> dict[str, Any]:
        """Return Adam's hyperparameters and the model's sizes under their names in MLPerf v0.5."""
        settings = self._settings
        return {
            "opt_name": "adam",
            "opt_base_learning_rate": settings.learning_rate,
            "opt_adam_beta_1": settings.beta_1,
            "opt_adam_beta_2": settings.beta_2,
            "opt_adam_epsilon": settings.epsilon,
            "model_hp_mf_dim": settings.mf_dim,
            "model_hp_mlp_layer_sizes": list(settings.mlp_layer_sizes),
        }

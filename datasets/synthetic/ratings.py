"""Synthetic ratings in MovieLens CSV format, drawn from a latent-factor model so that there is something to learn."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...runner.core.atomic_files import atomic_write
from ..formats.movielens import is_separated_by_colons

_MAX_ROUNDS = 6  # of sampling for the drawn number of ratings per user


@dataclass
class RatingsSpec:
    """Size and shape of a dataset of ratings.

    P(item | user) = sum over clusters of weight[user, cluster] * popularity[cluster, item], a non-negative
    latent-factor model. All clusters have the same weight, so that overall popularity alone says little. The number of
    ratings per user is long-tailed.
    """

    num_users: int
    """Number of users."""
    num_items: int
    """Number of items."""
    num_ratings: int
    """Number of ratings."""
    num_clusters: int
    """Number of item clusters of the latent-factor model."""
    cluster_concentration: float = 0.1
    """Dirichlet concentration of a user's cluster weights; a small value gives users of a single cluster."""
    zipf_exponent: float = 1.0
    """Exponent of the popularity within a cluster, which falls as rank^-zipf_exponent."""
    min_ratings_per_user: int = 20
    """Fewest ratings of a user."""
    seed: int = 1
    """Seed of the generator."""

    def __post_init__(self) -> None:
        """Reject values that cannot be generated."""
        sizes = (self.num_users, self.num_items, self.num_ratings, self.num_clusters, self.min_ratings_per_user)
        if min(sizes) < 1 or self.cluster_concentration <= 0:
            raise ValueError(
                "num_users, num_items, num_ratings, num_clusters and min_ratings_per_user must be 1 or more, "
                "cluster_concentration above 0."
            )
        if self.min_ratings_per_user > self.num_items // 3:
            raise ValueError(
                f"min_ratings_per_user={self.min_ratings_per_user} is more than a third of the {self.num_items} items."
            )


def write_ratings(path: Path, spec: RatingsSpec) -> None:
    """Write a file like MovieLens' `ratings.csv`, or `ratings.dat`, atomically. Equal specs give equal bytes."""
    generator = np.random.default_rng(spec.seed)
    users, items = sample_interactions(spec, generator)
    frame = pd.DataFrame({"userId": users + 1, "movieId": items + 1})
    frame["rating"] = generator.integers(1, 11, len(frame)) / 2
    frame["timestamp"] = generator.permutation(len(frame)) + 1_000_000_000
    has_colons = is_separated_by_colons(path)
    if has_colons:  # pandas writes one colon: an empty column between two others makes it two
        for place in (1, 3, 5):
            frame.insert(place, place, "")
    with atomic_write(path) as temporary:
        frame.to_csv(temporary, sep=":" if has_colons else ",", header=not has_colons, index=False)


def sample_interactions(
    spec: RatingsSpec, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return users and items of about `spec.num_ratings` distinct pairs, in order of user."""
    wanted = _ratings_per_user(spec, generator)
    weights = generator.dirichlet(np.full(spec.num_clusters, spec.cluster_concentration), spec.num_users).cumsum(1)
    popularity = _cumulative_popularity(spec, generator)
    pairs = np.empty(0, np.int64)
    missing, rounds = wanted, 0
    while missing.any():
        users = np.repeat(np.arange(spec.num_users), missing)
        cluster = (generator.random(users.size)[:, None] > weights[users, :-1]).sum(1)
        # One search over all clusters: cluster c's cumulative popularity lies in [c, c + 1].
        index = np.searchsorted(popularity.ravel(), cluster + generator.random(users.size))
        pairs = np.unique(np.concatenate([pairs, users * spec.num_items + index % spec.num_items]))
        rounds += 1
        # Users who have exhausted a cluster draw the same items again: after some rounds only the minimum is enforced.
        required = wanted if rounds < _MAX_ROUNDS else np.full_like(wanted, spec.min_ratings_per_user)
        missing = np.maximum(required - np.bincount(pairs // spec.num_items, minlength=spec.num_users), 0)
    return pairs // spec.num_items, pairs % spec.num_items


def _ratings_per_user(spec: RatingsSpec, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return ratings per user, int64 [users]: log-normal above the minimum and at most a third of the items."""
    mean = max(1.0, spec.num_ratings / spec.num_users - spec.min_ratings_per_user)
    tail = generator.lognormal(sigma=1.3, size=spec.num_users)
    wanted = spec.min_ratings_per_user + np.rint(tail * mean / tail.mean()).astype(np.int64)
    return np.minimum(wanted, spec.num_items // 3)


def _cumulative_popularity(spec: RatingsSpec, generator: np.random.Generator) -> NDArray[np.float64]:
    """Return the cumulative popularity of items by cluster plus the cluster's index, float64 [clusters, items]."""
    weights = np.arange(1, spec.num_items + 1, dtype=np.float64) ** -spec.zipf_exponent
    popularity = np.stack([generator.permutation(weights) for _ in range(spec.num_clusters)])
    popularity = popularity / popularity.sum(1, keepdims=True)
    return np.minimum(popularity.cumsum(1), 1.0) + np.arange(spec.num_clusters)[:, None]

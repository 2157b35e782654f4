"""Generated ratings in MovieLens' real format: people with tastes, so that a model must learn who likes what."""

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...runner.core.atomic_files import atomic_write

_ROUNDS = 6  # of drawing for the wanted activity


@dataclass
class Tastes:
    """A population: every user mixes `tastes`, every taste prefers its own items; user activity is long-tailed.

    P(item | user) = sum over tastes of share[user, taste] * appeal[taste, item]: a non-negative latent-factor model.
    `focus` is the Dirichlet concentration of the shares (small: people of one taste), `skew` the exponent of the
    Zipf-like appeal within a taste. All tastes weigh the same, so that popularity alone says little.
    """

    users: int
    items: int
    ratings: int
    tastes: int
    focus: float = 0.1
    skew: float = 1.0
    min_ratings: int = 20
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuses what cannot be drawn."""
        if min(self.users, self.items, self.ratings, self.tastes, self.min_ratings) < 1 or self.focus <= 0:
            raise ValueError("users, items, ratings, tastes and min_ratings must be 1 or more, focus above 0.")
        if self.min_ratings > self.items // 3:
            raise ValueError(f"min_ratings={self.min_ratings} is more than a third of the {self.items} items.")


def path_of(path: Path, tastes: Tastes) -> Path:
    """`path` with a digest of the population in its name: another population is another file."""
    digest = hashlib.sha256(repr(sorted(asdict(tastes).items())).encode()).hexdigest()[:8]
    return path.with_name(f"{path.stem}-{digest}{path.suffix}")


def write_ratings(path: Path, tastes: Tastes) -> None:
    """Writes a `ratings.csv` (userId,movieId,rating,timestamp), whole or not at all."""
    generator = np.random.default_rng(tastes.seed)
    users, items = draw_pairs(tastes, generator)
    frame = pd.DataFrame({"userId": users + 1, "movieId": items + 1})
    frame["rating"] = generator.integers(1, 11, len(frame)) / 2
    frame["timestamp"] = generator.permutation(len(frame)) + 1_000_000_000
    with atomic_write(path) as temporary:
        frame.to_csv(temporary, index=False)


def draw_pairs(tastes: Tastes, generator: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Distinct (user, item) pairs in order of user, about `tastes.ratings` of them."""
    wanted = _activity(tastes, generator)
    share = generator.dirichlet(np.full(tastes.tastes, tastes.focus), tastes.users).cumsum(1)
    appeal = _appeal(tastes, generator)
    pairs = np.empty(0, np.int64)
    missing, rounds = wanted, 0
    while missing.any():
        users = np.repeat(np.arange(tastes.users), missing)
        taste = (generator.random(users.size)[:, None] > share[users, :-1]).sum(1)
        # One search over all tastes: taste t's cumulative appeal lies in [t, t + 1].
        place = np.searchsorted(appeal.ravel(), taste + generator.random(users.size))
        pairs = np.unique(np.concatenate([pairs, users * tastes.items + place % tastes.items]))
        rounds += 1
        # Who has exhausted a taste draws the same items over and over: after some rounds only the minimum matters.
        due = wanted if rounds < _ROUNDS else np.full_like(wanted, tastes.min_ratings)
        missing = np.maximum(due - np.bincount(pairs // tastes.items, minlength=tastes.users), 0)
    return pairs // tastes.items, pairs % tastes.items


def _activity(tastes: Tastes, generator: np.random.Generator) -> NDArray[np.int64]:
    """Ratings per user: log-normal above the minimum, and never more than a third of the items."""
    mean = max(1.0, tastes.ratings / tastes.users - tastes.min_ratings)
    tail = generator.lognormal(sigma=1.3, size=tastes.users)
    wanted = tastes.min_ratings + np.rint(tail * mean / tail.mean()).astype(np.int64)
    return np.minimum(wanted, tastes.items // 3)


def _appeal(tastes: Tastes, generator: np.random.Generator) -> NDArray[np.float64]:
    """[tastes, items]: cumulative appeal of each taste, offset by the taste's number."""
    weights = np.arange(1, tastes.items + 1, dtype=np.float64) ** -tastes.skew
    appeal = np.stack([generator.permutation(weights) for _ in range(tastes.tastes)])
    appeal = appeal / appeal.sum(1, keepdims=True)
    return np.minimum(appeal.cumsum(1), 1.0) + np.arange(tastes.tastes)[:, None]

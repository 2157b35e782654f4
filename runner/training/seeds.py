"""Derive the independent random streams of a run from one seed."""

import hashlib
import random
from dataclasses import asdict, dataclass

import numpy as np
import torch

# The text that each stream is derived from. It is part of what a seed means: changing it changes every run.
_STREAM_KEYS = {
    "initialization": "initialisation",
    "data_order": "order",
    "dropout": "dropout",
    "sampling": "sampling",
}


@dataclass(frozen=True)
class Seeds:
    """Seeds of the four random streams of a run, each below 2**63."""

    initialization: int
    data_order: int
    dropout: int
    sampling: int

    def derive(self, stream: str, *parts: int) -> int:
        """Return a seed for one use of `stream`, such as one epoch; `parts` distinguish the uses."""
        return derive_seed(getattr(self, stream), *parts)


def derive_streams(seed: int, **overrides: int | None) -> Seeds:
    """Derive all four streams from `seed`; a stream given a number in `overrides` takes that number instead."""
    streams = {name: derive_seed(seed, key) for name, key in _STREAM_KEYS.items()}
    return Seeds(**(streams | {name: value for name, value in overrides.items() if value is not None}))


def derive_seed(*parts: int | str) -> int:
    """Return a seed below 2**63 that depends on every part: distinct parts give independent streams."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch (on all devices)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def mlperf_params(seeds: Seeds) -> dict[str, int]:
    """Return the seed of each stream under the key `seed_<stream>` for the MLPerf log."""
    return {f"seed_{name}": value for name, value in asdict(seeds).items()}

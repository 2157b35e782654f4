"""One seed, four independent streams, each of which can be set apart."""

import hashlib
import random
from dataclasses import asdict, dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Seeds:
    """Seeds of the four random streams of a run, each below 2**63."""

    initialisation: int
    order: int
    dropout: int
    sampling: int

    def of(self, stream: str, *parts: int) -> int:
        """A seed for one use of `stream`, such as one epoch's: `parts` tell the uses apart."""
        return mix(getattr(self, stream), *parts)


def derive(seed: int, **apart: int | None) -> Seeds:
    """Derives all four streams from `seed`; a stream named in `apart` with a number takes that number instead."""
    streams = {name: mix(seed, name) for name in Seeds.__dataclass_fields__}
    return Seeds(**(streams | {name: value for name, value in apart.items() if value is not None}))


def mix(*parts: int | str) -> int:
    """A seed below 2**63 that depends on every part: distinct parts give independent streams."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def start_stream(seed: int) -> None:
    """Restarts every global generator (Python, NumPy, torch on all devices) from `seed`."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def as_facts(seeds: Seeds) -> dict[str, int]:
    """The streams' seeds for the log, as `seed_<stream>`."""
    return {f"seed_{name}": value for name, value in asdict(seeds).items()}

"""What the stages of one rank share."""

from dataclasses import dataclass

import torch
from rich.console import Console

from ..config.schema import Config
from ..core.signals import StopSignal
from ..record.run_dir import RunDir
from ..training.distributed import World


@dataclass(frozen=True)
class Rank:
    """A rank that has joined the others."""

    config: Config
    run_dir: RunDir
    console: Console
    stop: StopSignal
    world: World
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this rank writes the run's files."""
        return self.world.rank == 0

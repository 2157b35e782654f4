"""The workloads that `timetrial accept` trains."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml


@dataclass(frozen=True)
class AcceptedWorkload:
    """A workload with the resource that limits it, and its overrides: on a GPU, on a CPU, and after them in replays."""

    limit: str
    gpu: tuple[str, ...]
    cpu: tuple[str, ...]
    replay: tuple[str, ...]

    def overrides(self, device_type: str) -> tuple[str, ...]:
        """Return the overrides for a device of PyTorch's type."""
        return self.cpu if device_type == "cpu" else self.gpu


@cache
def read_workloads() -> tuple[AcceptedWorkload, ...]:
    """Return the workloads of workloads.yaml."""
    entries = yaml.safe_load((Path(__file__).parent / "workloads.yaml").read_text(encoding="utf-8"))
    return tuple(
        AcceptedWorkload(entry["limit"], *(tuple(entry.get(kind, ())) for kind in ("gpu", "cpu", "replay")))
        for entry in entries
    )

"""Measured figures of timetrial's speed: `reference_data/performance.csv`."""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PERFORMANCE_FILE = Path(__file__).parent / "reference_data" / "performance.csv"
TRAINING = "training"
"""The quantity that is a training throughput."""


@dataclass(frozen=True)
class Measurement:
    """One measured figure: a row of `performance.csv`, whose columns are these fields."""

    workload: str
    """Name of the workload; empty for a rate of the GPU itself."""
    recipe: str
    """File in `conf/recipe/<workload>/`."""
    variant: str
    """What differs from timetrial's defaults; empty if nothing does. That of other code begins with `peer: `."""
    settings: str
    """Keys of `recipe` that determine the work of a sample. Runs are compared with the throughputs that have them."""
    data: str
    """Data loader."""
    quantity: str
    """`training`, `evaluation`, `step`, `kernels`, `time-to-train` and others."""
    value: float
    unit: str
    gpu: str
    gpus: int
    precision: str
    batch: int | None
    """Global batch size."""
    compile: str
    """Mode of torch.compile; empty for eager execution."""
    pytorch: str
    timetrial: str
    date: str
    """Day of the measurement."""
    commit: str
    """Commit that was measured or that recorded the figure."""
    current: bool
    """Whether the repository's code is still the code that was measured."""
    command: str
    note: str

    def __post_init__(self) -> None:
        if not self.value > 0:
            raise ValueError(f"{self.quantity} of {self.workload or self.gpu} is {self.value}, not a positive number")

    @property
    def configuration(self) -> tuple[Any, ...]:
        """What was measured and on which hardware: equal for all quantities of one configuration."""
        parts = (self.workload, self.recipe, self.variant, self.data)
        return (*parts, self.gpu, self.gpus, self.precision, self.batch, self.compile)

    @property
    def key(self) -> tuple[Any, ...]:
        """The identity of the row: a newer measurement with the same key replaces it."""
        return (*self.configuration, self.quantity)


@cache
def read_measurements() -> tuple[Measurement, ...]:
    """Return all rows of `performance.csv`."""
    flags = {"yes": True, "no": False}
    with open(PERFORMANCE_FILE, newline="", encoding="utf-8") as file:
        return tuple(
            Measurement(
                **row
                | {"value": float(row["value"]), "gpus": int(row["gpus"]), "current": flags[row["current"]]}  # type: ignore[arg-type]
                | {"batch": int(row["batch"]) if row["batch"] else None}
            )
            for row in csv.DictReader(file)
        )

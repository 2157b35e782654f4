"""Throughput that timetrial measured on known GPUs, beside which the result of a run can be put."""

import csv
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .run_record import RunRecord

_FILE = Path(__file__).parent / "reference_data" / "throughput.csv"
_UNITS = ("samples", "tokens")


@dataclass(frozen=True)
class ReferenceThroughput:
    """The training throughput of `gpus` GPUs of the model `gpu` in one setting, and the versions it was measured with.

    `settings` are the keys of `recipe` that determine the work of a sample. `rate` is in `unit` per second; `compile`
    is the mode of torch.compile, empty for eager execution.
    """

    workload: str
    scale: str
    settings: str
    data: str
    global_batch_size: int
    precision: str
    gpus: int
    gpu: str
    rate: float
    unit: str
    compile: str
    pytorch: str
    timetrial: str
    date: str
    source: str

    def __post_init__(self) -> None:
        if self.unit not in _UNITS or self.rate <= 0:
            raise ValueError(f"{self.rate} {self.unit} per second is no throughput")

    def matches(self, config: dict[str, Any]) -> bool:
        """Return whether the run of this configuration did the same work on as many GPUs."""
        expected = {
            "workload.name": self.workload,
            "engine.name": "torch",
            "data.loader": self.data,
            "precision.name": self.precision,
            "gpus": self.gpus,
            "recipe.scale": self.scale,
            "recipe.global_batch_size": self.global_batch_size,
        }
        settings = (setting.partition("=") for setting in self.settings.split())
        return (
            _look_up(config, "accelerator.name") != "cpu"
            and all(_look_up(config, key) == value for key, value in expected.items())
            and all(_format(_look_up(config, f"recipe.{key}")) == text for key, _, text in settings)
        )


@cache
def read_reference_throughput() -> tuple[ReferenceThroughput, ...]:
    """Return all measurements."""
    with open(_FILE, newline="", encoding="utf-8") as file:
        return tuple(
            ReferenceThroughput(
                **row
                | {name: int(row[name]) for name in ("global_batch_size", "gpus")}  # type: ignore[arg-type]
                | {"rate": float(row["rate"])}
            )
            for row in csv.DictReader(file)
        )


def compare_with_references(record: RunRecord) -> list[str]:
    """Return a run's throughput as a multiple of each measurement in the same setting, such as "0.62 x an H200"."""
    result = record.throughput or record.training
    if result is None:
        return []
    rates = {"samples": result.samples_per_second, "tokens": result.tokens_per_second}
    return [
        _format_ratio(rate / reference.rate, reference, record.config)
        for reference in read_reference_throughput()
        if (rate := rates[reference.unit]) and reference.matches(record.config)
    ]


def _format_ratio(ratio: float, reference: ReferenceThroughput, config: dict[str, Any]) -> str:
    article = "an" if reference.gpu[0] in "AEFHILMNORSX" else "a"
    gpus = f"{article} {reference.gpu}" if reference.gpus == 1 else f"{reference.gpus} {reference.gpu}s"
    details = [f"{reference.unit} per second, {reference.precision}, same batch"]
    if (_look_up(config, "engine.compile") or "") != reference.compile:
        details.append(f"there engine.compile={reference.compile or 'null'}")
    details.append(f"timetrial {reference.timetrial}, {reference.date[:7]}")
    return f"{ratio:.2f} x {gpus} ({'; '.join(details)})"


def _look_up(config: Any, key: str) -> Any:
    """Return the value of a key such as `recipe.scale`; None if there is none."""
    for part in key.split("."):
        config = config.get(part) if isinstance(config, dict) else None
    return config


def _format(value: Any) -> str:
    """Return a value as throughput.csv has it."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))

"""Compare the throughput of a run with that which timetrial measured on known GPUs."""

import json
from typing import Any

from .performance import TRAINING, Measurement, read_measurements
from .run_record import RunRecord


def reference_throughputs(config: dict[str, Any]) -> list[Measurement]:
    """Return the training throughputs of the same work on as many GPUs as the run of this configuration has."""
    return [row for row in read_measurements() if row.quantity == TRAINING and row.settings and _matches(row, config)]


def compare_with_references(record: RunRecord) -> list[str]:
    """Return a run's throughput as a multiple of each measurement in the same setting, such as "0.62 x an H200"."""
    result = record.throughput or record.training
    if result is None:
        return []
    return [
        _format_ratio(rate / reference.value, reference, record.config)
        for reference in reference_throughputs(record.config)
        if (rate := result.tokens_per_second if _is_text(reference) else result.samples_per_second)
    ]


def _matches(reference: Measurement, config: dict[str, Any]) -> bool:
    expected = {
        "workload.name": reference.workload,
        "engine.name": "torch",
        "data.loader": reference.data,
        "precision.name": reference.precision,
        "gpus": reference.gpus,
        "recipe.scale": reference.recipe,
        "recipe.global_batch_size": reference.batch,
    }
    settings = (setting.partition("=") for setting in reference.settings.split())
    return (
        look_up(config, "accelerator.name") != "cpu"
        and all(look_up(config, key) == value for key, value in expected.items())
        and all(_format(look_up(config, f"recipe.{key}")) == text for key, _, text in settings)
    )


def _format_ratio(ratio: float, reference: Measurement, config: dict[str, Any]) -> str:
    article = "an" if reference.gpu[0] in "AEFHILMNORSX" else "a"
    gpus = f"{article} {reference.gpu}" if reference.gpus == 1 else f"{reference.gpus} {reference.gpu}s"
    unit = "tokens" if _is_text(reference) else "samples"
    details = [f"{unit} per second, {reference.precision}, same batch"]
    if (look_up(config, "engine.compile") or "") != reference.compile:
        details.append(f"there engine.compile={reference.compile or 'null'}")
    code = "" if reference.current else "older code of "
    details.append(f"{code}timetrial {reference.timetrial}, {reference.date[:7]}")
    return f"{ratio:.2f} x {gpus} ({'; '.join(details)})"


def _is_text(reference: Measurement) -> bool:
    return reference.unit == "tokens/s"


def look_up(config: Any, key: str) -> Any:
    """Return the value of a key such as `recipe.scale`; None if there is none."""
    for part in key.split("."):
        config = config.get(part) if isinstance(config, dict) else None
    return config


def _format(value: Any) -> str:
    """Return a value in the form of performance.csv."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))

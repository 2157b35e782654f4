"""Compare configurations: a run is resumed only under its own."""

from collections.abc import Iterator
from typing import Any

# Keys that say where and how far a run goes, and may change when it is resumed.
_FREE_KEYS = {
    "run_dir",
    "resume",
    "runs_dir",
    "time_limit_seconds",
    "checkpoint.every_seconds",
    "checkpoint.at_end",
    "staging_dir",
    "system",
    "submission.platform",
    "telemetry.every_seconds",
    "observers.json_lines",
    "observers.tensorboard",
    "observers.wandb",
    "observers.mlflow",
    "observers.extra",
    "profile.steps",
    "workload.max_micro_batch",  # its effect is in tuning.micro_batch_size
    "usd_per_gpu_hour",
    "accelerator.usd_per_gpu_hour",
    "accelerator.usd_per_gpu",
}


def diff_configs(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Return the dotted keys in which two configurations differ and that a resumed run may not change."""
    first, second = dict(flatten(a)), dict(flatten(b))
    keys = (first.keys() | second.keys()) - _FREE_KEYS
    return sorted(key for key in keys if first.get(key) != second.get(key))


def flatten(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys and values of nested dictionaries."""
    if not isinstance(node, dict):
        yield prefix, node
        return
    for key, value in node.items():
        yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))

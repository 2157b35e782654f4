"""What tells one configuration from another: a run is resumed only under its own."""

from collections.abc import Iterator
from typing import Any

from omegaconf import OmegaConf


def diff_configs(begun: Any, asked: Any) -> list[str]:
    """Keys in which two configurations differ, leaving out those that only say where and how far a run goes."""
    free = {
        "run_dir",
        "resume",
        "runs",
        "time_limit_seconds",
        "checkpoint.every_seconds",
        "checkpoint.at_end",
        "staging_dir",
        "system",
        "submission.platform",
        "telemetry.every_seconds",
        "usd_per_gpu_hour",
        "accelerator.usd_per_gpu_hour",
        "accelerator.usd_per_gpu",
    }
    before, after = (dict(flatten(OmegaConf.to_container(node))) for node in (begun, asked))
    return sorted(key for key in before.keys() | after.keys() if key not in free and before.get(key) != after.get(key))


def flatten(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of nested dictionaries."""
    if not isinstance(node, dict):
        yield prefix, node
        return
    for key, value in node.items():
        yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))

"""Positions of a learning rate schedule, in epochs, which scale with the data, or in samples, as in references."""

from typing import Any


def check(settings: Any, name: str) -> None:
    """Raise ValueError unless exactly one of the settings `name`_epochs and `name`_samples is set, above 0."""
    values = [getattr(settings, f"{name}_{unit}") for unit in ("epochs", "samples")]
    if (values[0] is None) == (values[1] is None):
        raise ValueError(f"set either {name}_epochs or {name}_samples, and the other to null.")
    value = values[0] if values[1] is None else values[1]
    if min(value if isinstance(value, list) else [value]) <= 0:
        raise ValueError(f"{name}_epochs and {name}_samples must be above 0.")


def updates(settings: Any, name: str, data: Any) -> Any:
    """Return the position `name` in updates, or a list of them, for the `train_size` and batch of `data`."""
    samples, epochs = getattr(settings, f"{name}_samples"), getattr(settings, f"{name}_epochs")
    value, scale = (epochs, data.train_size) if samples is None else (samples, 1)
    if isinstance(value, list):
        return [round(entry * scale / data.global_batch_size) for entry in value]
    return round(value * scale / data.global_batch_size)

"""Data-sheet figures of accelerators, from conf/accelerator."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

_CONFIG_DIR = Path(__file__).parents[2] / "conf" / "accelerator"


def find_datasheet(device_name: str) -> dict[str, Any] | None:
    """Return the data sheet of the accelerator in a device name such as "Tesla V100-SXM2-16GB"; None if unknown."""
    words = re.split(r"[^a-z0-9]+", device_name.lower())
    sheets = accelerator_configs().items()
    return next((sheet for accelerator, sheet in sheets if sheet.get("tflops") and accelerator in words), None)


@cache
def accelerator_configs() -> dict[str, dict[str, Any]]:
    """Return the content of every file in conf/accelerator by its name; `auto` and `cpu` have no data sheet."""
    return {file.stem: yaml.safe_load(file.read_text()) for file in sorted(_CONFIG_DIR.glob("*.yaml"))}

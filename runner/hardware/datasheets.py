"""Data-sheet figures of accelerators, from conf/accelerator."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

# Words that NVIDIA's drivers add to the names of MIG instances and virtual GPUs: "A100 MIG 1g.5gb", "GRID A100-10C".
_PART_OF_A_GPU = re.compile(r"mig|grid|\d+[abcq]")
_CONFIG_DIR = Path(__file__).parents[2] / "conf" / "accelerator"


def find_accelerator(device_name: str) -> str | None:
    """Return the accelerator config of a device name such as "Tesla V100-SXM2-16GB"; None if there is none.

    All words of the config's name, such as the two of "h100_pcie", are in the device name; of several such configs it
    is the one with the longest name. A part of a GPU, a MIG instance or a virtual GPU, has none.
    """
    words = set(_words(device_name))
    if any(_PART_OF_A_GPU.fullmatch(word) for word in words):
        return None
    known = [name for name, sheet in accelerator_configs().items() if sheet.get("tflops")]
    return max((name for name in known if words.issuperset(_words(name))), key=len, default=None)


def _words(name: str) -> list[str]:
    return re.split(r"[^a-z0-9]+", name.lower())


def find_datasheet(device_name: str) -> dict[str, Any] | None:
    """Return the data sheet of the accelerator in a device name; None if unknown."""
    return accelerator_configs().get(find_accelerator(device_name) or "")


@cache
def accelerator_configs() -> dict[str, dict[str, Any]]:
    """Return the content of every file in conf/accelerator by its name; `auto` and `cpu` have no data sheet."""
    return {file.stem: yaml.safe_load(file.read_text()) for file in sorted(_CONFIG_DIR.glob("*.yaml"))}

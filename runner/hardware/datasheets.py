"""Data-sheet facts of cards, from conf/accelerator."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

_FOLDER = Path(__file__).parents[2] / "conf" / "accelerator"


def card_of(name: str) -> dict[str, Any] | None:
    """The facts of the card that `name` contains, such as "Tesla V100-SXM2-16GB"; None for a card without a file."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    return next((facts for known, facts in groups().items() if facts.get("tflops") and known in words), None)


@cache
def groups() -> dict[str, dict[str, Any]]:
    """What each file says, by its name: cards, and what stands for cards that have none."""
    return {file.stem: yaml.safe_load(file.read_text()) for file in sorted(_FOLDER.glob("*.yaml"))}

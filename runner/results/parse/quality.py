"""Quality in all the forms that logs have it: numbers, texts, lists, nested dicts; percent or fractions."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .mllog import Event, number

_BLEU = ("gnmt", "transformer")
_BOXES = ("bbox", "box")
_MASKS = ("segm", "mask")
# A quality this much below the target is the target: what was printed is rounded.
_ROUNDING = 1e-5


def meets(quality: Mapping[str, float], target: Mapping[str, float]) -> bool:
    """True if every metric of `target` is reached; metrics are matched by name, a single one by being alone."""
    if not target:
        return False
    if len(target) == 1 and len(quality) == 1:
        return next(iter(quality.values())) >= next(iter(target.values())) - _ROUNDING
    return all(quality.get(metric, -math.inf) >= least - _ROUNDING for metric, least in target.items())


def numbers(value: Any, benchmark: str) -> dict[str, float]:
    """Numbers by metric out of a number, a text, a list or a nested dict; empty where there is none."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = number(value)
    if isinstance(value, dict):
        if isinstance(value.get("value"), int | float | str | list | dict) and "value" in value:
            return numbers(value["value"], benchmark)
        found: dict[str, float] = {}
        for key, inner in value.items():
            name = str(key).lower()
            metric = "BBOX" if name.startswith(_BOXES) else "SEGM" if name.startswith(_MASKS) else str(key)
            if isinstance(inner, dict):
                nested = numbers(inner, benchmark)
                known = metric in ("BBOX", "SEGM") and nested
                found |= {metric: next(iter(nested.values()))} if known else nested
            elif math.isfinite(number(inner)) and name not in ("epoch", "epoch_num", "step"):
                found.setdefault(metric, number(inner))
        if benchmark != "maskrcnn" and len(found) > 1:
            found = dict([next(iter(found.items()))])
        return found
    if isinstance(value, list):
        entries = [number(entry) for entry in value]
        if benchmark == "maskrcnn" and len(entries) >= 2:
            return {"BBOX": entries[0], "SEGM": entries[1]}
        value = entries[0] if entries else math.nan
    single = number(value)
    return {"value": single} if math.isfinite(single) else {}


def scale(
    events: Sequence[Event],
    qualities: Sequence[Mapping[str, float]],
    benchmark: str,
    dialect: str,
    note: Callable[[str], None],
) -> float:
    """100 for percent, 1 for fractions, decided on the whole log: a lone BLEU of 0.67 may be percent all the same."""
    largest = max((value for quality in qualities for value in quality.values()), default=0.0)
    stated = [max(numbers(event.value, benchmark).values(), default=0.0) for event in events if "target" in event.key]
    if largest > 1 or max(stated, default=0.0) > 1:
        note("quality is logged in percent")
        return 100.0
    if qualities and benchmark in _BLEU and dialect in ("v0.5", "v0.6"):
        note("no BLEU exceeds 1: taken for percent, as all logs of this round are")
        return 100.0
    return 1.0

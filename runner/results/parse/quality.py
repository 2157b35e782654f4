"""Quality values in all the forms that logs use: numbers, text, lists, nested dicts; percent or fractions."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .mllog import LogEntry, to_float

_BLEU_BENCHMARKS = ("gnmt", "transformer")
_BOX_PREFIXES = ("bbox", "box")
_MASK_PREFIXES = ("segm", "mask")
_TOLERANCE = 1e-5  # printed values are rounded


def meets_target(quality: Mapping[str, float], target: Mapping[str, float]) -> bool:
    """Return True if every metric of `target` is reached.

    Metrics are matched by name; a single metric matches a single metric of any name.
    """
    if not target:
        return False
    if len(target) == 1 and len(quality) == 1:
        return next(iter(quality.values())) >= next(iter(target.values())) - _TOLERANCE
    return all(quality.get(metric, -math.inf) >= minimum - _TOLERANCE for metric, minimum in target.items())


def parse_quality(value: Any, benchmark: str) -> dict[str, float]:
    """Return the numbers by metric in a number, text, list or nested dict; empty if there are none.

    A number without a name has the metric "value". Only Mask R-CNN has more than one metric: BBOX and SEGM.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = to_float(value)
    if isinstance(value, dict):
        return _parse_dict(value, benchmark)
    if isinstance(value, list):
        entries = [to_float(entry) for entry in value]
        if benchmark == "maskrcnn" and len(entries) >= 2:
            return {"BBOX": entries[0], "SEGM": entries[1]}
        value = entries[0] if entries else math.nan
    number = to_float(value)
    return {"value": number} if math.isfinite(number) else {}


def _parse_dict(value: dict[Any, Any], benchmark: str) -> dict[str, float]:
    if isinstance(value.get("value"), int | float | str | list | dict) and "value" in value:
        return parse_quality(value["value"], benchmark)
    metrics: dict[str, float] = {}
    for key, inner in value.items():
        name = str(key).lower()
        metric = "BBOX" if name.startswith(_BOX_PREFIXES) else "SEGM" if name.startswith(_MASK_PREFIXES) else str(key)
        if isinstance(inner, dict):
            nested = parse_quality(inner, benchmark)
            is_named = metric in ("BBOX", "SEGM") and nested
            metrics |= {metric: next(iter(nested.values()))} if is_named else nested
        elif math.isfinite(to_float(inner)) and name not in ("epoch", "epoch_num", "step"):
            metrics.setdefault(metric, to_float(inner))
    if benchmark != "maskrcnn" and len(metrics) > 1:
        metrics = dict([next(iter(metrics.items()))])
    return metrics


def quality_scale(
    entries: Sequence[LogEntry],
    qualities: Sequence[Mapping[str, float]],
    benchmark: str,
    dialect: str,
    note: Callable[[str], None],
) -> float:
    """Return 100 if the log's qualities are percentages, 1 if they are fractions.

    The whole log decides, because a BLEU of 0.67 early in training can be a percentage.
    """
    largest = max((value for quality in qualities for value in quality.values()), default=0.0)
    targets = [
        max(parse_quality(entry.value, benchmark).values(), default=0.0) for entry in entries if "target" in entry.key
    ]
    if largest > 1 or max(targets, default=0.0) > 1:
        note("quality is logged in percent")
        return 100.0
    if qualities and benchmark in _BLEU_BENCHMARKS and dialect in ("v0.5", "v0.6"):
        note("no BLEU exceeds 1: interpreted as percent, like all logs of this round")
        return 100.0
    return 1.0

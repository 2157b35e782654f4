"""Quality values in all the forms that logs use: numbers, text, lists, nested dicts; percent or fractions."""

import ctypes
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core.found_files import as_data, as_name
from . import rules
from .mllog import LogEntry, to_float

_BLEU_BENCHMARKS = ("gnmt", "transformer")
_BOX_PREFIXES = ("bbox", "box")
_MASK_PREFIXES = ("segm", "mask")


def meets_target(
    quality: Mapping[str, float],
    target: Mapping[str, float],
    *,
    lower_is_better: bool = False,
    scale: float = 1.0,
    dialect: str = "",
) -> bool:
    """Return True if every metric of `target` is reached by `quality`, which is in units of 1 / `scale`.

    A metric is reached at or below its target if the rules know it as a loss, or with `lower_is_better`, which is what
    a log states.

    Values count as logged, without a tolerance. There are two exceptions: percentages are compared in single precision,
    in which frameworks compute them (21.799999 is 21.8), and logs of v0.5 at the five decimals that its reference code
    prints (0.2119980 is 0.212). Metrics are matched by name; a single metric matches a single metric of any name.
    """
    if len(target) == 1 and len(quality) == 1:
        quality = dict(zip(target, quality.values(), strict=True))
    return bool(target) and all(
        quality.get(metric, math.inf) <= bound
        if lower_is_better or metric in rules.LOWER_IS_BETTER
        else _is_at_least(quality.get(metric, math.nan), bound, scale, dialect)
        for metric, bound in target.items()
    )


def _is_at_least(value: float, bound: float, scale: float, dialect: str) -> bool:
    if scale != 1:
        return ctypes.c_float(value).value >= ctypes.c_float(bound * scale).value
    return (round(value, 5) if dialect == "v0.5" else value) >= bound


def parse_quality(value: Any, benchmark: str) -> dict[str, float]:
    """Return the numbers by metric in a number, text, list or nested dict; empty if there are none.

    A number without a name has the metric "value". Only benchmarks whose target has several metrics keep more than one.
    """
    if isinstance(value, str):
        try:
            value = as_data(json.loads(value), finite=False)
        except (ValueError, RecursionError):
            value = to_float(value)
    if isinstance(value, dict):
        return _parse_dict(value, benchmark)
    if isinstance(value, list):
        entries = [to_float(entry) for entry in value]
        metrics = rules.metric_names(benchmark)
        if len(entries) >= len(metrics) > 1:
            return dict(zip(metrics, entries, strict=False))
        value = entries[0] if entries else math.nan
    number = to_float(value)
    return {"value": number} if math.isfinite(number) else {}


def _parse_dict(value: dict[Any, Any], benchmark: str) -> dict[str, float]:
    if isinstance(value.get("value"), int | float | str | list | dict) and "value" in value:
        return parse_quality(value["value"], benchmark)
    metrics: dict[str, float] = {}
    for key, inner in value.items():
        name = str(key).lower()
        metric = (
            "BBOX" if name.startswith(_BOX_PREFIXES) else "SEGM" if name.startswith(_MASK_PREFIXES) else as_name(key)
        )
        if isinstance(inner, dict):
            nested = parse_quality(inner, benchmark)
            is_named = metric in ("BBOX", "SEGM") and nested
            metrics |= {metric: next(iter(nested.values()))} if is_named else nested
        elif math.isfinite(to_float(inner)) and name not in ("epoch", "epoch_num", "step"):
            metrics.setdefault(metric, to_float(inner))
    if len(rules.metric_names(benchmark)) <= 1 < len(metrics):
        metrics = dict([next(iter(metrics.items()))])
    return metrics


def target_as_fractions(
    logged: Mapping[str, float], benchmark: str, *, lower_is_better: bool = False
) -> Mapping[str, float]:
    """Return a logged target by the metric of the rules, from percent if it exceeds 1 and is no loss."""
    metrics = rules.metric_names(benchmark)
    if len(logged) == len(metrics) == 1:
        logged = dict(zip(metrics, logged.values(), strict=True))
    is_loss = lower_is_better or rules.LOWER_IS_BETTER.intersection(logged)
    is_percent = max(logged.values()) > 1 and not is_loss
    return {metric: value / 100 if is_percent else value for metric, value in logged.items()}


def quality_scale(
    entries: Sequence[LogEntry],
    qualities: Sequence[Mapping[str, float]],
    benchmark: str,
    dialect: str,
    note: Callable[[str], None],
    *,
    lower_is_better: bool = False,
) -> float:
    """Return 100 if the log's qualities are percentages, 1 if they are fractions or losses.

    The whole log decides, because a BLEU of 0.67 early in training can be a percentage.
    """
    if lower_is_better or rules.LOWER_IS_BETTER.intersection(rules.metric_names(benchmark)):
        return 1.0
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

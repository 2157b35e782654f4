"""Check that no rate exceeds the peak of its accelerator or is far from all comparable ones."""

import re
import statistics
from collections.abc import Iterable, Sequence
from functools import cache

from ...hardware.datasheets import find_datasheet
from ..parse import external, rules
from ..parse.external import ExternalMeasurement
from .findings import Finding, FindingKind
from .groups import RunGroup

_MAX_FACTOR = 5.0  # faster or slower per accelerator than comparable rates
_ANCHORS = external.REFERENCE_DATA / "anchors.csv"


def check(groups: Sequence[RunGroup], measurements: Sequence[ExternalMeasurement]) -> list[Finding]:
    """Flag rates above an accelerator's peak, far from the median of comparable ones or from published ones."""
    rates = [(group, rate) for group in groups if (rate := group.throughput_per_accelerator)]
    by_kind = [(group.title, (group.model, _accelerator_name(group)), rate) for group, rate in rates]
    return [
        *(finding for group, rate in rates if (finding := _check_peak(group, rate))),
        *(finding for group, rate in rates if (finding := _check_published(group, rate))),
        *_find_outliers(by_kind),
        *_find_outliers(_measurement_rates(measurements)),
    ]


def _accelerator_name(group: RunGroup) -> str:
    sheet = find_datasheet(group.runs[0].accelerator)
    return str(sheet["name"]) if sheet else group.runs[0].accelerator


def _check_peak(group: RunGroup, rate: float) -> Finding | None:
    sheet, flops = find_datasheet(group.runs[0].accelerator), rules.train_flops_per_sample(group.model)
    if not sheet or not flops:
        return None
    precision = group.runs[0].precision
    peaks = [peak for name, peak in sheet["tflops"].items() if peak and precision in ("", name)]
    if not peaks:
        return None
    fraction = rate * flops / (max(peaks) * 1e12)
    if fraction <= 1:
        return None
    return Finding(
        FindingKind.FLAG,
        group.title,
        f"{fraction:.0%} of the data sheet peak ({rate:,.0f} samples per second per accelerator), which is impossible: "
        "the number of samples, the number of accelerators or the clock is wrong.",
    )


def _check_published(group: RunGroup, rate: float) -> Finding | None:
    """Flag a rate far from the one published for the same accelerator in half precision."""
    run = group.runs[0]
    words = re.split(r"[^a-z0-9]+", run.accelerator.lower())
    if not run.accelerator or (run.run_record is not None and run.scale != "reference"):
        return None
    for anchor in _read_anchors():
        accelerator = anchor.accelerator.lower().split()[0].split("-")[0]
        if anchor.workload == group.model and accelerator in words and anchor.value:
            factor = rate / anchor.value
            if not 1 / _MAX_FACTOR < factor < _MAX_FACTOR:
                return Finding(
                    FindingKind.FLAG,
                    group.title,
                    f"{rate:,.0f} samples per second per accelerator is {factor:.2g} times the rate that "
                    f"{anchor.source} publishes for {anchor.accelerator} ({anchor.value:,.0f}).",
                )
    return None


@cache
def _read_anchors() -> tuple[ExternalMeasurement, ...]:
    return tuple(external.read_measurements(_ANCHORS))


_Rate = tuple[str, tuple[object, ...], float]  # title, kind, samples per second per accelerator


def _measurement_rates(measurements: Sequence[ExternalMeasurement]) -> list[_Rate]:
    return [
        (
            entry.title,
            (entry.study, entry.workload, entry.accelerator, entry.precision, entry.batch),
            (entry.value or 0) / entry.num_accelerators,
        )
        for entry in external.select_metric(measurements, "samples_per_second")
    ]


def _find_outliers(rates: Iterable[_Rate]) -> list[Finding]:
    """Flag rates that are far from the median of the others of their kind."""
    kinds: dict[tuple[object, ...], list[tuple[str, float]]] = {}
    for title, kind, rate in rates:
        kinds.setdefault(kind, []).append((title, rate))
    findings = []
    for same in kinds.values():
        for index, (title, rate) in enumerate(same):
            others = [other for position, (_, other) in enumerate(same) if position != index]
            if not others or not rate:
                continue
            factor = rate / statistics.median(others)
            if not 1 / _MAX_FACTOR < factor < _MAX_FACTOR:
                message = (
                    f"Outlier: {factor:.3g} times the median of {len(others)} comparable results "
                    f"({rate:,.0f} samples per second per accelerator)."
                )
                findings.append(Finding(FindingKind.FLAG, title, message))
    return findings

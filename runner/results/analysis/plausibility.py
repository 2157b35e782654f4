"""Plausibility: no figure above what the card can do, and none far from all of its kind."""

import re
import statistics
from collections.abc import Iterable, Sequence
from functools import cache

from ...hardware.datasheets import card_of
from ..parse import external, rules
from ..parse.external import Figure
from .findings import Finding
from .groups import Cell

_OUTLIER = 5.0  # times faster or slower, per card, than the median of its kind
_ANCHORS = external.KNOWN / "anchors.csv"


def findings(cells: Sequence[Cell], figures: Sequence[Figure]) -> list[Finding]:
    """Flags for what exceeds a card's peak, stands apart from its kind or from published anchors."""
    rates = [(cell, rate) for cell in cells if (rate := cell.rate_per_card)]
    return [
        *(found for cell, rate in rates if (found := _above_peak(cell, rate))),
        *(found for cell, rate in rates if (found := _off_anchor(cell, rate))),
        *_outliers(
            [(cell.title, (cell.model, _card(cell)), rate) for cell, rate in rates], "samples a second per card"
        ),
        *_outliers_of_figures(figures),
    ]


def _card(cell: Cell) -> str:
    facts = card_of(cell.runs[0].accelerator)
    return str(facts["name"]) if facts else cell.runs[0].accelerator


def _above_peak(cell: Cell, rate: float) -> Finding | None:
    facts, operations = card_of(cell.runs[0].accelerator), rules.train_operations(cell.model)
    if not facts or not operations:
        return None
    precision = cell.runs[0].precision
    peaks = [peak for name, peak in facts["tflops"].items() if peak and precision in ("", name)]
    if not peaks:
        return None
    share = rate * operations / (max(peaks) * 1e12)
    if share <= 1:
        return None
    return Finding(
        "flag",
        cell.title,
        f"{share:.0%} of the peak of its card ({rate:,.0f} samples a second per card): no card does more than it can, "
        "so the sample count, the number of cards or the clock is wrong.",
    )


def _off_anchor(cell: Cell, rate: float) -> Finding | None:
    """Against throughput that others have published for one such card in half precision."""
    own = cell.runs[0].accelerator.lower()
    if not own or (cell.runs[0].own and cell.runs[0].scale != "reference"):
        return None
    for anchor in _anchors():
        card = anchor.card.lower().split()[0].split("-")[0]
        if anchor.workload == cell.model and card in re.split(r"[^a-z0-9]+", own) and anchor.value:
            factor = rate / anchor.value
            if not 1 / _OUTLIER < factor < _OUTLIER:
                return Finding(
                    "flag",
                    cell.title,
                    f"{rate:,.0f} samples a second per card is {factor:.2g} times what {anchor.source} publishes for "
                    f"{anchor.card} ({anchor.value:,.0f}).",
                )
    return None


@cache
def _anchors() -> tuple[Figure, ...]:
    return tuple(external.read_figures(_ANCHORS))


def _outliers_of_figures(figures: Sequence[Figure]) -> list[Finding]:
    rates = external.measured(figures, "samples_per_second")
    kinds = [
        (
            figure.cell,
            (figure.study, figure.workload, figure.card, figure.precision, figure.batch),
            (figure.value or 0) / figure.count,
        )
        for figure in rates
    ]
    return _outliers(kinds, "samples a second per card")


def _outliers(items: Iterable[tuple[str, tuple[object, ...], float]], unit: str) -> list[Finding]:
    """Items (title, kind, value) that lie far from the median of the others of their kind."""
    kinds: dict[tuple[object, ...], list[tuple[str, float]]] = {}
    for title, kind, value in items:
        kinds.setdefault(kind, []).append((title, value))
    found = []
    for same in kinds.values():
        for index, (title, value) in enumerate(same):
            others = [other for place, (_, other) in enumerate(same) if place != index]
            if not others or not value:
                continue
            factor = value / statistics.median(others)
            if not 1 / _OUTLIER < factor < _OUTLIER:
                sentence = (
                    f"{factor:.3g} times the median of its {len(others)} siblings ({value:,.0f} {unit}): an outlier."
                )
                found.append(Finding("flag", title, sentence))
    return found

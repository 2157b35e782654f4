"""What a reader should be told: scaling and its super-linear cells, effects of a switch, cards on a line."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...hardware.datasheets import card_of
from ..parse.external import OWN, Figure, measured
from . import stats
from .groups import Cell
from .stats import Line

_SUPER_LINEAR = 1.05  # efficiency from which more cards gave more than their share
_NO_SPEEDUP = 0.02  # a precision that changes the rate by less than this was not in effect
_SUSPICIOUS = 0.05  # one card alone cannot gain or lose this much by a link to others


@dataclass(frozen=True)
class Finding:
    """A sentence about something; `kind` is "banner" (stop and read), "flag" (doubtful) or "note"."""

    kind: str
    about: str
    sentence: str


@dataclass(frozen=True)
class Scaling:
    """How one work scales over the number of one card: `speedup` and `efficiency` against the smallest count.

    `basis` says of what: "time-to-train" or "throughput"; `super_linear` marks counts with more than their share.
    `source` is the study, or the work as `Cell.work` names it for cells.
    """

    title: str
    source: str
    work: str
    card: str
    basis: str
    counts: list[int]
    speedup: list[float]
    efficiency: list[float]
    super_linear: list[bool]


@dataclass(frozen=True)
class CardLine:
    """Speed of cards against a peak of theirs, with a line through the origin; `peak` and `unit` name the peak.

    Speed is passes a second for borrowed figures, samples a second per card for cells.
    """

    work: str
    cards: list[str]
    peaks: list[float]
    speeds: list[float]
    line: Line
    peak: str
    unit: str
    speed: str


def scalings(cells: Iterable[Cell], figures: Sequence[Figure]) -> list[Scaling]:
    """Scaling of own and published cells by time-to-train, and of borrowed figures by what they tell."""
    found = []
    groups: dict[tuple[str, str, str, str, str], list[Cell]] = {}
    for cell in cells:
        run = cell.runs[0]
        if run.num_accelerators and run.accelerator and cell.minutes:
            key = (cell.work, cell.model, cell.submitter, run.accelerator, run.precision)
            groups.setdefault(key, []).append(cell)
    for key, same in groups.items():
        by_count = {int(cell.runs[0].num_accelerators or 0): cell.mean_minutes.estimate for cell in same}
        if len(by_count) > 1:
            work, model, submitter, card, precision = key
            maker = "" if card.startswith(submitter) else submitter
            title = " ".join(part for part in (maker, card, precision) if part)
            found.append(_scaling(title, work, model, card, "time-to-train", by_count, lambda minutes: 1 / minutes))
    return found + _borrowed_scalings(figures)


def _borrowed_scalings(figures: Sequence[Figure]) -> list[Scaling]:
    found = []
    rates: dict[tuple[str, str, str, str, str], list[Figure]] = {}
    for figure in measured(figures, "samples_per_second"):
        key = (figure.workload, figure.card, figure.precision, figure.interconnect, figure.study)
        rates.setdefault(key, []).append(figure)
    for key, alike in rates.items():
        if key[3] and not any(figure.count == 1 for figure in alike):  # one card alone has no links
            alike += [figure for figure in rates.get((*key[:3], "", key[4]), ()) if figure.count == 1]
        for same in _of_one_batch(alike):
            by_count = {figure.count: figure.value or 0.0 for figure in same}
            if len(by_count) > 1:
                title = ", ".join(part for part in key[:-1] if part)
                found.append(_scaling(title, key[-1], key[0], key[1], "throughput", by_count, lambda rate: rate))
    gains: dict[tuple[str, str, str], dict[int, float]] = {}
    for figure in measured(figures, "speedup"):
        if figure.against == f"1 x {figure.card}":
            gains.setdefault((figure.study, figure.workload, figure.card), {1: 1.0})[figure.count] = figure.value or 0.0
    for (study, work, card), ups in gains.items():
        found.append(_scaling(f"{work}, {card}", study, work, card, "time-to-train", ups, lambda gain: gain))
    return found


def _of_one_batch(figures: Sequence[Figure]) -> list[list[Figure]]:
    """All, unless a number of cards has several batches: then those of each batch."""
    if len({figure.count for figure in figures}) == len(figures):
        return [list(figures)]
    return [[figure for figure in figures if figure.batch == batch] for batch in {figure.batch for figure in figures}]


def _scaling(
    title: str, source: str, work: str, card: str, basis: str, values: dict[int, float], speed: Callable[[float], float]
) -> Scaling:
    counts = sorted(values)
    speedup = [speed(values[count]) / speed(values[counts[0]]) for count in counts]
    efficiency = [gain * counts[0] / count for gain, count in zip(speedup, counts, strict=True)]
    return Scaling(
        title, source, work, card, basis, counts, speedup, efficiency, [share > _SUPER_LINEAR for share in efficiency]
    )


_PEAKS = (("FP32 peak", "TFLOP/s", "peak_tflops"), ("memory bandwidth", "GB/s", "bandwidth_gb_s"))


def card_lines(figures: Sequence[Figure], cells: Sequence[Cell]) -> list[CardLine]:
    """For every work that was measured on three and more cards whose FP32 peak, or bandwidth, is known."""
    found = []
    for peak, unit, metric in _PEAKS:
        known = {
            (figure.study, figure.card): figure.value or 0.0
            for figure in measured(figures, metric)
            if figure.precision in ("fp32", "")
        }
        groups: dict[tuple[str, str, str], list[Figure]] = {}
        for figure in measured(figures, "milliseconds"):
            if figure.precision == "fp32" and (figure.study, figure.card) in known:
                groups.setdefault((figure.study, figure.workload, figure.task), []).append(figure)
        for (study, workload, task), same in groups.items():
            points = [(figure.card, known[study, figure.card], 1000 / (figure.value or math.inf)) for figure in same]
            found += _card_line(f"{workload}, {task}", points, peak, unit, "passes a second")
        works: dict[str, dict[str, tuple[str, float, float]]] = {}
        for cell in cells:
            facts = card_of(cell.runs[0].accelerator)
            most = facts and (facts["tflops"].get("fp32") if metric == "peak_tflops" else facts.get("bandwidth_gb_s"))
            if facts and most and cell.rate_per_card:
                works.setdefault(cell.work, {}).setdefault(facts["name"], (facts["name"], most, cell.rate_per_card))
        for work, points_of in works.items():
            found += _card_line(work, list(points_of.values()), peak, unit, "samples a second per card")
    return found


def _card_line(
    work: str, points: Sequence[tuple[str, float, float]], peak: str, unit: str, speed: str
) -> list[CardLine]:
    if len(points) < 3:
        return []
    cards, x, y = (list(values) for values in zip(*points, strict=True))
    return [CardLine(work, cards, x, y, stats.through_origin(x, y), peak, unit, speed)]


def of_cells(cells: Sequence[Cell]) -> list[Finding]:
    """Cells that differ in precision alone and not in speed: the switch was very likely not in effect."""
    groups: dict[tuple[object, ...], dict[str, Cell]] = {}
    for cell in cells:
        run = cell.runs[0]
        if run.precision and cell.rate_per_card:
            key = (cell.work, cell.system, run.accelerator, run.num_accelerators, run.global_batch_size)
            groups.setdefault(key, {})[run.precision] = cell
    found = []
    for by_precision in groups.values():
        full = by_precision.get("fp32")
        for half in ("fp16", "bf16"):
            if full and half in by_precision:
                gain = (by_precision[half].rate_per_card or 0.0) / (full.rate_per_card or math.inf)
                if abs(gain - 1) < _NO_SPEEDUP:
                    told = f"{half} speed-up {gain:.2f} over fp32: the precision switch very likely had no effect."
                    found.append(Finding("flag", by_precision[half].title, told))
    return found


def of_figures(figures: Sequence[Figure], scaled: Sequence[Scaling], lines: Sequence[CardLine]) -> list[Finding]:
    """All that borrowed figures give reason to say."""
    return [
        *(found for scaling in scaled for found in _of_scaling(scaling)),
        *_of_epochs(figures),
        # Own runs with and without links are paired by their whole configuration, in `speeds`.
        *_of_interconnect([figure for figure in figures if figure.source != OWN]),
        *_of_precision(figures),
        *_of_outcomes(figures),
        *(_of_line(line) for line in lines),
    ]


def _of_scaling(scaling: Scaling) -> Iterable[Finding]:
    reason = {
        "time-to-train": "the epochs must have fallen, so this time-to-train says more of the recipe than of the cards",
        "throughput": "more cards cannot do more than their share, so the figure of the fewest cards is too low",
    }[scaling.basis]
    for count, gain, above in zip(scaling.counts, scaling.speedup, scaling.super_linear, strict=True):
        if above:
            factor = count / scaling.counts[0]
            told = f"Super-linear: {gain:.1f} times faster on {count} cards, {factor:g} times as many; {reason}."
            yield Finding("flag", scaling.title, told)


def _of_epochs(figures: Sequence[Figure]) -> Iterable[Finding]:
    """Works whose epochs differ between cards or counts: their time-to-train compares recipes."""
    works: dict[tuple[str, str], list[Figure]] = {}
    for figure in measured(figures, "epochs"):
        works.setdefault((figure.study, figure.workload), []).append(figure)
    for (_, work), same in works.items():
        values = [figure.value or 0.0 for figure in same]
        if max(values) > 1.05 * min(values):
            listed = "; ".join(
                f"{card} x {', '.join(str(figure.count) for figure in same if figure.card == card)}: "
                f"{', '.join(f'{figure.value:g}' for figure in same if figure.card == card)}"
                for card in dict.fromkeys(figure.card for figure in same)
            )
            yield Finding(
                "banner",
                work,
                f"These cells cannot be compared by time-to-train: the epochs to converge differ by up to "
                f"{max(values) / min(values):.1f} times ({listed}); throughput is what can be compared.",
            )


def _of_interconnect(figures: Sequence[Figure]) -> Iterable[Finding]:
    """The effect of a link, over all cells that were measured with and without it."""
    for study in dict.fromkeys(figure.study for figure in figures):
        cells: dict[tuple[str, str, str, int | None, int], dict[str, float]] = {}
        for figure in measured([figure for figure in figures if figure.study == study], "samples_per_second"):
            key = (figure.workload, figure.card, figure.precision, figure.batch, figure.count)
            cells.setdefault(key, {})[figure.interconnect] = figure.value or 0.0
        for link in dict.fromkeys(name for values in cells.values() for name in values):
            pairs = [(key, values[link], values.get(f"no {link}")) for key, values in cells.items() if link in values]
            yield from _of_link(link, {key: rate / without for key, rate, without in pairs if without})


def _of_link(link: str, ratios: Mapping[tuple[str, str, str, int | None, int], float]) -> Iterable[Finding]:
    """What a link does, by rates with it over rates without."""
    several = [ratio for key, ratio in ratios.items() if key[4] != 1]
    if len(several) > 2:
        effect = stats.interval(several)
        low, mid, high = effect.low, effect.estimate, effect.high
        verdict = "no effect at 95%" if low <= 1 <= high else f"an effect of {mid - 1:+.1%}"
        yield Finding(
            "note",
            "interconnect",
            f"{link}: {verdict} on several cards (rate with over without {mid:.3f}, {low:.3f} to {high:.3f} over "
            f"{len(several)} cells); single cells without repeats carry no interval of their own.",
        )
    alone = {key: ratio for key, ratio in ratios.items() if key[4] == 1 and abs(ratio - 1) > _SUSPICIOUS}
    if alone:
        listed = ", ".join(f"{key[0]} {key[2]} {ratio - 1:+.0%}" for key, ratio in alone.items())
        yield Finding(
            "flag",
            "interconnect",
            f"{link} cannot change what one card does alone, yet {listed}: something else differed, and repeats "
            "would have shown it.",
        )


def _of_precision(figures: Sequence[Figure]) -> Iterable[Finding]:
    """A half precision that is no faster than full precision, each at its best batch, was very likely not in effect."""
    rates: dict[tuple[str, str, str, str, int], dict[str, float]] = {}
    for figure in measured(figures, "samples_per_second"):
        key = (figure.study, figure.workload, figure.card, figure.interconnect, figure.count)
        same = rates.setdefault(key, {})
        same[figure.precision] = max(figure.value or 0.0, same.get(figure.precision, 0.0))
    doubtful: dict[tuple[str, str], list[float]] = {}
    for key, values in rates.items():
        for half in ("fp16", "bf16"):
            if half in values and "fp32" in values and abs(values[half] / values["fp32"] - 1) < _NO_SPEEDUP:
                doubtful.setdefault((key[1], half), []).append(values[half] / values["fp32"])
    for (work, half), gains in doubtful.items():
        yield Finding(
            "flag",
            work,
            f"{half} speed-up {min(gains):.2f} to {max(gains):.2f} over fp32: the precision "
            "switch very likely had no effect.",
        )


def _of_outcomes(figures: Sequence[Figure]) -> Iterable[Finding]:
    cells = dict.fromkeys((figure.cell, figure.outcome) for figure in figures if figure.value is None)
    for cell, outcome in cells:
        yield Finding("note", cell, f"{outcome}: a result of its own, shown as such and never as 0.")


def _of_line(found: CardLine) -> Finding:
    worst = int(np.argmax(np.abs(found.line.residuals)))
    return Finding(
        "note",
        found.work,
        f"Speed against {found.peak} through the origin, {len(found.cards)} cards: R2 {found.line.r2_uncentred:.3f} "
        f"uncentred, but {found.line.r2_centred:.2f} centred (a fit through the origin flatters itself); furthest off "
        f"is {found.cards[worst]}.",
    )

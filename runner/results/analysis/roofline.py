"""Where measured workloads stand under the roofs of their card: operations a second over operations a byte.

Williams, Waterman, Patterson: Roofline (Communications of the ACM 52(4), 2009). The roofs are measured by `timetrial
peaks`; operations and bytes were counted by `timetrial throughput`. How many bytes truly go to device memory nobody
tells, so that a workload is no point but a span: from the traffic of an execution in which nothing is fused or cached
to the least that any execution has.
"""

import itertools
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from ...hardware.datasheets import card_of
from ...record.energy import LOW_UTILISATION
from ...record.flops import operations_per_second
from ...record.run_dir import slug
from ..parse.sources import json_object
from .findings import Finding
from .throughput_groups import NO_PEERS, SpeedCell

FILE, SCHEMA = "peaks.json", 1
_ABOVE = 1.02  # of a measured peak: more is no matter of noise


@dataclass(frozen=True)
class Roofs:
    """What a card does at most: TFLOP/s by number format, GB/s of its memory (read and written)."""

    tflops: Mapping[str, float]
    gb_s: float | None


@dataclass(frozen=True)
class Place:
    """A workload on one card of several: achieved TFLOP/s, operations a byte if nothing is fused, and at most.

    `of_measured` and `of_sheet` are its shares of the card's peaks in its format, None where they are not known.
    `bound` names the roof above it, or the host where the card had to wait for its next kernel.
    """

    work: str
    card: str
    count: int
    precision: str
    batch: int
    links: str
    tflops: float
    unfused: float
    at_most: float
    of_measured: float | None
    of_sheet: float | None
    bound: str

    @property
    def title(self) -> str:
        """The workload in words; its batch is that of one card, and links are named where they were not used."""
        return f"{self.work}, {self.count} x {self.card}, {self.precision}, batch {self.batch}{self.links}"

    @property
    def short(self) -> str:
        """The same where the card is known."""
        cards = f" on {self.count}" if self.count > 1 else ""
        return f"{self.work}{cards}, {self.precision}, batch {self.batch}{self.links}"


@dataclass(frozen=True)
class Roofline:
    """A card's roofs, measured and of its data sheet, all places under them, the busiest first; what else was timed.

    `timed` are rows of peaks.json: the fastest of each kind and format, and of transfers and sums each.
    """

    card: str
    measured: Roofs | None
    sheet: Roofs | None
    places: Sequence[Place]
    source: str = ""
    timed: Sequence[Mapping[str, Any]] = ()


def read_peaks(paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """What the peaks.json files at or below `paths` hold, by card, processors also by their system.

    Of each roof that several of a card have measured the highest counts; those that are whole and thorough before those
    that were quick or stopped.
    """
    cards: dict[str, list[dict[str, Any]]] = {}
    for path in _files(paths):
        told = json_object(path) | {"path": str(path)}
        try:
            known = told["schema"] == SCHEMA and isinstance(told["peaks"]["tflops"], dict) and "gb_s" in told["peaks"]
            _ = float(told["measured"]), bool(told["quick"]), bool(told["stopped"])
            told["timed"] = _fastest(told.get("rows", ()))
            host = slug(str((told.get("system") or {}).get("hostname", "")))
            cards.setdefault(_roofed(str(told["card"]), host), []).append(told)
        except (KeyError, TypeError, ValueError):
            known = False
        if not known:
            raise DataError(f"{path} is damaged, or of another version: measure again with timetrial peaks.")
    return {card: _merged(same) for card, same in cards.items()}


def _merged(same: Sequence[dict[str, Any]]) -> dict[str, Any]:
    tflops: dict[str, float] = {}
    gb_s, paths = None, []
    timed: dict[tuple[str, ...], dict[str, Any]] = {}
    for _, alike in itertools.groupby(sorted(same, key=_standing), key=_is_thorough):
        found: list[dict[str, Any]] = list(alike)
        for form in dict.fromkeys(form for told in found for form in told["peaks"]["tflops"]):
            tflops[form] = max(told["peaks"]["tflops"].get(form, 0.0) for told in found)
        gb_s = max((told["peaks"]["gb_s"] or 0.0 for told in found), default=0.0) or gb_s
        for told in found:
            paths.append(told["path"])
            timed |= told["timed"]
    peaks = {"tflops": tflops, "gb_s": gb_s}
    return {"peaks": peaks, "path": ", ".join(reversed(paths)), "timed": list(timed.values())}


def _is_thorough(told: Mapping[str, Any]) -> bool:
    return not (told["quick"] or told["stopped"])


def _standing(told: Mapping[str, Any]) -> tuple[bool, float]:
    return _is_thorough(told), told["measured"]


def _roofed(card: str, system: str) -> str:
    """Whose roof it is: a card's of this name, or of one machine's processors, which have but one name."""
    return f"{card} of {system}" if card == "cpu" and system else card


def _fastest(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, ...], dict[str, Any]]:
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        by = "tflops" if row["tflops"] else "gb_s"
        # Transfers and sums differ in their way, which stands in the shape after the size.
        way = "" if by == "tflops" else row["shape"].partition(",")[2]
        key = (row["kind"], row["storage"], row["compute"], way)
        if row[by] and (key not in found or row[by] > found[key][by]):
            found[key] = row
    return found


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_file() and path.name == FILE:
            yield path
        for where, folders, names in os.walk(path):
            folders.sort()
            if FILE in names:
                yield Path(where, FILE)


def rooflines(cells: Iterable[SpeedCell], peaks: Mapping[str, Mapping[str, Any]]) -> list[Roofline]:
    """One a card that has peaks or workloads with counted operations."""
    cards: dict[str, list[SpeedCell]] = {card: [] for card in peaks}
    for cell in cells:
        if any(operations_per_second(result) for result in cell.results):
            cards.setdefault(_roofed(cell.card, slug(str(cell.setting["system"]))), []).append(cell)
    return [_roofline(card, same, peaks.get(card)) for card, same in sorted(cards.items())]


def _roofline(card: str, cells: Sequence[SpeedCell], told: Mapping[str, Any] | None) -> Roofline:
    measured = Roofs(told["peaks"]["tflops"], told["peaks"]["gb_s"]) if told else None
    facts = card_of(card)
    sheet = None
    if facts:
        sheet = Roofs({name: peak for name, peak in facts["tflops"].items() if peak}, facts.get("bandwidth_gb_s"))
    places = sorted((_place(cell, measured, sheet) for cell in cells), key=lambda place: -place.tflops)
    return Roofline(card, measured, sheet, places, str(told["path"]) if told else "", told["timed"] if told else ())


def _place(cell: SpeedCell, measured: Roofs | None, sheet: Roofs | None) -> Place:
    counted = [result for result in cell.results if operations_per_second(result)]
    rates = [(operations_per_second(result) or 0.0) / 1e12 / cell.count for result in counted]
    tflops = statistics.median(rates)
    first = counted[0]["counted"]
    unfused, at_most = (first["operations"] / max(first[key], 1.0) for key in ("unfused_bytes", "least_bytes"))
    share = [roofs.tflops.get(cell.precision) if roofs else None for roofs in (measured, sheet)]
    of_measured, of_sheet = (tflops / most if most else None for most in share)
    waits = LOW_UTILISATION in cell.flags
    bound = "the host" if waits else _bound(unfused, at_most, measured or sheet, cell.precision)
    fed = cell.setting["data.loader"]
    work = cell.network if fed == "synthetic" else f"{cell.network} with data={fed}"
    links = f", {cell.links}" if cell.links == NO_PEERS else ""
    own = (work, cell.card, cell.count, cell.precision, cell.batch, links)
    return Place(*own, tflops, unfused, max(unfused, at_most), of_measured, of_sheet, bound)


def _bound(unfused: float, at_most: float, roofs: Roofs | None, precision: str) -> str:
    """Which roof is above the span: the slope of memory, the ceiling of arithmetic, or one after the other."""
    most = roofs.tflops.get(precision) if roofs else None
    if not roofs or not most or not roofs.gb_s:
        return "not known"
    ridge = most * 1e12 / (roofs.gb_s * 1e9)
    if at_most < ridge:
        return "memory"
    return "arithmetic" if unfused > ridge else "memory unless fused"


def findings(lines: Iterable[Roofline]) -> list[Finding]:
    """What stands above a roof that was measured: then one of both measurements is wrong, or was of another clock."""
    return [
        Finding(
            "flag",
            place.title,
            f"{place.tflops:,.3g} TFLOP/s a card are {place.of_measured:.0%} of what timetrial peaks has measured on "
            "this card: one of both was disturbed, or the operations are counted wrongly.",
        )
        for line in lines
        for place in line.places
        if place.of_measured and place.of_measured > _ABOVE
    ]

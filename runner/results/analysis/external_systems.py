"""The systems that tables of external measurements compare: found by name, or by what differs between the rows."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...core.errors import ConfigurationError
from ..parse.external import OUTCOMES, ExternalMeasurement

TIMES = ("minutes", "minutes_total", "milliseconds")
"""Metrics of which less is better."""
SPEEDS = ("samples_per_second", *TIMES, "speedup")
"""Metrics of speed: each network is compared by the first that both systems have."""
SYSTEM_FIELDS = ("accelerator", "interconnect", "precision")
"""Fields that may tell systems apart: the first that differs does."""
_COUNTED = re.compile(r"(\d{1,6}) ?[x×] ?(.+)")


@dataclass(frozen=True)
class ExternalSystem:
    """One side: the measurements whose `field` has `value`, with `count` GPUs if that is not None."""

    field: str
    value: str
    count: int | None
    measurements: tuple[ExternalMeasurement, ...]

    @property
    def title(self) -> str:
        """Its name, with the number of GPUs if one is chosen."""
        name = self.value or f"{self.field} not stated"
        return f"{self.count} x {name}" if self.count else name

    def state(self, workload: str, task: str) -> str:
        """Return what became of the speed of a network: one of `OUTCOMES`, the best there is, or "not measured"."""
        same = (entry for entry in self.measurements if (entry.workload, entry.task) == (workload, task))
        outcomes = {entry.outcome for entry in same if entry.metric in SPEEDS}
        return next((outcome for outcome in OUTCOMES if outcome in outcomes), "not measured")


def is_system(entries: Sequence[ExternalMeasurement], name: str) -> bool:
    """Return whether `find_system` finds a system of this name."""
    try:
        return bool(name and find_system(entries, name))
    except ConfigurationError:
        return False


def all_systems(entries: Sequence[ExternalMeasurement], names: Sequence[str]) -> list[ExternalSystem]:
    """Return all systems, the named one first; where only the number of GPUs differs, a system for each number."""
    named = find_system(entries, names[0]) if names else None
    fields = [*([named.field] if named else []), *(() if named and named.count else SYSTEM_FIELDS)]
    field = next((name for name in fields if len(_values(entries, name)) > 1), None)
    if field:
        systems = [_select(entries, field, value, None) for value in _values(entries, field)]
    else:
        counts = dict.fromkeys(entry.num_accelerators for entry in entries)
        systems = [_select(entries, "accelerator", entries[0].accelerator, count) for count in counts]
    if named and named.field == field:
        return [named, *(system for system in systems if system.value != named.value)]
    if named and named.count and not field:
        return [named, *(system for system in systems if system.count != named.count)]
    return systems


def _values(entries: Iterable[ExternalMeasurement], field: str) -> list[str]:
    """Return the values of a field; a single GPU has no interconnect."""
    known = (entry for entry in entries if field != "interconnect" or entry.num_accelerators > 1)
    return list(dict.fromkeys(getattr(entry, field) for entry in known))


def _select(entries: Iterable[ExternalMeasurement], field: str, value: str, count: int | None) -> ExternalSystem:
    chosen = (entry for entry in entries if getattr(entry, field) == value and count in (None, entry.num_accelerators))
    return ExternalSystem(field, value, count, tuple(chosen))


def find_system(entries: Sequence[ExternalMeasurement], name: str) -> ExternalSystem:
    """Return the system with a name such as "V100" or "2 x T4"; part of a name is enough if it is of one system."""
    match = _COUNTED.fullmatch(name)
    count, wanted = (int(match[1]), match[2].casefold()) if match else (None, name.casefold())
    for is_same in (str.__eq__, str.__contains__):
        for field in SYSTEM_FIELDS:
            found = [value for value in _values(entries, field) if is_same(value.casefold(), wanted)]
            system = _select(entries, field, found[0], count) if len(found) == 1 else None
            if system and system.measurements:
                return system
    known = dict.fromkeys(value for field in SYSTEM_FIELDS for value in _values(entries, field) if value)
    raise ConfigurationError(f"{name} is no path, and not the name of one system in the tables: {', '.join(known)}.")

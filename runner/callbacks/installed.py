"""Observers of installed packages: entry points of the group `timetrial.observers`, chosen by `observers.extra`."""

from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ..core.errors import ConfigurationError
from ..core.suggestions import choose_one_of

ENTRY_POINTS = "timetrial.observers"


def find_observers(names: Sequence[str]) -> list[EntryPoint]:
    """Return the entry points of these names; raise `ConfigurationError` for one that no installed package has."""
    installed = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    for name in names:
        if name not in installed:
            remedy = choose_one_of(name, sorted(installed)) if installed else "install the package that has it"
            raise ConfigurationError(f"observers.extra={name} is no observer of an installed package: {remedy}.")
    return [installed[name] for name in names]


def load_observer(entry: EntryPoint) -> Any:
    """Return the class of an observer; raise `ConfigurationError` if its package cannot be imported."""
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"observers.extra={entry.name} cannot be imported from {entry.value} ({error}): repair that package."
        ) from error

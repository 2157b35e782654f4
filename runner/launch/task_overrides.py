"""What the tasks of a study may set: the manifest may come from somebody else."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from ..config.compose import Composition
from ..core.errors import ConfigurationError
from ..core.found_files import as_name

_CHOICE = re.compile(r"[\w-]+(/[\w-]+)*|None", re.ASCII)


def check_overrides(index: int, overrides: Sequence[str]) -> None:
    """Raise `ConfigurationError` if an override names code, folders of configuration or values of the environment.

    So do folders (`data_dir`, `staging_dir`, caches): a task would write there, and staging remove what it finds.
    """
    for text in overrides:
        if len(text.splitlines()) > 1:
            raise ConfigurationError(f"Task {index} sets {as_name(text)}: an override has no line breaks.")
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        group, *keys = re.split(r"[./]", override.key_or_group)
        name, value = as_name(override.input_line), override.value()
        names_code = group == "workload" and (keys or isinstance(value, dict))
        if names_code or group == "hydra" or "${" in f"{override.input_line} {value}":
            raise ConfigurationError(
                f"Task {index} sets {name}: a study takes values, but no classes, no settings of Hydra and no "
                "${...}. Use timetrial run for these."
            )
        if any(key.endswith("_dir") for key in ([group, *keys][-1], *_keys(value))):
            raise ConfigurationError(
                f"Task {index} sets {name}: a study names no folders. Set TIMETRIAL_DATA_DIR or TIMETRIAL_STAGING_DIR "
                "instead."
            )


def check_composition(index: int, overrides: Sequence[str], composition: Composition) -> None:
    """Raise `ConfigurationError` if a choice of a group is a path to another file, or a path leaves the data folder."""
    for group, choice in composition.choices.items():
        if not _CHOICE.fullmatch(choice):
            raise ConfigurationError(f"Task {index}: {group}={as_name(choice)} is not one of the choices.")
    data_dir = Path(os.path.abspath(composition.node.data_dir))
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        for text in _texts(override.value()):
            path = Path(text)
            leaves = path.is_absolute() or ".." in path.parts or text.startswith("~")
            if leaves and data_dir not in Path(os.path.abspath(path)).parents:
                raise ConfigurationError(
                    f"Task {index} sets {as_name(override.input_line)}, which is not below {data_dir}: move the files "
                    "there, or set TIMETRIAL_DATA_DIR to a folder above them."
                )


def _keys(value: Any) -> Iterator[str]:
    """Yield all keys of nested mappings."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield str(key)
            yield from _keys(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _keys(entry)


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in nested values."""
    if isinstance(value, dict | list):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _texts(entry)
    elif value is not None and not isinstance(value, bool | int | float):
        yield str(value)

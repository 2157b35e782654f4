"""Where configuration is found: in conf/, in installed packages of workloads, and in a folder of the user's.

A package joins with an entry point of the group `timetrial.workloads`, whose value is its package of YAML files:

    [project.entry-points."timetrial.workloads"]
    tiny_lm = "tiny_lm.conf"
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from ..core.errors import ConfigurationError

ENTRY_POINTS = "timetrial.workloads"
CONFIG_DIR = "TIMETRIAL_CONFIG_DIR"
"""Environment variable with the folder of `--config-dir`, so that processes that the command starts have it too."""
_CONF = Path(__file__).parents[2] / "conf"


class MoreConfiguration(SearchPathPlugin):
    """Appends installed packages and the user's folder to Hydra's search path, behind conf/."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append them."""
        for module in _modules():
            search_path.append(ENTRY_POINTS, f"pkg://{module}")
        if folder := os.environ.get(CONFIG_DIR):
            search_path.append("command-line", f"file://{folder}")


def register_search_path() -> None:
    """Let Hydra find all configuration."""
    Plugins.instance().register(MoreConfiguration)


@contextmanager
def config_dir(folder: str | Path | None) -> Iterator[None]:
    """Search a folder too within the body; None: that of `TIMETRIAL_CONFIG_DIR`, if it is set.

    Raises `ConfigurationError` if there is no such folder.
    """
    before = os.environ.get(CONFIG_DIR)
    if (named := folder or before) and not os.path.isdir(named):
        option = f"--config-dir {folder}" if folder else f"{CONFIG_DIR}={before}"
        raise ConfigurationError(f"{option} is no folder: name one with more YAML files.")
    if named:
        os.environ[CONFIG_DIR] = os.path.abspath(named)
    try:
        yield
    finally:
        if named and before is None:
            del os.environ[CONFIG_DIR]
        elif before is not None:
            os.environ[CONFIG_DIR] = before


def config_folders() -> list[Path]:
    """Return the folders of the search path, the first to be searched first; nothing is imported."""
    folders = [_CONF]
    for module in _modules():
        package, *parts = module.split(".")
        spec = find_spec(package)
        folders += [Path(place, *parts) for place in (spec and spec.submodule_search_locations) or ()]
    if folder := os.environ.get(CONFIG_DIR):
        folders.append(Path(folder))
    return [folder for folder in folders if folder.is_dir()]


def find_config(name: str) -> Path | None:
    """Return the file of a choice, such as "workload/NAME.yaml", None if there is none."""
    return next((path for folder in config_folders() if (path := folder / name).is_file()), None)


def _modules() -> list[str]:
    return sorted({entry.value for entry in entry_points(group=ENTRY_POINTS)})

"""Folders for compiled code that belong to the user alone: whoever writes there runs code as the user.

PyTorch's default for Inductor is a predictable name in the temporary folder that all users of a machine share.
"""

import atexit
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from .errors import ConfigurationError

_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def name_private_caches() -> None:
    """Let Inductor and Triton keep compiled code below `~/.cache/timetrial`, unless the user has named a folder.

    Importing Inductor sets its variable to the default, which is replaced.
    """
    for variable, name in _CACHES.items():
        folder = os.environ.get(variable)
        if folder is None or folder.startswith(os.path.join(tempfile.gettempdir(), "torchinductor_")):
            os.environ[variable] = str(_home_cache() / name)


def use_private_caches() -> None:
    """Make the folders of `name_private_caches`, which only the user can write to.

    Raises `ConfigurationError` if one belongs to another user or others may write to it. Where the user has no home
    that can be written to, a new temporary folder is used and removed when this process ends.
    """
    name_private_caches()
    home = _home_cache()
    with suppress(OSError):  # what is in the way is refused
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for variable, name in _CACHES.items():
        folder = Path(os.environ[variable])
        if folder.parent == home and not os.path.lexists(home):
            folder = _temporary_cache() / name
            os.environ[variable] = str(folder)
        elif folder.parent == home:
            _require_private(home, "XDG_CACHE_HOME")
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_private(folder, variable)


def _home_cache() -> Path:
    with suppress(RuntimeError):  # of a user whom the system does not know
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "timetrial"
    return Path("/nonexistent/timetrial")


@cache
def _temporary_cache() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="timetrial_cache_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _require_private(folder: Path, variable: str) -> None:
    is_private = False
    with suppress(OSError):
        status = folder.lstat()
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        is_private = is_own and not status.st_mode & _WRITABLE_BY_OTHERS
    if not is_private:
        raise ConfigurationError(
            f"{folder} is no folder that only you can write to, so that others could run code as you: remove it, or "
            f"set {variable} to a folder of your own."
        )

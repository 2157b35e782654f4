"""Which machines `timetrial accept` has accepted: a small file for each GPU, in the user's state directory.

The directory is `$XDG_STATE_HOME/timetrial/accepted`, by default below `~/.local/state`: on a cluster, that is a folder
that all nodes share. A machine without GPUs has one file, for its host name and processor.
"""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..core.atomic_files import to_json, write_atomically, write_failure
from ..core.found_files import UnreadableFile, read_json
from .record_file import decode
from .run_record import Acceptance


def find_acceptance(environment: Mapping[str, Any]) -> Acceptance | None:
    """Return the acceptance of the machine in an environment, the oldest of its GPUs; None unless all have one."""
    found = []
    for path in _paths(environment):
        try:
            found.append(decode(Acceptance, read_json(path)))
        except (UnreadableFile, ValueError):
            return None
    return min(found, key=lambda acceptance: acceptance.date)


def keep_acceptance(environment: Mapping[str, Any], acceptance: Acceptance) -> None:
    """Note that the machine in an environment was accepted."""
    for path in _paths(environment):
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise write_failure(path, error, "set XDG_STATE_HOME") from error
        write_atomically(path, to_json(asdict(acceptance)))


def revoke_acceptance(environment: Mapping[str, Any]) -> None:
    """Forget that the machine in an environment was accepted."""
    for path in _paths(environment):
        with suppress(OSError):
            path.unlink()


def _paths(environment: Mapping[str, Any]) -> list[Path]:
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return [Path(state, "timetrial", "accepted", f"{key}.json") for key in _keys(environment)]


def _keys(environment: Mapping[str, Any]) -> list[str]:
    """Return the id of each GPU, or a hash of host name, processor and GPU's place where there are no ids."""
    gpus = environment.get("gpus") or [{}]
    host = f"{environment.get('hostname')}/{(environment.get('cpu') or {}).get('model')}"
    hashes = (hashlib.sha256(f"{host}/{number}".encode()).hexdigest()[:16] for number in range(len(gpus)))
    return [gpu.get("id") or key for gpu, key in zip(gpus, hashes, strict=True)]

"""Run commands with the `timetrial` of another checkout."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

THIS = Path(__file__).resolve().parents[2]


@contextmanager
def importing(checkout: Path) -> Iterator[dict[str, str]]:
    """Return the environment of a process in which `timetrial` is that of `checkout`, whatever its folder is called."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "timetrial").symlink_to(checkout.resolve())
        paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        yield os.environ | {"PYTHONPATH": os.pathsep.join(paths)}

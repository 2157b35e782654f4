"""The execution paths of this process: what ran where the device, and not the configuration alone, decides.

The code that takes a path records it, and the run record keeps what rank 0 has recorded.
"""

from collections.abc import Mapping, Sequence

UNKNOWN = "unknown"
"""The path of a part that a run has not recorded."""

_paths: dict[str, str] = {}


def take(part: str, path: str) -> None:
    """Record that `part` of a run, such as "steps", takes `path`, such as "captured"."""
    _paths[part] = path


def fall_back(part: str, path: str) -> None:
    """Record that `part` takes `path` unless some of it takes another one."""
    _paths.setdefault(part, path)


def taken() -> dict[str, str]:
    """Return the path of each part that has run."""
    return dict(sorted(_paths.items()))


def forget() -> None:
    """Forget all paths: another run begins in this process."""
    _paths.clear()


def format_paths(paths: Mapping[str, str]) -> str:
    """Return the paths as text, such as "kernels Triton, steps captured"; "unknown" for none."""
    return ", ".join(f"{part.replace('_', ' ')} {path}" for part, path in paths.items()) or UNKNOWN


def merge_paths(runs: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the paths of several runs: for a part in which they differ, all of them, such as "Triton or unknown"."""
    parts = dict.fromkeys(part for paths in runs for part in paths)
    return {part: " or ".join(sorted({paths.get(part, UNKNOWN) for paths in runs})) for part in parts}

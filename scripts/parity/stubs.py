"""Stand-ins for packages that the references import and that no longer install, and for a GPU."""

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


class _Anything(ModuleType):
    """A module in which every name exists: `*_print` are functions that do nothing, all others their own names."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.endswith("_print"):
            return lambda *args, **kwargs: None
        return type("Stub", (), {"propagate": False}) if name[:1].isupper() and not name.isupper() else name


class _Logger:
    """An MLPerf logger that writes nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class _Groups:
    """numpy_indexed's groups of equal keys."""

    def __init__(self, keys: NDArray[Any]) -> None:
        self._order = np.argsort(keys, kind="stable")
        self._starts = np.unique(keys[self._order], return_index=True)[1][1:]

    def split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the values of each key."""
        return np.split(values[self._order], self._starts)


def install_packages() -> None:
    """Make apex, mlperf_compliance, mlperf_logging and numpy_indexed importable, and matplotlib if it is missing."""
    for name in (
        "apex",
        "apex.parallel",
        "mlperf_compliance",
        "mlperf_logging",
        "mlperf_logging.mllog",
        "numpy_indexed",
    ):
        sys.modules[name] = _Anything(name)
    if importlib.util.find_spec("matplotlib") is None:
        for name in ("matplotlib", "matplotlib.pyplot", "matplotlib.collections", "matplotlib.patches"):
            sys.modules[name] = _Anything(name)
    log = sys.modules["mlperf_compliance.mlperf_log"] = _Anything("mlperf_compliance.mlperf_log")
    log.LOGGER = _Logger()  # type: ignore[attr-defined]
    sys.modules["mlperf_compliance"].mlperf_log = log  # type: ignore[attr-defined]
    mllog = sys.modules["mlperf_logging.mllog"] = _Anything("mllog")
    mllog.get_mllogger = _Logger  # type: ignore[attr-defined]
    mllog.config = lambda **options: None  # type: ignore[attr-defined]
    constants = sys.modules["mlperf_logging.mllog.constants"] = _Anything("constants")
    mllog.constants = constants  # type: ignore[attr-defined]
    sys.modules["mlperf_logging"].mllog = mllog  # type: ignore[attr-defined]
    sys.modules["numpy_indexed"].group_by = _Groups  # type: ignore[attr-defined]


def install_gpu() -> None:
    """Let code that asks for a GPU run on the CPU, if there is no GPU."""
    if torch.cuda.is_available():
        return
    make_tensor = torch.tensor
    torch.Tensor.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign]
    torch.nn.Module.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign,assignment]
    torch.cuda.synchronize = lambda *args: None
    torch.cuda.empty_cache = lambda: None
    torch.tensor = lambda *args, device=None, **kwargs: make_tensor(*args, **kwargs)


@contextmanager
def arguments(folder: Path, *values: object) -> Iterator[None]:
    """Import from `folder` first, with a command line of `values`."""
    earlier = sys.argv, sys.path[:]
    sys.argv, sys.path[:0] = ["reference", *map(str, values)], [str(folder)]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = earlier


def find_folder(checkout: Path, names: Sequence[str]) -> Path:
    """Return the first of the folders `names` that the checkout contains; exit if there is none."""
    for name in names:
        if (checkout / name).is_dir():
            return checkout / name
    raise SystemExit(f"{checkout} contains no {names[0]}: name a checkout of github.com/mlcommons/training.")

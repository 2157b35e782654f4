"""What Triton does before the first kernels of a process, and the time that it takes to compile those."""

import importlib
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ..core.spans import Span

_LAZY_IMPORT = "triton.experimental.gluon.nvidia.hopper"  # of the first kernel that runs


def prepare_triton() -> None:
    """Do what the first kernel of a process would wait 0.4 s for: hash Triton's files, and import a part of it.

    Processes that are forked later need not do it.
    """
    with suppress(ImportError, AttributeError):  # no Triton, or another version
        importlib.import_module("triton.runtime.cache").triton_key()
        importlib.import_module(_LAZY_IMPORT)


@contextmanager
def compiled_kernels() -> Iterator[list[Span]]:
    """Yield a list that gets the span in seconds of each kernel that this process compiles in the body.

    It stays empty if the cache holds all kernels, and where Triton is not loaded or too old to tell. The kernels of
    torch.compile are compiled by other processes and are not in it.
    """
    spans: list[Span] = []
    knobs: Any = getattr(getattr(sys.modules.get("triton"), "knobs", None), "compilation", None)
    if not hasattr(knobs, "listener"):
        yield spans
        return

    def listen(*, times: Any, cache_hit: bool, **_: object) -> None:
        if not cache_hit:
            end = time.perf_counter()
            spans.append((end - times.total / 1e6, end))

    before, knobs.listener = knobs.listener, listen
    try:
        yield spans
    finally:
        knobs.listener = before

"""The time that Triton takes to compile the kernels that its cache does not hold."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def compiled_kernels() -> Iterator[list[float]]:
    """Yield a list that gets the seconds of each kernel that this process compiles in the body.

    It stays empty if the cache holds all kernels, and where Triton is not loaded or too old to tell. The kernels of
    torch.compile are compiled by other processes and are not in it.
    """
    seconds: list[float] = []
    knobs: Any = getattr(getattr(sys.modules.get("triton"), "knobs", None), "compilation", None)
    if not hasattr(knobs, "listener"):
        yield seconds
        return

    def listen(*, times: Any, cache_hit: bool, **_: object) -> None:
        if not cache_hit:
            seconds.append(times.total / 1e6)

    before, knobs.listener = knobs.listener, listen
    try:
        yield seconds
    finally:
        knobs.listener = before

"""When the command began: the command line imports this module before all others."""

import time

_began = time.time()


def seconds_since_begin() -> float:
    """Return the seconds since the command, or the present run of a sweep, began."""
    return time.time() - _began


def begin_again() -> None:
    """Let the next run of a sweep begin now."""
    global _began
    _began = time.time()

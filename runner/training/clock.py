"""The clock of a run: seconds since the epoch that never run backwards, in an attempt and from one to the next.

Durations are measured with the monotonic clock. A resumed run continues the clock of its checkpoint: on the same boot
of the same machine by the time since the boot, which nobody can set, and elsewhere by the wall clock, but never from
before the checkpoint. The difference to the wall clock is returned, because then one of the two is wrong.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_offset = time.time() - time.perf_counter()


def now() -> float:
    """Return seconds since the epoch: wall time at the start of the attempt plus the monotonic time since then."""
    return _offset + time.perf_counter()


def read_clock() -> dict[str, Any]:
    """Return what a later attempt needs to continue the clock."""
    return {"time": now(), "boot": boot_id(), "since_boot": _seconds_since_boot()}


def start_clock(reading: Mapping[str, Any] | None = None) -> float:
    """Start the clock of an attempt, which continues that of `reading` if there is one.

    Returns the seconds by which the wall clock is ahead of the time that it should show, 0.0 if that is unknown.
    """
    global _offset
    wall, started = time.time(), time.time()
    if reading is not None:
        elapsed = _seconds_since_boot() - reading["since_boot"]
        is_same_boot = reading["boot"] == boot_id() is not None and elapsed >= 0
        started = reading["time"] + elapsed if is_same_boot else max(wall, reading["time"])
    _offset = started - time.perf_counter()
    return wall - started


def wall_clock_lead() -> float:
    """Return the seconds by which the wall clock is ahead of this one."""
    return time.time() - now()


def boot_id() -> str | None:
    """Return the identity of this boot of this machine, None where the system does not state it."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() and hasattr(time, "CLOCK_BOOTTIME") else None


def _seconds_since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()

"""Measurements of micro-benchmarks, and the roofs that follow from them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """The measurement of one case: seconds per call as median, minimum and maximum over the repeats.

    `tflops` and `gb_s` follow from the median. `host_bound` marks a device that waited for the host to submit the next
    call; the rates are then those of the host. `outcome` says why a case has no measurement. Clock and power were read
    under this load, power only if it is instantaneous. Unless the counted operations are `is_minimal`, `tflops` can
    exceed the peak of the device.
    """

    kind: str
    shape: str
    storage: str = ""
    compute: str = ""
    seconds: float | None = None
    fastest: float | None = None
    slowest: float | None = None
    repeats: int = 0
    calls: int = 0
    sets: int = 0
    operations: float = 0.0
    moved_bytes: float = 0.0
    tflops: float | None = None
    gb_s: float | None = None
    host_bound: bool = False
    core_mhz: float | None = None
    watts: float | None = None
    outcome: str = ""
    is_minimal: bool = True

    @property
    def spread(self) -> float:
        """Maximum minus minimum over the median."""
        return ((self.slowest or 0.0) - (self.fastest or 0.0)) / (self.seconds or math.inf)


def find_peaks(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the roofs: the fastest case of each format (stored and computed in it, or fp32 in tf32) and copy.

    Cases whose operation count is not minimal do not count: by its count a 3x3 convolution in fp32 ran at 1.8 times
    the data-sheet peak of an H200. `left_out` has the fastest of each kind that a roof leaves out for this reason.
    """
    fastest: dict[str, Row] = {}
    left_out: dict[tuple[str, str], Row] = {}
    for row in rows:
        if row.tflops and row.compute in (row.storage, "tf32"):
            if row.is_minimal:
                fastest[row.compute] = max(row, fastest.get(row.compute, row), key=lambda row: row.tflops or 0.0)
            else:
                key = (row.compute, row.kind)
                left_out[key] = max(row, left_out.get(key, row), key=lambda row: row.tflops or 0.0)
    copies = [row.gb_s for row in rows if row.kind == "copy" and row.gb_s]
    return {
        "tflops": {compute: row.tflops for compute, row in fastest.items()},
        "achieved_by": {compute: f"{row.kind} {row.shape}" for compute, row in fastest.items()},
        "gb_s": max(copies, default=None),
        "left_out": [
            {"compute": compute, "kind": kind, "shape": row.shape, "tflops": row.tflops}
            for (compute, kind), row in left_out.items()
        ],
    }

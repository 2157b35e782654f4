"""The kernels of a trace: sums of their spans, with a profiler that writes a known trace."""

import json
from contextlib import contextmanager
from pathlib import Path

import torch

from timetrial.scripts.measure import kernels

EVENTS = [
    ("gemm", "kernel", 0.0, 100.0),
    ("ncclDevKernel_AllReduce", "kernel", 80.0, 60.0),  # 20 beside gemm, 10 beside copy, 30 alone
    ("copy", "gpu_memcpy", 130.0, 20.0),
    ("gemm", "kernel", 190.0, 10.0),
    ("aten::mm", "cpu_op", 0.0, 500.0),
]


class Recorded:
    """A profiler whose trace is known."""

    def export_chrome_trace(self, path):
        """Write the trace."""
        events = [{"name": name, "cat": kind, "ts": start, "dur": dur} for name, kind, start, dur in EVENTS]
        Path(path).write_text(json.dumps({"traceEvents": events}))


def test_kernels_are_summed_by_the_time_that_they_cover(monkeypatch):
    @contextmanager
    def profile(activities):
        yield Recorded()

    monkeypatch.setattr(kernels, "profile", profile)
    worked = []
    result = kernels.trace_kernels(torch.device("cpu"), lambda: worked.append(1), parts=2, longest=1)
    assert worked == [1]
    assert result == {
        "kernel_share": 0.8,
        "kernel_ms": 0.08,
        "collective_ms": 0.03,
        "collective_alone_ms": 0.015,
        "kernels": 2.0,
        "longest_us": {"gemm": 55.0},
    }

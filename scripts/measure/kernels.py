"""The kernels of some work on a GPU, from a trace of PyTorch's profiler."""

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile

from timetrial.runner.core.spans import union_length
from timetrial.runner.hardware import devices


def trace_kernels(device: torch.device, work: Callable[[], object], parts: int, longest: int) -> dict[str, Any]:
    """Return the kernels of `work`, which has `parts` equal parts.

    `kernel_ms` is the union of their spans and `kernels` their number, both a part; `kernel_share` is that union's
    share in the time of the traced work; `collective_ms` is the union of NCCL's kernels, which includes their waits for
    other ranks, and `collective_alone_ms` the part of it in which no other kernel ran; `longest_us` has the names and
    microseconds of the `longest` ones, a part.
    """
    with profile(activities=devices.profiler_activities(device)[1:]) as profiler:
        work()
        devices.synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    kernels = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    busy = _busy_us(kernels)
    computing, collective = (_busy_us(k for k in kernels if _is_collective(k) is kind) for kind in (False, True))
    start, end = min(kernel["ts"] for kernel in kernels), max(kernel["ts"] + kernel["dur"] for kernel in kernels)
    durations: Counter[str] = Counter()
    for event in kernels:
        durations[event["name"][:60]] += event["dur"]
    return {
        "kernel_share": round(busy / (end - start), 3),
        "kernel_ms": round(busy / parts / 1e3, 4),
        "collective_ms": round(collective / parts / 1e3, 4),
        "collective_alone_ms": round((busy - computing) / parts / 1e3, 4),
        "kernels": round(len(kernels) / parts, 1),
        "longest_us": {name: round(us / parts, 1) for name, us in durations.most_common(longest)},
    }


def _is_collective(kernel: dict[str, Any]) -> bool:
    return bool(kernel["name"].startswith("nccl"))


def _busy_us(kernels: Iterable[dict[str, Any]]) -> float:
    """Return the microseconds in which at least one of the kernels ran."""
    return union_length((kernel["ts"], kernel["ts"] + kernel["dur"]) for kernel in kernels)

"""Device graphs (CUDA graphs): device work that is submitted once by Python and replayed without it."""

from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

import torch


class DeviceGraph(Protocol):
    """Captured device work."""

    def replay(self) -> None:
        """Submit the work again."""
        ...


_pools: dict[torch.device, Any] = {}
_graphs: dict[torch.device, WeakSet[DeviceGraph]] = {}  # those alive: their pool dies with the last of them


def supports_graphs(device: torch.device) -> bool:
    """Return whether `capture_graph` works for this device."""
    return device.type == "cuda" and not torch.version.hip


def capture_graph(device: torch.device, function: Callable[[], object], eager_passes: int = 0) -> DeviceGraph:
    """Capture the device work that `function` submits, which is not done yet, and return the graph.

    The function must not wait for the device. Kernels are compiled and workspaces allocated at their first use, which
    cannot be captured: run the function before, or let it run `eager_passes` times. The graphs of a device share their
    memory. So none may be replayed while another runs, and what one leaves in a tensor of its own is lost once a graph
    that was captured while that tensor did not exist is replayed.
    """
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(eager_passes):
            function()
    torch.cuda.current_stream(device).wait_stream(stream)
    if not _graphs.setdefault(device, WeakSet()):
        _pools[device] = torch.cuda.graph_pool_handle()
    graph = torch.cuda.CUDAGraph()
    # Only this thread is watched: others, which decode images or pin memory, may go on allocating.
    with torch.cuda.graph(graph, _pools[device], stream, capture_error_mode="thread_local"):
        function()
    _graphs[device].add(graph)
    return graph

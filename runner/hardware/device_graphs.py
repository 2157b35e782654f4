"""Device graphs (CUDA graphs): device work that is submitted once by Python and replayed without it."""

from collections.abc import Callable
from typing import Any, Protocol

import torch

_EAGER_PASSES = 2  # before the capture: kernels are compiled and workspaces allocated, which cannot be captured
_memory_pools: dict[torch.device, Any] = {}


class DeviceGraph(Protocol):
    """Captured device work."""

    def replay(self) -> None:
        """Submit the work again."""
        ...


def supports_graphs(device: torch.device) -> bool:
    """Return whether `capture_graph` works for this device."""
    return device.type == "cuda" and not torch.version.hip


def capture_graph(device: torch.device, function: Callable[[], object]) -> DeviceGraph:
    """Run `function` twice, capture the device work that it submits, and return the graph.

    The function must neither wait for the device nor allocate anything that outlives it, other than gradients. The
    graphs of a device share their memory, so they must not be replayed at the same time.
    """
    pool = _memory_pools.setdefault(device, torch.cuda.graph_pool_handle())
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(_EAGER_PASSES):
            function()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Only this thread is watched: others, which decode images or pin memory, may go on allocating.
    with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
        function()
    return graph

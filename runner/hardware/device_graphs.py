"""Device graphs (CUDA graphs): device work that is submitted once by Python and replayed without it."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..core.errors import DeviceError, RunError
from .devices import is_nvidia_gpu
from .error_translation import to_run_error


class DeviceGraph(Protocol):
    """Captured device work."""

    def replay(self) -> None:
        """Submit the work again."""
        ...


# The graphs of a device share a pool and a stream: freed memory is reused only within one pool and one stream.
_pools: dict[torch.device, Any] = {}
_graphs: dict[torch.device, WeakSet[DeviceGraph]] = {}  # those alive: their pool dies with the last of them


def supports_graphs(device: torch.device) -> bool:
    """Return whether `capture_graph` works for this device."""
    return is_nvidia_gpu(device)


def capture_graph(device: torch.device, function: Callable[[], object], eager_passes: int = 0) -> DeviceGraph:
    """Capture the device work that `function` submits, which is not done yet, and return the graph.

    The function must not wait for the device. Kernels are compiled and workspaces allocated at their first use, which
    cannot be captured: run the function before, or let it run `eager_passes` times. The graphs of a device share their
    memory: none may be replayed while another runs, and replaying a graph may overwrite the outputs of others that did
    not exist when it was captured. Raises `OutOfMemory` or `DeviceError` if the work cannot be captured.
    """
    current = torch.cuda.current_stream(device)
    stream = _capture_stream(device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        for _ in range(eager_passes):
            function()
    current.wait_stream(stream)
    if not _graphs.setdefault(device, WeakSet()):
        _pools[device] = torch.cuda.graph_pool_handle()
    graph = torch.cuda.CUDAGraph()
    # Autocast keeps its copies of the weights. A graph must make its own: others may change, or be freed.
    torch.clear_autocast_cache()
    # Only this thread is watched: others, which decode images or pin memory, may go on allocating. The outer context
    # restores the stream even if the capture fails.
    try:
        with (
            torch.cuda.stream(current),
            torch.cuda.graph(graph, _pools[device], stream, capture_error_mode="thread_local"),
        ):
            function()
    except RuntimeError as error:
        raise to_capture_error(error) from error
    torch.clear_autocast_cache()
    _graphs[device].add(graph)
    return graph


def to_capture_error(error: RuntimeError) -> RunError:
    """Return the run error behind an exception of a capture, whose end fails after the work that failed."""
    first = error.__context__ or error
    sentence = (str(first).strip().splitlines() or ["no reason given"])[0].rstrip(".")
    return to_run_error(first) or DeviceError(
        f"The capture of a CUDA graph failed ({sentence}): add engine.capture=false."
    )


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class StaticInputs:
    """The inputs that a graph reads: copies of the tensors in nested containers, which later values overwrite."""

    def __init__(self, values: Any) -> None:
        leaves, spec = pytree.tree_flatten(values)
        own = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.values = pytree.tree_unflatten(own, spec)
        # By dtype, because one kernel copies tensors of one: the copies, and their places among all tensors.
        self._groups: dict[torch.dtype, tuple[list[Tensor], list[int]]] = defaultdict(lambda: ([], []))
        for place, tensor in enumerate(leaf for leaf in own if isinstance(leaf, Tensor)):
            copies, places = self._groups[tensor.dtype]
            copies.append(tensor)
            places.append(place)

    def copy_from(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite the copies by the tensors of values with the same key (`flatten_inputs`)."""
        for copies, places in self._groups.values():
            torch._foreach_copy_(copies, [tensors[place] for place in places], non_blocking=True)


def flatten_inputs(values: Any) -> tuple[Hashable, list[Tensor]]:
    """Return the tensors in nested containers, and a key that is equal for values that one graph can read.

    The key has their structure, the shapes and dtypes of the tensors, and all values that are not tensors.
    """
    leaves, spec = pytree.tree_flatten(values)
    shapes = tuple((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    return (spec, shapes), [leaf for leaf in leaves if isinstance(leaf, Tensor)]

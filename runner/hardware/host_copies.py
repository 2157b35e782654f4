"""Copy results to the host while the device goes on working."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def host_copies(values: Iterable[Any]) -> Iterator[Any]:
    """Yield copies on the host of tensors in nested containers, each once the work for the next has been submitted.

    So the device has work while the host uses a copy. Tensors are on one device and the CPU.
    """
    last: tuple[Any, torch.Event | None] | None = None
    for value in values:
        copies = pytree.tree_map_only(Tensor, lambda tensor: tensor.to("cpu", non_blocking=True), value)
        leaves = (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor))
        device = next((leaf.device for leaf in leaves if leaf.device.type != "cpu"), None)
        made = None if device is None else torch.Event(device)
        if made is not None:
            made.record()
        if last is not None:
            yield _wait(*last)
        last = copies, made
    if last is not None:
        yield _wait(*last)


def _wait(copies: Any, made: torch.Event | None) -> Any:
    if made is not None:
        made.synchronize()
    return copies

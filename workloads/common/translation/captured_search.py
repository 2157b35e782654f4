"""Beam searches captured in device graphs: every evaluation translates the same sentences, in the same batches."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ....runner.hardware.device_graphs import DeviceGraph, capture_graph, supports_graphs
from .beam_search import BeamSearch

_MAX_SHAPES = 4  # of batches; a graph keeps some 1,000 kernels for each part of a search

StartSearch = Callable[[Any], BeamSearch]
"""Encode the packed source of a batch and return the search for its translations."""


@dataclass
class _Part:
    """A graph of some steps, and the search after them, whose tensors the graph writes."""

    graph: DeviceGraph
    search: BeamSearch


@dataclass
class _Shape:
    """What is known of batches of one shape: the source that the graphs read, and the parts of their search so far."""

    source: Any
    eager_parts: int = 0
    parts: list[_Part] = field(default_factory=list)


class CapturedSearches:
    """Searches batches of a shape eagerly the first time, captures the second search, and replays it from then on.

    A part that no earlier search reached runs eagerly, so that its kernels are compiled before they are captured.
    """

    def __init__(self, start: StartSearch) -> None:
        self._start = start
        self._shapes: dict[Hashable, _Shape] = {}

    def run(self, source: Any) -> list[list[int]]:
        """Return the best translation of each sentence of a packed source."""
        leaves, spec = pytree.tree_flatten(source)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        key = (spec, *((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves))
        if not supports_graphs(tensors[0].device) or (key not in self._shapes and len(self._shapes) >= _MAX_SHAPES):
            return self._start(source).run()
        shape = self._shapes.get(key)
        if shape is None:
            own = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            shape = self._shapes[key] = _Shape(pytree.tree_unflatten(own, spec))
        for own, tensor in zip(pytree.tree_leaves(shape.source), leaves, strict=True):
            if isinstance(tensor, Tensor):
                own.copy_(tensor)
        return self._search(shape, tensors[0].device)

    def _search(self, shape: _Shape, device: torch.device) -> list[list[int]]:
        search, number, known_parts = None, 0, shape.eager_parts
        while search is None or not search.is_finished():
            if number == len(shape.parts) < known_parts:
                shape.parts.append(self._capture(shape.source, search, device))
            if number < len(shape.parts):
                shape.parts[number].graph.replay()
                search = shape.parts[number].search
            else:
                search = self._next_part(shape.source, search)
                shape.eager_parts = number + 1
            number += 1
        return search.best()

    def _next_part(self, source: Any, search: BeamSearch | None) -> BeamSearch:
        """Return the search after the next part; the one given stays as it is, since a graph may write its tensors."""
        following = self._start(source) if search is None else search.fork()
        following.run_part()
        return following

    def _capture(self, source: Any, search: BeamSearch | None, device: torch.device) -> _Part:
        found: list[BeamSearch] = []
        graph = capture_graph(device, lambda: found.append(self._next_part(source, search)))
        return _Part(graph, found[0])

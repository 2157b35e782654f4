"""Beam searches captured in device graphs: every evaluation translates the same sentences, in the same batches."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from ....runner.core import execution_paths
from ....runner.hardware.device_graphs import (
    DeviceGraph,
    StaticInputs,
    capture_graph,
    flatten_inputs,
    supports_graphs,
)
from .beam_search import BeamSearch

MAX_SHAPES = 4  # of batches; a graph keeps some 1,000 kernels for each part of a search

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

    source: StaticInputs
    eager_parts: int = 0
    parts: list[_Part] = field(default_factory=list)


class CapturedSearches:
    """Searches batches of a shape eagerly the first time, captures the second search, and replays it from then on.

    A part that no earlier search reached runs eagerly, so that its kernels are compiled before they are captured.
    """

    def __init__(self) -> None:
        self._shapes: dict[Hashable, _Shape] = {}

    def run(self, start: StartSearch, source: Any) -> list[list[int]]:
        """Return the best translation of each sentence of a packed source."""
        key, tensors = flatten_inputs(source)
        device = tensors[0].device
        if not supports_graphs(device):
            execution_paths.fall_back("beam_search", "not captured")
            return start(source).run()
        execution_paths.take("beam_search", "captured")
        if key not in self._shapes:
            self._shapes[key] = _Shape(StaticInputs(source))
        shape = self._shapes[key]
        shape.source.copy_from(tensors)
        may_capture = shape.parts or sum(bool(known.parts) for known in self._shapes.values()) < MAX_SHAPES
        known_parts = shape.eager_parts if may_capture else 0
        search, number = None, 0
        while search is None or not search.is_finished():
            if number == len(shape.parts) < known_parts:
                shape.parts.append(_capture(start, shape.source.values, search, device))
            if number < len(shape.parts):
                shape.parts[number].graph.replay()
                search = shape.parts[number].search
            else:
                search = _next_part(start, shape.source.values, search)
                shape.eager_parts = number + 1
            number += 1
        return search.best()


def _next_part(start: StartSearch, source: Any, search: BeamSearch | None) -> BeamSearch:
    """Return the search after the next part; the one given stays as it is, since a graph may write its tensors."""
    following = start(source) if search is None else search.fork()
    following.run_part()
    return following


def _capture(start: StartSearch, source: Any, search: BeamSearch | None, device: torch.device) -> _Part:
    found: list[BeamSearch] = []
    graph = capture_graph(device, lambda: found.append(_next_part(start, source, search)))
    return _Part(graph, found[0])

"""Beam searches captured in device graphs: every evaluation translates the same sentences, in the same batches."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
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

MAX_SHAPES = 4  # of an evaluation's batches; a graph keeps some 1,000 kernels for each part of a search

StartSearch = Callable[[Any], BeamSearch]
"""Encode the packed source of a batch and return the search for its translations."""


@dataclass
class _Part:
    """A graph of some steps, and the search after them, whose tensors the graph writes."""

    graph: DeviceGraph
    search: BeamSearch


@dataclass
class _Shape:
    """The source that the graphs for batches of one shape read, and the parts of their search."""

    source: StaticInputs
    parts: list[_Part]


class CapturedSearches:
    """Captures the search for batches of a shape at the first of them, and replays it from then on.

    A search is captured up to its maximum length: how many of its parts run depends on the weights.
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
            own_source = StaticInputs(source)
            self._shapes[key] = _Shape(own_source, _capture_parts(start, own_source.values, device))
        shape = self._shapes[key]
        shape.source.copy_from(tensors)
        for part in shape.parts:
            part.graph.replay()
            if part.search.is_finished():
                break
        return part.search.best()


def _capture_parts(start: StartSearch, source: Any, device: torch.device) -> list[_Part]:
    """Capture a search of `source` up to its maximum length. Its first part runs once before."""
    parts: list[_Part] = []
    while not parts or not parts[-1].search.at_max_length:
        parts.append(_capture_part(start, source, parts[-1].search if parts else None, device))
    return parts


def _capture_part(start: StartSearch, source: Any, before: BeamSearch | None, device: torch.device) -> _Part:
    made: list[BeamSearch] = []

    def run_part() -> None:
        made.append(start(source) if before is None else before.fork())  # whose tensors a graph may write
        made[-1].run_part()

    graph = capture_graph(device, run_part, eager_passes=int(before is None))
    return _Part(graph, made[-1])

"""The accelerators of a published system, from its description, the names of system and device, and the log."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.found_files import as_name
from .mllog import LogEntry
from .runs import Run

_NAMED_AFTER_DEVICES = re.compile(r"(?:gpu[_-])?(?P<device>[a-z]\d{2,3})[x_-](?P<number>\d{1,5})", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(?<=[-.])\d{1,9}$")  # "tpuv2-512", "cloud_v2.512"
_CACHE_CLEAR_V05 = "run_clear_caches"


def apply_system_description(run: Run, description: Mapping[str, Any], entries: Sequence[LogEntry]) -> None:
    """Set the accelerators of a run from the description of its system, in the form of v0.5, v0.6 or later.

    Without a description they are those that the system is named after, as in "a100-8".
    """
    if not description:
        _apply_system_name(run)
        return
    nodes = description.get("nodes")
    node = nodes[0] if isinstance(nodes, list) and nodes and isinstance(nodes[0], dict) else nodes
    merged = {**description} | (node if isinstance(node, dict) else {})
    fields = {str(key).replace(" ", "_"): value for key, value in merged.items()}
    accelerator = as_name(fields.get("accelerator_model_name") or fields.get("accelerator") or "")
    run.accelerator = "" if accelerator.upper() == "N/A" else accelerator
    per_node = _first_integer(fields.get("accelerators_per_node", fields.get("num_accelerators")))
    num_nodes = _first_integer(fields.get("number_of_nodes", fields.get("num_nodes"))) or 1
    if run.dialect == "v0.5" and per_node:
        num_nodes = _num_nodes_v05(run, per_node, num_nodes, entries)
    run.num_accelerators = per_node * num_nodes if per_node is not None else None
    run.software = as_name(fields.get("framework") or "")


def _num_nodes_v05(run: Run, per_node: int, num_nodes: int, entries: Sequence[LogEntry]) -> int:
    """Return by how many nodes to multiply the accelerators that a description of v0.5 states.

    Pods state all their accelerators per node. One description covers clusters of several sizes; each node of a run
    clears its caches.
    """
    names = (run.accelerator, run.system)
    if num_nodes > 1 and any((match := _LAST_NUMBER.search(name)) and int(match[0]) == per_node for name in names):
        run.inferred.append(f"{per_node} accelerators are those of all {num_nodes} nodes, by the name of the system")
        return 1
    cleared = sum(entry.key == _CACHE_CLEAR_V05 for entry in entries)
    if 1 < cleared < num_nodes:
        run.inferred.append(f"{cleared} nodes cleared their caches: the run used these, not all {num_nodes}")
        return cleared
    return num_nodes


def _apply_system_name(run: Run) -> None:
    if match := _NAMED_AFTER_DEVICES.fullmatch(run.system):
        run.accelerator, run.num_accelerators = match["device"].upper(), int(match["number"])
        run.inferred.append("the accelerators are taken from the name of the system")


def _first_integer(value: Any) -> int | None:
    """Return the first integer in a text, at most 9 digits of it."""
    match = re.search(r"[0-9]{1,9}", str(value)) if value is not None else None
    return int(match[0]) if match else None

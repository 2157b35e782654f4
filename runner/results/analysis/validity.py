"""What telemetry has to say of the runs of a cell: their energy and cost, and what speaks against their times."""

import statistics
from collections.abc import Iterable, Sequence

from ...core.formatting import format_energy
from .findings import Finding
from .groups import Cell


def findings(cells: Iterable[Cell]) -> list[Finding]:
    """A note a cell with known energy or cost, and a flag for each thing that was wrong with some of its runs."""
    return [found for cell in cells for found in (*_energy(cell), *_flags(cell))]


def _energy(cell: Cell) -> Iterable[Finding]:
    told = [run.own["telemetry"] for run in cell.converged if run.own.get("telemetry")]
    costs = [run.own["cost"]["dollars"] for run in cell.converged if run.own.get("cost")]
    kind = "energy_joules" if any(entry.get("cards") for entry in told) else "host_energy_joules"
    known = [entry for entry in told if entry.get(kind)]
    parts = []
    if known:
        source = " and ".join(dict.fromkeys(entry[kind.replace("joules", "source")] for entry in known))
        parts.append(f"energy-to-train {format_energy(_mean(known, kind))} ({source})")
        parts.append(f"{_mean(known, 'mean_watts'):,.0f} W")
        parts.append(f"{_mean(known, 'samples_per_joule'):,.4g} samples/J")
    if costs:
        parts.append(f"cost-to-train ${statistics.mean(costs):,.3g}")
    if parts:
        count = max(len(known), len(costs))
        runs = f"mean of {count} runs" if count > 1 else "one run"
        if known and costs and len(known) != len(costs):
            runs += f", energy of {len(known)}, cost of {len(costs)}"
        yield Finding("note", cell.title, f"{', '.join(parts)}: {runs}.")


def _flags(cell: Cell) -> Iterable[Finding]:
    words: dict[str, list[str]] = {}
    for run in cell.runs:
        for name, sentence in (run.own.get("flags") or {}).items():
            words.setdefault(name, []).append(sentence)
    for name, told in words.items():
        yield Finding("flag", cell.title, f"{name}: {len(told)} of {len(cell.runs)} runs, such as: {told[0]}.")


def _mean(entries: Sequence[dict[str, float]], name: str) -> float:
    return statistics.mean(entry[name] for entry in entries)

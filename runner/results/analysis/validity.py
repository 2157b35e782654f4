"""Energy, cost and validity flags of the runs of a group, from their run records."""

import statistics
from collections.abc import Callable, Iterable

from ...core.formatting import format_energy
from ...record.run_record import RunRecord, TelemetrySummary
from .findings import Finding, FindingKind
from .groups import RunGroup
from .intervals import Interval, arithmetic_mean


def check(groups: Iterable[RunGroup]) -> list[Finding]:
    """Return a note for each group with known energy or cost, and a flag for each validity flag of its runs."""
    return [finding for group in groups for finding in (*_describe_energy(group), *_describe_flags(group))]


def mean_energy(group: RunGroup) -> Interval:
    """Return the mean joules of the converged runs: of their GPUs, without GPUs of the hosts."""
    of_gpus = _has_gpus(group)
    return arithmetic_mean(_means(group, lambda record: _joules(record, of_gpus)))


def mean_cost(group: RunGroup) -> Interval:
    """Return the mean cost of the converged runs in dollars."""
    return arithmetic_mean(_means(group, _usd))


def _records(group: RunGroup) -> list[RunRecord]:
    return [run.run_record for run in group.converged_runs if run.run_record is not None]


def _means(group: RunGroup, value_of: Callable[[RunRecord], float | None]) -> list[float]:
    """Return the mean of the known values of each independent run, whose repeats are no further observations."""
    means = []
    for cluster in group.independent_runs:
        records = [run.run_record for run in cluster if run.run_record is not None]
        if values := [value for record in records if (value := value_of(record))]:
            means.append(statistics.mean(values))
    return means


def _has_gpus(group: RunGroup) -> bool:
    """Return whether energy is that of GPUs; without GPUs it is that of the hosts."""
    return any(record.telemetry.gpus for record in _records(group) if record.telemetry is not None)


def _joules(record: RunRecord, of_gpus: bool) -> float | None:
    return _energy_of(record.telemetry, of_gpus)[0] if record.telemetry is not None else None


def _usd(record: RunRecord) -> float | None:
    return record.cost.usd if record.cost is not None else None


def _describe_energy(group: RunGroup) -> Iterable[Finding]:
    records = _records(group)
    summaries = [record.telemetry for record in records if record.telemetry is not None]
    costs = [usd for record in records if (usd := _usd(record)) is not None]
    of_gpus = _has_gpus(group)
    measured = [summary for summary in summaries if _energy_of(summary, of_gpus)[0]]
    parts = []
    if measured:
        sources = [_energy_of(summary, of_gpus)[1] for summary in measured]
        energy = _format_mean(mean_energy(group), format_energy)
        parts.append(f"energy-to-train {energy} ({' and '.join(dict.fromkeys(sources))})")
        if watts := _known(summary.mean_watts for summary in measured):
            parts.append(f"{statistics.mean(watts):,.0f} W")
        if rates := _known(summary.samples_per_joule for summary in measured):
            parts.append(f"{statistics.mean(rates):,.4g} samples/J")
    if costs:
        parts.append(f"cost-to-train {_format_mean(mean_cost(group), '${:,.3g}'.format)}")
    if parts:
        count = max(len(measured), len(costs))
        converged = " converged" if group.num_failed else ""
        runs = f"mean of {count}{converged} runs" if count > 1 else f"one{converged} run"
        if measured and costs and len(measured) != len(costs):
            runs += f", energy of {len(measured)}, cost of {len(costs)}"
        yield Finding(FindingKind.NOTE, group.title, f"{', '.join(parts)}: {runs}.")


def _format_mean(mean: Interval, format_value: Callable[[float], str]) -> str:
    bounds = f" ({format_value(mean.low)} to {format_value(mean.high)})" if mean.is_bounded else ""
    return f"{format_value(mean.estimate)}{bounds}"


def _energy_of(summary: TelemetrySummary, of_gpus: bool) -> tuple[float, str]:
    """Return joules and their source; 0 if unknown."""
    if of_gpus:
        return summary.energy_joules or 0.0, summary.energy_source or ""
    return summary.host_energy_joules or 0.0, summary.host_energy_source or ""


def _describe_flags(group: RunGroup) -> Iterable[Finding]:
    messages: dict[str, list[str]] = {}
    for run in group.runs:
        for name, message in (run.run_record.flags if run.run_record is not None else {}).items():
            messages.setdefault(name, []).append(message)
    for name, of_runs in messages.items():
        yield Finding(
            FindingKind.FLAG,
            group.title,
            f"{name}: {len(of_runs)} of {len(group.runs)} runs, for example: {of_runs[0]}.",
        )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]

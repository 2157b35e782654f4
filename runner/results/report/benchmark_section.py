"""The section of one benchmark: its table, charts, and folded details."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..analysis.comparison import Comparison
from ..analysis.groups import RunGroup
from ..analysis.ranking import Ranking
from . import comparison_text
from .benchmark_charts import Series, charts_of_benchmark, format_duration
from .build import Report
from .chart import MAX_SERIES, Plot, interval_columns
from .comparison_means import shown_ratio
from .comparison_table import ratio_table
from .page_text import format_interval, format_number
from .panels import format_bounds, verdict_word
from .ranking_panel import format_score, ranking_table
from .run_section import RunSection, run_section
from .systems import Lineup, System
from .tables import Table


@dataclass(frozen=True)
class ComparisonSentences:
    """The verdict on the system `label` against the baseline, and what to know to trust it."""

    label: str
    phrase: str
    reasons: Sequence[str]
    differences: Sequence[str]


@dataclass(frozen=True)
class BenchmarkSection:
    """What the page shows of one benchmark; everything from `runs` on is folded."""

    title: str
    anchor: str
    round: str
    scale: str
    answer: str
    table: Table
    plots: Sequence[Plot]
    runs: RunSection
    system_table: Table
    ratios: Table | None
    comparisons: Sequence[ComparisonSentences]


def benchmark_section(
    workload: str,
    anchor: str,
    lineup: Lineup,
    report: Report,
    ranking: Ranking | None,
    run_anchors: Mapping[str, str],
) -> BenchmarkSection:
    """Return the section of a benchmark of a lineup, with its ranking as the table if there is one.

    `run_anchors` are those of run groups and runs, as `run_section` takes them.
    """
    groups = [(system, group) for (system, name), group in lineup.groups.items() if name == workload]
    ranks = {entry.group.title: rank for rank, entry in enumerate(ranking.entries)} if ranking else {}

    def order(entry: tuple[System, RunGroup]) -> tuple[float, ...]:
        system, group = entry
        if ranking:
            return ranks.get(group.title, math.inf), _minutes(group)
        return system != lineup.baselines[workload], _minutes(group)

    groups.sort(key=order)
    systems = {group.title: system for system, group in groups}
    own = [comparison for comparison in report.comparisons if comparison.other.title in systems]
    name = anchor.removeprefix("work-")
    drawn = [Series(system.label, group) for system, group in groups[:MAX_SERIES]]
    title = " ".join(part for part in (groups[0][1].model, groups[0][1].round, groups[0][1].runs[0].scale) if part)
    first, times = groups[0][1], _group_table(f"{name}-groups", groups, own)
    return BenchmarkSection(
        title,
        anchor,
        first.round,
        first.runs[0].scale,
        _ranked_answer(ranking, systems) if ranking else _answer(groups),
        ranking_table(f"{name}-ranking", ranking, systems) if ranking else times,
        charts_of_benchmark(name, drawn, [scaling for scaling in report.scalings if scaling.source == workload]),
        run_section(f"{name}-runs", title, groups, run_anchors),
        _system_table(f"{name}-systems", groups),
        times if ranking else ratio_table(f"{name}-comparisons", own, systems) if own else None,
        [_describe(comparison, systems[comparison.other.title].label) for comparison in own],
    )


def _ranked_answer(ranking: Ranking, systems: Mapping[str, System]) -> str:
    """Return the fastest entry in words."""
    if not ranking.scored:
        return "no entry has a score"
    first = ranking.scored[0]
    label = systems[first.group.title].label
    return f"{format_score(first)} min on {label}, the fastest of {len(ranking.entries)}"


def _describe(comparison: Comparison, label: str) -> ComparisonSentences:
    phrase, reasons = comparison_text.phrase(comparison), comparison_text.reasons(comparison)
    return ComparisonSentences(label, phrase, reasons, comparison_text.differences(comparison))


def _minutes(group: RunGroup) -> float:
    return group.mean_minutes.estimate if group.converged_runs else math.inf


def _answer(groups: Sequence[tuple[System, RunGroup]]) -> str:
    """Return the fastest result in words."""
    system, group = min(groups, key=lambda entry: _minutes(entry[1]))
    if not group.converged_runs:
        return "no run reached the target"
    fastest = "" if len(groups) == 1 else f", the fastest of {len(groups)}"
    return f"{format_duration(60 * group.mean_minutes.estimate)} on {system.label}{fastest}"


def _group_table(name: str, groups: Sequence[tuple[System, RunGroup]], comparisons: Sequence[Comparison]) -> Table:
    """Return a row per system: its times, and its speed against the baseline."""
    by_title = {comparison.other.title: comparison for comparison in comparisons}
    unit = groups[0][1].progress_unit
    columns = ["GPUs", "Runs", "Minutes to train", unit.capitalize(), f"Seconds per {unit.removesuffix('s')}"]
    columns += ["Against the baseline"] if by_title else []
    rows, data = [], []
    for system, group in groups:
        means = [group.mean_minutes, group.mean_epochs, group.mean_seconds_per_epoch]
        shown = [format_interval(mean, 3) if mean.n else "not reached" for mean in means]
        row = [system.label, _run_counts(group), *shown]
        rows.append([*row, _against(by_title.get(group.title))] if by_title else row)
        entry: dict[str, Any] = {"group": group.title, "accelerators": group.accelerators, "runs": len(group.runs)}
        entry |= {"failed": group.num_failed, "minutes_olympic": group.minutes_olympic}
        for key, mean in zip(("minutes", "epochs", "seconds_per_epoch"), means, strict=True):
            entry |= interval_columns(key, mean)
        data.append(entry | {"scaling_factor": group.scaling_factor, "median_minutes": group.survival.median})
    drawn: list[int | None] = [number if number < MAX_SERIES else None for number in range(len(groups))]
    caption = "Geometric means of the runs that reached the target, with 95% intervals"
    return Table(name, caption, columns, rows, data, 1, drawn, [system.gpu for system, _ in groups])


def _against(comparison: Comparison | None) -> str:
    if comparison is None:
        return "baseline"
    ratio = shown_ratio(comparison)
    word = verdict_word(comparison.verdict, comparison.margin)
    if not ratio.n:
        return word
    kind = "" if comparison.ratio else " per epoch"
    bounds = f" ({format_bounds(ratio)})" if ratio.is_bounded else ""
    return f"{format_number(ratio.estimate, 3)}×{kind}{bounds}, {word}"


def _run_counts(group: RunGroup) -> str:
    """Return the number of runs, and how many of them failed."""
    return f"{len(group.runs)}, {group.num_failed} failed" if group.num_failed else str(len(group.runs))


def _system_table(name: str, groups: Sequence[tuple[System, RunGroup]]) -> Table:
    """Return what the logs call each system, with MLPerf's score, the median and the validity flags."""
    columns = [
        "GPUs",
        "System",
        "Device",
        "Setting",
        "Minutes, olympic mean",
        "Minutes, median (Kaplan-Meier)",
        "Flags",
    ]
    rows, data = [], []
    for system, group in groups:
        flags = Counter(flag for run in group.runs for flag in run.flags)
        median = group.survival.median
        row = [
            system.label,
            group.origin or "not reported",
            group.accelerators or "not reported",
            group.setting or "–",
            _score(group),
            format_number(median) if median is not None and math.isfinite(median) else "not reached",
            ", ".join(f"{times} {flag}" for flag, times in flags.items()) or "none",
        ]
        rows.append(row)
        data.append(dict(zip(columns, row, strict=True)))
    gpus = [system.gpu for system, _ in groups]
    return Table(name, "Systems as the logs name them, and MLPerf's score", columns, rows, data, 4, gpus=gpus)


def _score(group: RunGroup) -> str:
    if group.minutes_olympic is None:
        failed = f"no result: {group.num_failed} of {len(group.runs)} failed"
        return failed if group.num_failed else f"needs at least 3 runs, has {len(group.runs)}"
    if group.scaling_factor:
        return f"{format_number(group.minutes_scaled or 0.0)} (scaled; unscaled {format_number(group.minutes_olympic)})"
    return format_number(group.minutes_olympic)

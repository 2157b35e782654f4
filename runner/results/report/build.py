"""Read and analyze results. The page, the terminal tables and the CSV files only present the `Report`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ...core.errors import ConfigurationError, DataError
from ...core.found_files import UnreadableFile, make_visible
from ...record.published_results import PublishedEntry, find_benchmark, read_all
from ..analysis import (
    convergence,
    findings,
    plausibility,
    pods,
    ranking,
    roofline,
    run_order,
    scaling,
    throughput_comparison,
    throughput_groups,
    validity,
)  # fmt: skip
from ..analysis.comparison import Comparison, compare_all
from ..analysis.external_comparison import has_system
from ..analysis.findings import Finding, FindingKind
from ..analysis.groups import RunGroup, group_runs
from ..analysis.own_measurements import measure_throughput, split_by_run
from ..analysis.ranking import Ranking
from ..analysis.roofline import Roofline
from ..analysis.scaling import PeakFit, Scaling
from ..analysis.scores import GpuScore, PerformanceProfile, profile_performance, score_gpus
from ..analysis.throughput_groups import ThroughputGroup
from ..analysis.verdicts import Verdict
from ..parse import external, sources
from ..parse.external import OWN_RUNS, ExternalMeasurement
from ..parse.runs import Run
from . import comparison_text, speed_text
from .systems import Lineup, System, has_name, line_up


@dataclass
class Report:
    """All results at some paths and what follows from them; `measurements` include those of `throughput_groups`.

    `unreadable` holds the errors of the files that were passed over, in full or in part.
    """

    paths: list[str]
    runs: list[Run] = field(default_factory=list)
    groups: list[RunGroup] = field(default_factory=list)
    lineups: list[Lineup] = field(default_factory=list)
    throughput_groups: list[ThroughputGroup] = field(default_factory=list)
    rooflines: list[Roofline] = field(default_factory=list)
    measurements: list[ExternalMeasurement] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    rankings: list[Ranking] = field(default_factory=list)
    scores: list[GpuScore] = field(default_factory=list)
    profiles: list[PerformanceProfile] = field(default_factory=list)
    scalings: list[Scaling] = field(default_factory=list)
    peak_fits: list[PeakFit] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    published: dict[str, list[PublishedEntry]] = field(default_factory=dict)
    unreadable: list[UnreadableFile] = field(default_factory=list)

    @cached_property
    def systems(self) -> dict[str, System]:
        """The system of each group by the group's title."""
        return {group.title: system for lineup in self.lineups for (system, _), group in lineup.groups.items()}

    @property
    def external_measurements(self) -> list[ExternalMeasurement]:
        """The measurements that are taken from the literature."""
        return [measurement for measurement in self.measurements if measurement.source != OWN_RUNS]


def build_report(paths: Sequence[Path], baseline: str = "", *, published: bool = False) -> Report:
    """Analyze run folders, published results, logs, and CSV or JSON files of external measurements at `paths`.

    `baseline` is text in the name of the system that others are compared with; with `published`, the published entries
    of the benchmarks are listed too. Raises `DataError` if there is nothing
    to read, and `ConfigurationError` if no system has that name.
    """
    if not paths:
        raise DataError(
            "No path is given: name run folders, published results, logs or files of external measurements."
        )
    tables = external.find_tables(paths)
    others = [path for path in paths if path not in tables]
    report = Report([make_visible(str(path)) for path in paths])
    unreadable = report.unreadable
    report.throughput_groups = throughput_groups.read_throughput_groups(others, unreadable.append)
    report.rooflines = roofline.build_rooflines(
        report.throughput_groups, roofline.read_peaks(others, unreadable.append)
    )
    report.measurements = external.read_tables(tables, unreadable.append)
    report.measurements += measure_throughput(report.throughput_groups)
    report.runs = sources.read_runs(others, needed=False, pass_over=unreadable.append) if others else []
    if not (report.runs or report.rooflines or report.measurements):
        sources.require_results(others, unreadable)
    report.groups = group_runs(report.runs)
    if published:
        names = {group.benchmark for group in report.groups} & {entry.benchmark for entry in read_all()}
        report.published = {name: find_benchmark(name) for name in sorted(names)}
    report.lineups = line_up(report.groups, baseline)
    if baseline:
        _require_system(report, baseline)
    report.comparisons = compare_all([pair for lineup in report.lineups for pair in lineup.pairs])
    for lineup in report.lineups:
        report.rankings += ranking.rank_round(lineup.groups.values()) if lineup.is_ranked else []
    report.scores = score_gpus(report.comparisons)
    report.profiles = profile_performance(report.groups)
    repeats = measure_throughput(split_by_run(report.throughput_groups))
    report.scalings = scaling.compute_scalings(report.groups, [*report.external_measurements, *repeats])
    report.peak_fits = scaling.fit_speed_to_peaks(report.measurements, report.groups)
    report.findings = [*findings.list_unreadable(unreadable), *_find(report)]
    return report


def _require_system(report: Report, name: str) -> None:
    """Raise `ConfigurationError` if no system has the name."""
    systems = {system: lineup.groups_of(system) for lineup in report.lineups for system in lineup.systems}
    if any(has_name(system, groups, name) for system, groups in systems.items()):
        return
    if has_system(report.measurements, name):
        return
    known = [system.label for system in systems] + [entry.accelerator for entry in report.measurements]
    names = "; ".join(list(dict.fromkeys(known))[:12])
    raise ConfigurationError(f"No system is called --baseline '{name}': choose part of one of: {names}.")


def _find(report: Report) -> Iterable[Finding]:
    """Yield the findings of every analysis."""
    if num_unfinished := sum(run.is_unfinished for run in report.runs):
        verb = "run has" if num_unfinished == 1 else "runs have"
        yield Finding(
            FindingKind.NOTE, "unfinished runs", f"{num_unfinished} {verb} not finished and cannot be used yet."
        )
    yield from findings.check_measurements(report.measurements, report.scalings, report.peak_fits)
    for pair in throughput_comparison.compare_peer_to_peer(report.throughput_groups):
        message = f"Peer-to-peer enabled vs. disabled: {speed_text.throughput_phrase(pair)}."
        yield Finding(FindingKind.NOTE, pair.other.title, message)
    yield from roofline.check(report.rooflines)
    yield from _banners(report.comparisons)
    yield from findings.check_precision(report.groups)
    yield from convergence.check(report.groups)
    yield from plausibility.check(report.groups, report.measurements)
    yield from run_order.check(report.groups, report.throughput_groups)
    yield from validity.check(report.groups)
    yield from pods.check(report.groups)


def _banners(comparisons: Iterable[Comparison]) -> Iterable[Finding]:
    """Yield one banner per workload; the reasons for each pair are shown with the pair."""
    by_workload: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        by_workload.setdefault(comparison.baseline.workload, []).append(comparison)
    for workload, pairs in by_workload.items():
        warned = [comparison for comparison in pairs if comparison.is_unsafe]
        if len(pairs) == 1 and warned:
            sentences = [comparison_text.phrase(pairs[0]), *comparison_text.reasons(pairs[0])]
            yield Finding(FindingKind.BANNER, workload, f"{pairs[0].other.title}: {'; '.join(sentences)}.")
        elif warned:
            unit = pairs[0].baseline.progress_unit
            incomparable = sum(comparison.verdict is Verdict.NOT_COMPARABLE for comparison in warned)
            message = (
                f"The {unit} of {len(warned)} of {len(pairs)} pairs are not shown equal or runs failed; {incomparable} "
                f"of them cannot be compared by time-to-train. Compare the time per {unit[:-1]} instead."
            )
            yield Finding(FindingKind.BANNER, workload, message)

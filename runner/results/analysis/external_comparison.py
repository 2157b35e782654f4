"""Compare systems by measurements that others have published, and by own runs beside them.

Systems are compared where both were measured alike: one network, task, number of GPUs, precision, interconnect and
batch size. The best batch size of each side would be another comparison: a larger batch takes other epochs to the
target, and the best of several measurements is also the luckiest. The terminal and the report page show this one.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...core.errors import DataError
from ..parse.external import OWN_RUNS, ExternalMeasurement
from .external_systems import SPEEDS, SYSTEM_FIELDS, TIMES, ExternalSystem, all_systems, find_system, is_system
from .intervals import UNKNOWN, Interval, LogEstimate, Sample, log_mean, log_ratio, rounding_floor
from .scores import combine_fixed
from .verdicts import ALONE, Levels, Verdict, decide, family_levels


@dataclass(frozen=True)
class SpeedRow:
    """One setting measured on both systems; `speed` is the speed of the other over that of the baseline.

    `baseline` and `other` are geometric means of repeats, None where the study publishes the ratio alone. `rounding` is
    the standard deviation of the log of the ratio that rounding to the published digits adds.
    """

    workload: str
    task: str
    setting: str
    metric: str
    baseline: float | None
    other: float | None
    speed: LogEstimate
    rounding: float

    @property
    def ratio(self) -> float:
        """The estimate of `speed`."""
        return math.exp(self.speed.log)


@dataclass(frozen=True)
class ExternalComparison:
    """Two systems and their measurements at equal settings; the verdict is reached at `levels` among others."""

    baseline: ExternalSystem
    other: ExternalSystem
    rows: list[SpeedRow]
    levels: Levels = ALONE

    def ratios(self, task: str = "") -> dict[str, LogEstimate]:
        """Return the speed ratio of each network, the mean over its settings; of one task if `task` is given."""
        rows: dict[str, list[LogEstimate]] = {}
        for row in self.rows:
            if task in ("", row.task):
                rows.setdefault(row.workload, []).append(row.speed)
        return {workload: combine_fixed(speeds) for workload, speeds in rows.items()}

    @cached_property
    def trained(self) -> dict[str, LogEstimate]:
        """The ratios that the one number rests on: of training, or of evaluation if nothing was trained."""
        return self.ratios("train") or self.ratios()

    @cached_property
    def speed(self) -> LogEstimate:
        """The mean of `trained` over networks, each of which counts once.

        Its interval is for further networks; for a single network it is that of its repeats.
        """
        ratios = list(self.trained.values())
        if len(ratios) == 1:
            return ratios[0]
        # Each network was rounded on its own.
        floor = max(row.rounding for row in self.rows)
        return log_mean(Sample(tuple(math.exp(ratio.log) for ratio in ratios), floor))

    @property
    def verdict(self) -> Verdict:
        """The verdict on the other system."""
        return decide(self.speed, levels=self.levels) if self.rows else Verdict.CANNOT_TELL

    @property
    def interval(self) -> Interval:
        """The interval of `speed` at the level of the verdict."""
        return self.speed.interval(self.levels.difference) if self.rows else UNKNOWN


def compare_systems(measurements: Sequence[ExternalMeasurement], names: Sequence[str]) -> list[ExternalComparison]:
    """Compare the named systems, or all of them without names, with the first; one name chooses the first.

    Where a name has a number of GPUs, names without one are of single GPUs.

    At most 5% of the calls call an equal system faster or slower, by Holm's (1979) step-down test.

    Raises `ConfigurationError` for an unknown name, and `DataError` if there are no two systems to compare.
    """
    useful = [entry for entry in measurements if entry.metric in (*SPEEDS, "epochs")]
    systems = [find_system(useful, name) for name in names] if len(names) > 1 else all_systems(useful, names)
    if len(names) > 1 and any(system.count for system in systems):
        pairs = zip(systems, names, strict=True)
        systems = [system if system.count else find_system(useful, f"1 x {name}") for system, name in pairs]
    if len(systems) < 2:
        raise DataError("The measurements are of one system: name another file or folder to compare it with.")
    baseline, *others = systems
    comparisons = [ExternalComparison(baseline, other, _match(baseline, other)) for other in others]
    levels = family_levels([pair.speed if pair.rows else None for pair in comparisons])
    return [replace(pair, levels=level) for pair, level in zip(comparisons, levels, strict=True)]


def compare_studies(
    measurements: Iterable[ExternalMeasurement], baseline: str = ""
) -> dict[str, list[ExternalComparison]]:
    """Return the comparisons of each study that measured two systems alike, by its title; own runs are one study.

    `baseline` names the first system of the studies that have it.
    """
    comparisons = {}
    for title, entries in _by_study(measurements).items():
        try:
            pairs = compare_systems(entries, [baseline] if is_system(entries, baseline) else [])
        except DataError:
            continue  # it is of one system
        if any(pair.rows for pair in pairs):
            comparisons[title] = pairs
    return comparisons


def has_system(measurements: Iterable[ExternalMeasurement], name: str) -> bool:
    """Return whether a study has a system of this name."""
    return any(is_system(entries, name) for entries in _by_study(measurements).values())


def _by_study(measurements: Iterable[ExternalMeasurement]) -> dict[str, list[ExternalMeasurement]]:
    studies: dict[str, list[ExternalMeasurement]] = {}
    for entry in measurements:
        studies.setdefault("Throughput runs" if entry.source == OWN_RUNS else entry.study, []).append(entry)
    return studies


def _match(baseline: ExternalSystem, other: ExternalSystem) -> list[SpeedRow]:
    """Return a row for every setting that was measured on both, or else for every published ratio of the two."""
    rows = [*_measured_rows(baseline, other), *_published_rows(baseline, other)]
    ranks: dict[tuple[str, str], int] = {}
    for row in rows:
        key = row.workload, row.task
        ranks[key] = min(ranks.get(key, len(SPEEDS)), SPEEDS.index(row.metric))
    return [row for row in rows if row.metric == SPEEDS[ranks[row.workload, row.task]]]


def _measured_rows(baseline: ExternalSystem, other: ExternalSystem) -> Iterator[SpeedRow]:
    skipped = _skipped(baseline, other)
    first, second = (_by_setting(system, skipped) for system in (baseline, other))
    for key, entries in second.items():
        entry = entries[0]
        if key not in first:
            continue
        if entry.metric == "milliseconds" and entry.source == OWN_RUNS and baseline.count != other.count:
            continue  # own batches are per GPU: passes of several GPUs handle more samples
        values = ([each.value or 1.0 for each in same] for same in (first[key], entries))
        base, own = (Sample(tuple(of_side), rounding_floor(of_side)) for of_side in values)
        speed = log_ratio(base, own) if entry.metric in TIMES else log_ratio(own, base)
        yield SpeedRow(
            workload=entry.workload,
            task=entry.task,
            setting=_describe_setting(entry, skipped),
            metric=entry.metric,
            baseline=math.exp(log_mean(base).log),
            other=math.exp(log_mean(own).log),
            speed=speed,
            rounding=math.hypot(base.floor, own.floor),
        )


def _published_rows(baseline: ExternalSystem, other: ExternalSystem) -> Iterator[SpeedRow]:
    for (system, reference), sign in (((other, baseline), 1), ((baseline, other), -1)):
        for entry in system.measurements:
            if entry.metric == "speedup" and entry.value and entry.baseline == reference.title:
                speed = LogEstimate(sign * math.log(entry.value), math.nan, math.nan, 1)
                rounding = rounding_floor([entry.value])
                yield SpeedRow(entry.workload, entry.task, entry.note, "speedup", None, None, speed, rounding)


def _skipped(baseline: ExternalSystem, other: ExternalSystem) -> set[str]:
    """Return the fields that need not be equal: those that tell the systems apart, and the link of a single GPU."""
    skipped = {baseline.field}
    if baseline.count or other.count:
        skipped.add("num_accelerators")
    if 1 in (baseline.count, other.count):
        skipped.add("interconnect")
    return skipped


def _by_setting(system: ExternalSystem, skipped: set[str]) -> dict[tuple[object, ...], list[ExternalMeasurement]]:
    """Return the measured speeds by all that must be equal."""
    fields = [name for name in (*SYSTEM_FIELDS, "num_accelerators") if name not in skipped]
    settings: dict[tuple[object, ...], list[ExternalMeasurement]] = {}
    for entry in system.measurements:
        if entry.metric in SPEEDS and entry.metric != "speedup" and entry.value:
            if system.field == "interconnect" and entry.num_accelerators == 1:
                continue  # it has nothing to connect
            key = (entry.workload, entry.task, entry.metric, entry.batch, *(getattr(entry, name) for name in fields))
            settings.setdefault(key, []).append(entry)
    return settings


def _describe_setting(entry: ExternalMeasurement, skipped: set[str]) -> str:
    parts = {
        "num_accelerators": f"{entry.num_accelerators} GPU" + "s" * (entry.num_accelerators > 1),
        "precision": entry.precision,
        "interconnect": entry.interconnect,
        "batch": f"batch {entry.batch}" if entry.batch else "",
    }
    return ", ".join(part for name, part in parts.items() if part and name not in skipped)

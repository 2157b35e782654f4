"""Compare systems by measurements that others have published, and by own runs beside them.

Systems are compared where both were measured alike: one network, task, number of GPUs, precision, interconnect and
batch size. The best batch size of each side would be another comparison: a larger batch takes other epochs to the
target, and the best of several measurements is also the luckiest. The terminal and the report page show this one.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...core.errors import ConfigurationError, DataError
from ..parse.external import OUTCOMES, OWN_RUNS, ExternalMeasurement
from .comparison import MARGIN, Verdict, decide, holm_levels
from .groups import RunGroup
from .intervals import LEVEL, UNKNOWN, LogEstimate, Sample, bounds_as_json, log_mean, log_ratio
from .scores import combine_fixed

_TIMES = ("minutes", "minutes_total", "milliseconds")
_SPEEDS = ("samples_per_second", *_TIMES, "speedup")  # each network is compared by the first that both systems have
_SYSTEM_FIELDS = ("accelerator", "interconnect", "precision")  # the first that differs tells systems apart
_COUNTED = re.compile(r"(\d{1,6}) ?[x×] ?(.+)")


@dataclass(frozen=True)
class ExternalSystem:
    """One side: the measurements whose `field` has `value`, with `count` GPUs if that is not None."""

    field: str
    value: str
    count: int | None
    measurements: tuple[ExternalMeasurement, ...]

    @property
    def title(self) -> str:
        """Its name, with the number of GPUs if one is chosen."""
        name = self.value or f"{self.field} not stated"
        return f"{self.count} x {name}" if self.count else name

    def state(self, workload: str, task: str) -> str:
        """Return what became of the speed of a network: one of `OUTCOMES`, the best there is, or "not measured"."""
        same = (entry for entry in self.measurements if (entry.workload, entry.task) == (workload, task))
        outcomes = {entry.outcome for entry in same if entry.metric in _SPEEDS}
        return next((outcome for outcome in OUTCOMES if outcome in outcomes), "not measured")


@dataclass(frozen=True)
class SpeedRow:
    """One setting measured on both systems; `speed` is the speed of the other over that of the baseline.

    `baseline` and `other` are geometric means of repeats, None where the study publishes the ratio alone.
    """

    workload: str
    task: str
    setting: str
    metric: str
    baseline: float | None
    other: float | None
    speed: LogEstimate

    @property
    def ratio(self) -> float:
        """The estimate of `speed`."""
        return math.exp(self.speed.log)

    def to_json(self) -> dict[str, Any]:
        """Return the row as `timetrial compare --json` prints it."""
        fields = ("workload", "task", "setting", "metric", "baseline", "other", "ratio")
        return {name: getattr(self, name) for name in fields}


@dataclass(frozen=True)
class ExternalComparison:
    """Two systems and their measurements at equal settings; the verdict rests on the interval at `level`."""

    baseline: ExternalSystem
    other: ExternalSystem
    rows: list[SpeedRow]
    level: float = LEVEL

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
        return ratios[0] if len(ratios) == 1 else log_mean(Sample(tuple(math.exp(ratio.log) for ratio in ratios)))

    @property
    def verdict(self) -> Verdict:
        """The verdict on the other system."""
        return decide(self.speed, self.speed.interval(self.level)) if self.rows else Verdict.CANNOT_TELL

    @property
    def summary(self) -> str:
        """Names and verdict."""
        names = f"{self.other.title} against {self.baseline.title}"
        if not self.rows:
            return f"{names}: cannot tell, nothing was measured on both at equal settings."
        ratio = self.speed.interval(self.level)
        words = f"equal within {MARGIN:.0%}" if self.verdict == Verdict.EQUAL else self.verdict.value
        if not ratio.is_bounded:
            return f"{names}: cannot tell, one network was measured ({ratio.estimate:.3g} times as fast)."
        bounds = f"{self.level * 100:.3g}% CI: {ratio.low:.3g} to {ratio.high:.3g}"
        where = f"over {len(self.trained)} networks" if len(self.trained) > 1 else "on one network"
        return f"{names}: {words}, {ratio.estimate:.3g} times as fast ({bounds}) {where}."

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as the object that `timetrial compare --json` prints."""
        return {
            "baseline": self.baseline.title,
            "other": self.other.title,
            "verdict": self.verdict.value,
            **bounds_as_json(self.speed.interval(self.level) if self.rows else UNKNOWN, "ratio"),
            "level": self.level,
            "basis": "published speed",
            "measurements": [row.to_json() for row in self.rows],
            "reasons": [] if self.verdict != Verdict.CANNOT_TELL else [self.summary],
            "differences": [],
        }


def compare_systems(measurements: Sequence[ExternalMeasurement], names: Sequence[str]) -> list[ExternalComparison]:
    """Compare the named systems, or all of them without names, with the first; one name chooses the first.

    At most 5% of the calls give a false verdict, by Holm's (1979) step-down test.

    Raises `ConfigurationError` for an unknown name, and `DataError` if there are no two systems to compare.
    """
    useful = [entry for entry in measurements if entry.metric in (*_SPEEDS, "epochs")]
    systems = [_find_system(useful, name) for name in names] if len(names) > 1 else _all_systems(useful, names)
    if len(systems) < 2:
        raise DataError("The measurements are of one system: name another file or folder to compare it with.")
    baseline, *others = systems
    comparisons = [ExternalComparison(baseline, other, _match(baseline, other)) for other in others]
    levels = holm_levels([pair.speed.p_value if pair.rows else math.nan for pair in comparisons])
    return [replace(pair, level=level) for pair, level in zip(comparisons, levels, strict=True)]


def compare_studies(
    measurements: Iterable[ExternalMeasurement], baseline: str = ""
) -> dict[str, list[ExternalComparison]]:
    """Return the comparisons of each study that measured two systems alike, by its title; own runs are one study.

    `baseline` names the first system of the studies that have it.
    """
    comparisons = {}
    for title, entries in _by_study(measurements).items():
        try:
            pairs = compare_systems(entries, [baseline] if _is_system(entries, baseline) else [])
        except DataError:
            continue  # it is of one system
        if any(pair.rows for pair in pairs):
            comparisons[title] = pairs
    return comparisons


def has_system(measurements: Iterable[ExternalMeasurement], name: str) -> bool:
    """Return whether a study has a system of this name."""
    return any(_is_system(entries, name) for entries in _by_study(measurements).values())


def _by_study(measurements: Iterable[ExternalMeasurement]) -> dict[str, list[ExternalMeasurement]]:
    studies: dict[str, list[ExternalMeasurement]] = {}
    for entry in measurements:
        studies.setdefault("Throughput runs" if entry.source == OWN_RUNS else entry.study, []).append(entry)
    return studies


def _is_system(entries: Sequence[ExternalMeasurement], name: str) -> bool:
    try:
        return bool(name and _find_system(entries, name))
    except ConfigurationError:
        return False


def _all_systems(entries: Sequence[ExternalMeasurement], names: Sequence[str]) -> list[ExternalSystem]:
    """Return all systems, the named one first; where only the number of GPUs differs, a system for each number."""
    named = _find_system(entries, names[0]) if names else None
    fields = [*([named.field] if named else []), *(() if named and named.count else _SYSTEM_FIELDS)]
    field = next((name for name in fields if len(_values(entries, name)) > 1), None)
    if field:
        systems = [_select(entries, field, value, None) for value in _values(entries, field)]
    else:
        counts = dict.fromkeys(entry.num_accelerators for entry in entries)
        systems = [_select(entries, "accelerator", entries[0].accelerator, count) for count in counts]
    if named and named.field == field:
        return [named, *(system for system in systems if system.value != named.value)]
    if named and named.count and not field:
        return [named, *(system for system in systems if system.count != named.count)]
    return systems


def _values(entries: Iterable[ExternalMeasurement], field: str) -> list[str]:
    """Return the values of a field; a single GPU has no interconnect."""
    known = (entry for entry in entries if field != "interconnect" or entry.num_accelerators > 1)
    return list(dict.fromkeys(getattr(entry, field) for entry in known))


def _select(entries: Iterable[ExternalMeasurement], field: str, value: str, count: int | None) -> ExternalSystem:
    chosen = (entry for entry in entries if getattr(entry, field) == value and count in (None, entry.num_accelerators))
    return ExternalSystem(field, value, count, tuple(chosen))


def _find_system(entries: Sequence[ExternalMeasurement], name: str) -> ExternalSystem:
    """Return the system with a name such as "V100" or "2 x T4"; part of a name is enough if it is of one system."""
    match = _COUNTED.fullmatch(name)
    count, wanted = (int(match[1]), match[2].casefold()) if match else (None, name.casefold())
    for is_same in (str.__eq__, str.__contains__):
        for field in _SYSTEM_FIELDS:
            found = [value for value in _values(entries, field) if is_same(value.casefold(), wanted)]
            system = _select(entries, field, found[0], count) if len(found) == 1 else None
            if system and system.measurements:
                return system
    known = dict.fromkeys(value for field in _SYSTEM_FIELDS for value in _values(entries, field) if value)
    raise ConfigurationError(f"{name} is no path, and not the name of one system in the tables: {', '.join(known)}.")


def _match(baseline: ExternalSystem, other: ExternalSystem) -> list[SpeedRow]:
    """Return a row for every setting that was measured on both, or else for every published ratio of the two."""
    rows = [*_measured_rows(baseline, other), *_published_rows(baseline, other)]
    ranks: dict[tuple[str, str], int] = {}
    for row in rows:
        key = row.workload, row.task
        ranks[key] = min(ranks.get(key, len(_SPEEDS)), _SPEEDS.index(row.metric))
    return [row for row in rows if row.metric == _SPEEDS[ranks[row.workload, row.task]]]


def _measured_rows(baseline: ExternalSystem, other: ExternalSystem) -> Iterator[SpeedRow]:
    skipped = _skipped(baseline, other)
    first, second = (_by_setting(system, skipped) for system in (baseline, other))
    for key, entries in second.items():
        entry = entries[0]
        if key not in first:
            continue
        if entry.metric == "milliseconds" and entry.source == OWN_RUNS and baseline.count != other.count:
            continue  # own batches are per GPU: passes of several GPUs handle more samples
        base, own = (Sample(tuple(each.value or 1.0 for each in same)) for same in (first[key], entries))
        speed = log_ratio(base, own) if entry.metric in _TIMES else log_ratio(own, base)
        yield SpeedRow(
            workload=entry.workload,
            task=entry.task,
            setting=_describe_setting(entry, skipped),
            metric=entry.metric,
            baseline=math.exp(log_mean(base).log),
            other=math.exp(log_mean(own).log),
            speed=speed,
        )


def _published_rows(baseline: ExternalSystem, other: ExternalSystem) -> Iterator[SpeedRow]:
    for (system, reference), sign in (((other, baseline), 1), ((baseline, other), -1)):
        for entry in system.measurements:
            if entry.metric == "speedup" and entry.value and entry.baseline == reference.title:
                speed = LogEstimate(sign * math.log(entry.value), math.nan, math.nan, 1)
                yield SpeedRow(entry.workload, entry.task, entry.note, "speedup", None, None, speed)


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
    fields = [name for name in (*_SYSTEM_FIELDS, "num_accelerators") if name not in skipped]
    settings: dict[tuple[object, ...], list[ExternalMeasurement]] = {}
    for entry in system.measurements:
        if entry.metric in _SPEEDS and entry.metric != "speedup" and entry.value:
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


def to_measurements(groups: Iterable[RunGroup]) -> list[ExternalMeasurement]:
    """Return time-to-train and epochs of run groups in the form of external measurements."""
    values: dict[str, Callable[[RunGroup], float]] = {
        "minutes": lambda group: group.mean_minutes.estimate,
        "epochs": lambda group: group.mean_epochs.estimate,
    }
    return [
        ExternalMeasurement(
            study=group.title,
            source=OWN_RUNS if group.runs[0].run_record is not None else group.submitter,
            published="",
            workload=" ".join(part for part in (group.model, group.runs[0].scale) if part and part != "reference"),
            task="train",
            accelerator=group.runs[0].accelerator or group.system,
            num_accelerators=group.runs[0].num_accelerators or 1,
            precision=group.runs[0].precision,
            interconnect="",
            batch=None,
            metric=metric,
            value=value_of(group),
            outcome="measured",
            baseline="",
            note="",
        )
        for group in groups
        for metric, value_of in values.items()
        if group.converged_runs and math.isfinite(value_of(group))
    ]

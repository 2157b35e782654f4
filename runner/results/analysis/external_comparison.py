"""Compare systems by measurements that others have published, and by own runs beside them.

Systems are compared where both were measured alike: one network, task, number of GPUs, precision, interconnect and
batch size. Such measurements have no repeats, so the interval of the pooled ratio is over networks.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from ...core.errors import ConfigurationError, DataError
from ..parse.external import OWN_RUNS, ExternalMeasurement
from .comparison import MARGIN, Verdict, decide, holm_levels
from .groups import RunGroup
from .intervals import LEVEL, UNKNOWN, LogEstimate, Sample, bounds_as_json, log_mean

_TIMES = ("minutes", "minutes_total", "milliseconds")
_SPEEDS = (*_TIMES, "samples_per_second", "speedup")
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


@dataclass(frozen=True)
class SpeedRow:
    """One measurement of both systems; `ratio` is the speed of the other over that of the baseline.

    `baseline` and `other` are None where the study publishes the ratio alone.
    """

    workload: str
    task: str
    setting: str
    metric: str
    baseline: float | None
    other: float | None
    ratio: float


@dataclass(frozen=True)
class ExternalComparison:
    """Two systems and their measurements at equal settings; the verdict rests on the interval at `level`."""

    baseline: ExternalSystem
    other: ExternalSystem
    rows: list[SpeedRow]
    level: float = LEVEL

    @cached_property
    def speed(self) -> LogEstimate:
        """The mean ratio of training speed over networks, each of which counts once."""
        trained = [row for row in self.rows if row.task == "train"] or self.rows
        logs: dict[str, list[float]] = {}
        for row in trained:
            logs.setdefault(row.workload, []).append(math.log(row.ratio))
        return log_mean(Sample(tuple(math.exp(sum(values) / len(values)) for values in logs.values())))

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
        return f"{names}: {words}, {ratio.estimate:.3g} times as fast ({bounds}) over {ratio.n} networks."

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as the object that `timetrial compare --json` prints."""
        return {
            "baseline": self.baseline.title,
            "other": self.other.title,
            "verdict": self.verdict.value,
            **bounds_as_json(self.speed.interval(self.level) if self.rows else UNKNOWN, "ratio"),
            "level": self.level,
            "basis": "published speed",
            "measurements": [asdict(row) for row in self.rows],
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


def _all_systems(entries: Sequence[ExternalMeasurement], names: Sequence[str]) -> list[ExternalSystem]:
    """Return all systems, the named one first."""
    field = next((field for field in _SYSTEM_FIELDS if len(_values(entries, field)) > 1), _SYSTEM_FIELDS[0])
    systems = [_select(entries, field, value, None) for value in _values(entries, field)]
    if not names:
        return systems
    first = _find_system(entries, names[0])
    return [first, *(system for system in systems if system.value != first.value)]


def _values(entries: Iterable[ExternalMeasurement], field: str) -> list[str]:
    return list(dict.fromkeys(getattr(entry, field) for entry in entries))


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
    """Return a row for every setting that was measured on both, and for every published ratio of the two."""
    is_counted = baseline.count is None and other.count is None
    sides = [_by_setting(system, is_counted=is_counted, skipped=baseline.field) for system in (baseline, other)]
    rows = []
    for key, entries in sides[1].items():
        if key in sides[0]:
            first, second = _mean(sides[0][key]), _mean(entries)
            ratio = first / second if entries[0].metric in _TIMES else second / first
            rows.append(_row(entries[0], first, second, ratio, baseline.field, is_counted=is_counted))
    for (system, reference), invert in (((other, baseline), False), ((baseline, other), True)):
        for entry in system.measurements:
            if entry.metric == "speedup" and entry.value and entry.baseline == reference.title:
                ratio = 1 / entry.value if invert else entry.value
                rows.append(SpeedRow(entry.workload, entry.task, entry.note, "speedup", None, None, ratio))
    return rows


def _by_setting(
    system: ExternalSystem, *, is_counted: bool, skipped: str
) -> dict[tuple[object, ...], list[ExternalMeasurement]]:
    """Return the measured speeds by all that must be equal; `skipped` is the field that tells the systems apart."""
    settings: dict[tuple[object, ...], list[ExternalMeasurement]] = {}
    for entry in system.measurements:
        if entry.metric in _SPEEDS and entry.metric != "speedup" and entry.value:
            if skipped == "interconnect" and entry.num_accelerators == 1:
                continue  # it has nothing to connect
            named = tuple("" if field == skipped else getattr(entry, field) for field in _SYSTEM_FIELDS)
            count = entry.num_accelerators if is_counted else None
            key = (entry.workload, entry.task, entry.metric, *named, entry.batch, count)
            settings.setdefault(key, []).append(entry)
    return settings


def _mean(entries: Sequence[ExternalMeasurement]) -> float:
    return math.exp(sum(math.log(entry.value or 1.0) for entry in entries) / len(entries))


def _row(
    entry: ExternalMeasurement, first: float, second: float, ratio: float, skipped: str, *, is_counted: bool
) -> SpeedRow:
    gpus = f"{entry.num_accelerators} GPU" + "s" * (entry.num_accelerators > 1) if is_counted else ""
    named = {"precision": entry.precision, "interconnect": entry.interconnect}
    parts = [gpus, *(value for field, value in named.items() if field != skipped)]
    parts.append(f"batch {entry.batch}" if entry.batch else "")
    setting = ", ".join(part for part in parts if part)
    return SpeedRow(entry.workload, entry.task, setting, entry.metric, first, second, ratio)


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

"""Rooflines: workloads below the peaks of their accelerator, by operations per second and operations per byte.

Williams, Waterman, Patterson: Roofline (Communications of the ACM 52(4), 2009). The peaks are measured by `timetrial
peaks`; operations and bytes are counted by `timetrial throughput`. The actual traffic to device memory is unknown
without a profiler. A workload is therefore a range of intensities: from the traffic of an execution in which nothing
is fused or cached to the least traffic of any execution.
"""

import itertools
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.formatting import slug
from ...core.found_files import PassOver, UnreadableFile, as_name, make_visible
from ...hardware.datasheets import find_datasheet
from ...record.record_file import decode
from ...record.validity import LOW_UTILIZATION
from ..parse.sources import ignore, read_json_object
from .findings import Finding, FindingKind
from .throughput_groups import NO_PEER_TO_PEER, ThroughputGroup

PEAKS_FILE, PEAKS_SCHEMA = "peaks.json", 1


@dataclass(frozen=True)
class Roofs:
    """Peaks of an accelerator: TFLOP/s by number format, GB/s of its memory (read and written)."""

    tflops: Mapping[str, float]
    gb_s: float | None


@dataclass(frozen=True)
class RooflinePoint:
    """A workload: achieved TFLOP/s per accelerator, and its operations per byte if nothing is fused and at most.

    `fraction_of_measured` and `fraction_of_datasheet` relate `tflops` to the peaks in its number format, None if these
    are unknown. `bound` names the limiting roof, or the host if the accelerator waited for it.
    """

    workload: str
    accelerator: str
    num_accelerators: int
    precision: str
    batch: int
    suffix: str
    tflops: float
    unfused_intensity: float
    max_intensity: float
    fraction_of_measured: float | None
    fraction_of_datasheet: float | None
    bound: str

    @property
    def title(self) -> str:
        """The workload with its accelerators and its batch size per accelerator."""
        accelerators = f"{self.num_accelerators} x {self.accelerator}"
        return f"{self.workload}, {accelerators}, {self.precision}, batch {self.batch}{self.suffix}"

    @property
    def short_title(self) -> str:
        """The title without the name of the accelerator."""
        count = f" on {self.num_accelerators}" if self.num_accelerators > 1 else ""
        return f"{self.workload}{count}, {self.precision}, batch {self.batch}{self.suffix}"


@dataclass(frozen=True)
class Roofline:
    """An accelerator's roofs, measured and of its data sheet, and the workloads below them, the fastest first.

    `fastest_rows` are rows of peaks.json: the fastest micro-benchmark of each kind and number format, and of each
    direction of transfers and all-reduces.
    """

    accelerator: str
    measured: Roofs | None
    datasheet: Roofs | None
    points: Sequence[RooflinePoint]
    source: str = ""
    fastest_rows: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class MeasuredPeaks:
    """The highest peaks of an accelerator over several peaks.json files; `source` names the files."""

    roofs: Roofs
    source: str
    fastest_rows: Sequence[Mapping[str, Any]]


_RowKey = tuple[str, ...]


@dataclass(frozen=True)
class _PeaksFile:
    path: str
    accelerator: str
    measured_at: float
    is_thorough: bool
    roofs: Roofs
    fastest_rows: Mapping[_RowKey, Mapping[str, Any]]


def read_peaks(paths: Iterable[Path], pass_over: PassOver = ignore) -> dict[str, MeasuredPeaks]:
    """Return the measured peaks in all peaks.json files at or below `paths`, by accelerator (CPUs by system as well).

    The highest value of several files counts. Complete and thorough measurements take precedence over quick or stopped
    ones. `pass_over` receives the error of each file that cannot be used.
    """
    by_accelerator: dict[str, list[_PeaksFile]] = {}
    for path in _find_peaks_files(paths):
        try:
            file = _read_peaks_file(path)
        except UnreadableFile as error:
            pass_over(error)
            continue
        by_accelerator.setdefault(file.accelerator, []).append(file)
    return {accelerator: _merge(files) for accelerator, files in by_accelerator.items()}


def _find_peaks_files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_file() and path.name == PEAKS_FILE:
            yield path
        for folder, subfolders, names in os.walk(path):
            subfolders.sort()
            if PEAKS_FILE in names:
                yield Path(folder, PEAKS_FILE)


def _read_peaks_file(path: Path) -> _PeaksFile:
    values = read_json_object(path)
    try:
        if values["schema"] != PEAKS_SCHEMA:
            raise ValueError("its schema is not supported")
        tflops, gb_s = values["peaks"]["tflops"], values["peaks"]["gb_s"]
        host = slug(str((values.get("system") or {}).get("hostname", "")))
        return _PeaksFile(
            path=make_visible(str(path)),
            accelerator=_roofline_name(as_name(values["card"]), host),
            measured_at=float(values["measured"]),
            is_thorough=not (bool(values["quick"]) | bool(values["stopped"])),
            roofs=Roofs(
                {as_name(name): _positive(peak) for name, peak in tflops.items()},
                None if gb_s is None else _positive(gb_s),
            ),
            fastest_rows=_fastest_rows(map(_checked_row, values.get("rows", ()))),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableFile(path, f"{type(error).__name__}: {error}, measure again with `timetrial peaks`") from error


def _positive(value: Any) -> float:
    """Return `value` as a float; raise ValueError unless it is a number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ValueError(f"{str(value)[:40]!r} is not a number above 0")
    return float(value)


def _checked_row(row: Any) -> Mapping[str, Any]:
    """Return a row of peaks.json; raise ValueError, KeyError or TypeError if it lacks what the report shows."""
    names = {key: as_name(decode(str, row[key], key)) for key in ("kind", "shape", "storage", "compute")}
    numbers = {key: None if row[key] is None else _positive(row[key]) for key in ("tflops", "gb_s")}
    times = {key: _positive(row[key]) for key in ("seconds", "fastest", "slowest")} if any(numbers.values()) else {}
    others = {"repeats": int, "core_mhz": float | None, "watts": float | None, "host_bound": bool}
    return {**names, **numbers, **times, **{key: decode(kind, row[key], key) for key, kind in others.items()}}


def _merge(files: Sequence[_PeaksFile]) -> MeasuredPeaks:
    tflops: dict[str, float] = {}
    gb_s: float | None = None
    paths: list[str] = []
    rows: dict[_RowKey, Mapping[str, Any]] = {}
    ordered = sorted(files, key=lambda file: (file.is_thorough, file.measured_at))
    # Thorough files come last and replace the peaks of the others.
    for _, same_quality in itertools.groupby(ordered, key=lambda file: file.is_thorough):
        same = list(same_quality)
        for name in dict.fromkeys(name for file in same for name in file.roofs.tflops):
            tflops[name] = max(file.roofs.tflops.get(name, 0.0) for file in same)
        gb_s = max((file.roofs.gb_s or 0.0 for file in same), default=0.0) or gb_s
        for file in same:
            paths.append(file.path)
            rows |= file.fastest_rows
    return MeasuredPeaks(Roofs(tflops, gb_s), ", ".join(reversed(paths)), list(rows.values()))


def _roofline_name(accelerator: str, system: str) -> str:
    """Return whose roofline it is: CPUs have no name of their own, so that of the system is added."""
    return f"{accelerator} of {system}" if accelerator == "cpu" and system else accelerator


def _fastest_rows(rows: Iterable[Mapping[str, Any]]) -> dict[_RowKey, Mapping[str, Any]]:
    fastest: dict[_RowKey, Mapping[str, Any]] = {}
    for row in rows:
        metric = "tflops" if row["tflops"] else "gb_s"
        # The shape of a transfer or all-reduce is its size, a comma, and its path, which is part of the key.
        route = "" if metric == "tflops" else row["shape"].partition(",")[2]
        key = (row["kind"], row["storage"], row["compute"], route)
        if row[metric] and (key not in fastest or row[metric] > fastest[key][metric]):
            fastest[key] = row
    return fastest


def build_rooflines(groups: Iterable[ThroughputGroup], peaks: Mapping[str, MeasuredPeaks]) -> list[Roofline]:
    """Return a roofline for each accelerator with measured peaks or with workloads whose operations were counted."""
    by_accelerator: dict[str, list[ThroughputGroup]] = {accelerator: [] for accelerator in peaks}
    for group in groups:
        if any(result.operations_per_second for result in group.results):
            name = _roofline_name(group.accelerator, slug(str(group.config["system"])))
            by_accelerator.setdefault(name, []).append(group)
    return [_build_roofline(name, same, peaks.get(name)) for name, same in sorted(by_accelerator.items())]


def _build_roofline(accelerator: str, groups: Sequence[ThroughputGroup], peaks: MeasuredPeaks | None) -> Roofline:
    measured = peaks.roofs if peaks else None
    sheet = find_datasheet(accelerator)
    datasheet = None
    if sheet:
        datasheet = Roofs({name: peak for name, peak in sheet["tflops"].items() if peak}, sheet.get("bandwidth_gb_s"))
    points = sorted((_build_point(group, measured, datasheet) for group in groups), key=lambda point: -point.tflops)
    if peaks is None:
        return Roofline(accelerator, measured, datasheet, points)
    return Roofline(accelerator, measured, datasheet, points, peaks.source, peaks.fastest_rows)


def _build_point(group: ThroughputGroup, measured: Roofs | None, datasheet: Roofs | None) -> RooflinePoint:
    counted = [(result.step_cost, rate) for result in group.results if (rate := result.operations_per_second)]
    tflops = statistics.median(rate / 1e12 / group.num_accelerators for _, rate in counted)
    cost = counted[0][0]
    assert cost is not None  # operations_per_second is None without it
    unfused, largest = (cost.operations / max(traffic, 1.0) for traffic in (cost.unfused_bytes, cost.least_bytes))
    peaks = [roofs.tflops.get(group.precision) if roofs else None for roofs in (measured, datasheet)]
    of_measured, of_datasheet = (tflops / peak if peak else None for peak in peaks)
    waits_for_host = LOW_UTILIZATION in group.flags
    loader = group.config["data.loader"]
    return RooflinePoint(
        workload=group.network if loader == "synthetic" else f"{group.network} with data={loader}",
        accelerator=group.accelerator,
        num_accelerators=group.num_accelerators,
        precision=group.precision,
        batch=group.batch,
        suffix=f", {group.interconnect}" if group.interconnect == NO_PEER_TO_PEER else "",
        tflops=tflops,
        unfused_intensity=unfused,
        max_intensity=max(unfused, largest),
        fraction_of_measured=of_measured,
        fraction_of_datasheet=of_datasheet,
        bound="the host" if waits_for_host else _find_bound(unfused, largest, measured or datasheet, group.precision),
    )


def _find_bound(unfused: float, largest: float, roofs: Roofs | None, precision: str) -> str:
    """Return the roof above the range of intensities: memory, arithmetic, or first one and then the other."""
    peak = roofs.tflops.get(precision) if roofs else None
    if not roofs or not peak or not roofs.gb_s:
        return "not known"
    ridge = peak * 1e12 / (roofs.gb_s * 1e9)
    if largest < ridge:
        return "memory"
    return "arithmetic" if unfused > ridge else "memory unless fused"


def check(rooflines: Iterable[Roofline]) -> list[Finding]:
    """Flag workloads above a roof: one of the two figures is wrong or belongs to another clock."""
    return [
        Finding(
            FindingKind.FLAG,
            point.title,
            f"{point.tflops:,.3g} TFLOP/s per accelerator is {fraction:.1%} of the peak {source}: one of the "
            "measurements was disturbed, or the operations are miscounted.",
        )
        for roofline in rooflines
        for point in roofline.points
        for fraction, source in (
            (point.fraction_of_measured, "that `timetrial peaks` measured"),
            (point.fraction_of_datasheet, "of the data sheet"),
        )
        if fraction and fraction > 1
    ]

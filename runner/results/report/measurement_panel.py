"""The first screen of external measurements and throughput runs: GPUs and networks of a study against a baseline."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..analysis.comparison import MARGIN, Verdict, decide
from ..analysis.intervals import UNKNOWN, Interval, LogEstimate, Sample, log_mean, log_ratio
from ..analysis.throughput_groups import split_by_run, to_measurements
from ..parse.external import METRICS, ExternalMeasurement
from .build import Report
from .page_text import count
from .panels import Panel, Row, TableCell, plot_speeds, ratio_cell
from .systems import device_label, gpu_name

_TIMES = ("minutes", "minutes_total", "milliseconds")
_METRICS = ("samples_per_second", *_TIMES)
_LEGEND = "Measured once, without repeats: nobody can tell speed from luck."


@dataclass(frozen=True)
class _Table:
    """The speeds of a study by system and column, or their ratios to `baseline` as published (`is_ratio`)."""

    metric: str
    speeds: Mapping[tuple[str, str], Sample]
    outcomes: Mapping[tuple[str, str], str]
    gpus: Mapping[str, str]
    baseline: str
    is_ratio: bool = False

    @property
    def systems(self) -> list[str]:
        return list(dict.fromkeys(system for system, _ in (*self.speeds, *self.outcomes)))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(column for _, column in (*self.speeds, *self.outcomes)))

    def ratio(self, system: str, column: str) -> LogEstimate | None:
        """Return the speed of a system over that of the baseline."""
        speed = self.speeds.get((system, column))
        if speed is None or (self.is_ratio and system == self.baseline):
            return None
        if self.is_ratio:
            return log_mean(speed)
        base = self.speeds.get((self.baseline, column))
        return log_ratio(speed, base) if base else None


def measurement_panels(report: Report, baseline: str = "") -> list[Panel]:
    """Return a panel for each study with at least two systems that share a network."""
    entries = [*report.external_measurements, *to_measurements(split_by_run(report.throughput_groups))]
    by_study: dict[str, list[ExternalMeasurement]] = {}
    for entry in entries:
        by_study.setdefault(entry.study, []).append(entry)
    panels = []
    for number, (study, same) in enumerate(by_study.items(), start=1):
        table = _published_ratios(same) or _tabulate(same, baseline)
        if table and len(table.systems) > 1:
            panels.append(_panel(f"study-{number}", study, same[0], table))
    return sorted(panels, key=_share_undecided)


def _share_undecided(panel: Panel) -> float:
    """Return the share of the systems whose mean does not tell faster from slower."""
    tones = [row.cells[0].tone for row in panel.rows[1:]]
    return sum(tone == "unsure" for tone in tones) / len(tones)


def _published_ratios(entries: Sequence[ExternalMeasurement]) -> _Table | None:
    """Return the ratios that a study publishes between two devices, the mean of several of one network."""
    ratios: dict[tuple[str, str], list[float]] = {}
    gpus, baselines = {}, set()
    for entry in entries:
        if entry.metric == "speedup" and entry.value and not entry.baseline.endswith(f"x {entry.accelerator}"):
            system = gpu_name(entry.accelerator)
            ratios.setdefault((system, entry.workload), []).append(math.log(entry.value))
            gpus[system] = system
            baselines.add(entry.baseline)
    if len(baselines) != 1:
        return None
    baseline = baselines.pop()
    gpus[baseline] = gpu_name(baseline)
    means = {key: Sample((math.exp(sum(logs) / len(logs)),)) for key, logs in ratios.items()}
    columns = list(dict.fromkeys(column for _, column in means))
    speeds = {(baseline, column): Sample((1.0,)) for column in columns} | means
    return _Table("speedup", speeds, {}, gpus, baseline, is_ratio=True)


def _tabulate(entries: Sequence[ExternalMeasurement], wanted: str) -> _Table | None:
    """Return the speeds by the first of `_METRICS` that there is, each at its best batch size."""
    metric = next((metric for metric in _METRICS if any(entry.metric == metric for entry in entries)), "")
    by_batch: dict[tuple[str, str], dict[int | None, list[float]]] = {}
    outcomes, gpus = {}, {}
    tasks = {entry.task for entry in entries if entry.metric == metric}
    for entry in entries:
        if entry.metric != metric:
            continue
        system = ", ".join(
            part
            for part in (
                device_label(entry.accelerator, entry.num_accelerators),
                entry.precision,
                entry.interconnect,
            )
            if part
        )
        column = f"{entry.workload} {entry.task}" if len(tasks) > 1 else entry.workload
        gpus[system] = gpu_name(entry.accelerator)
        if entry.value:
            passes = entry.batch or 1 if metric == "milliseconds" else 1
            speed = passes / entry.value if metric in _TIMES else entry.value
            by_batch.setdefault((system, column), {}).setdefault(entry.batch, []).append(speed)
        else:
            outcomes[system, column] = entry.outcome
    speeds = {key: max(map(Sample, map(tuple, values.values())), key=_speed) for key, values in by_batch.items()}
    if not speeds:
        return None
    systems = list(dict.fromkeys(system for system, _ in speeds))
    sizes = {system: sum(row == system for row, _ in speeds) for system in systems}
    baseline = max(systems, key=lambda system: (bool(wanted) and wanted.lower() in system.lower(), sizes[system]))
    return _Table(metric, speeds, outcomes, gpus, baseline)


def _speed(sample: Sample) -> float:
    return log_mean(sample).log


def _mean(table: _Table, system: str) -> LogEstimate | None:
    """Return the mean over networks: the columns of one network count once, since they are not independent."""
    logs: dict[str, list[float]] = {}
    for column in table.columns:
        if ratio := table.ratio(system, column):
            logs.setdefault(column.split()[0], []).append(ratio.log)
    return log_mean(Sample(tuple(math.exp(sum(same) / len(same)) for same in logs.values()))) if logs else None


def _panel(name: str, study: str, first: ExternalMeasurement, table: _Table) -> Panel:
    means = {system: _mean(table, system) for system in table.systems}
    others = [system for system in table.systems if system != table.baseline]
    others.sort(key=lambda system: -(means[system].log if means[system] else -math.inf))  # type: ignore[union-attr]
    rows = []
    for system in [table.baseline, *others]:
        cells = [_mean_cell(table, system, means[system])]
        cells += [_cell(table, system, column) for column in table.columns]
        devices, _, detail = system.partition(", ")
        rows.append(Row(devices, detail, table.gpus[system], cells))
    is_single = any(1 in cell.marks for row in rows for cell in row.cells)
    chart = [_chart_row(table, system, means[system]) for system in others]
    return Panel(
        name,
        study,
        f"Speed against {table.baseline}: times as fast by {_metric_name(table.metric)}",
        "GPUs",
        [("All", ""), *((column, "") for column in table.columns)],
        rows,
        _sentences(first, table, is_single),
        [_LEGEND] if is_single else [],
        True,
        [plot_speeds(f"{name}-speeds", table.baseline, chart)],
    )


def _chart_row(
    table: _Table, system: str, mean: LogEstimate | None
) -> tuple[str, Interval | None, list[float], list[float]]:
    ratios = [ratio for column in table.columns if (ratio := table.ratio(system, column))]
    return system, mean.interval() if mean else None, [math.exp(ratio.log) for ratio in ratios], []


def _mean_cell(table: _Table, system: str, mean: LogEstimate | None) -> TableCell:
    if system == table.baseline:
        return TableCell("1×", "", "baseline", "baseline")
    if mean is None:
        return TableCell("–", "", "no common network", "none")
    return _ratio(mean)


def _cell(table: _Table, system: str, column: str) -> TableCell:
    if system == table.baseline and (system, column) in table.speeds:
        return TableCell("1×", "", "baseline", "baseline")
    if ratio := table.ratio(system, column):
        return _ratio(ratio)
    if outcome := table.outcomes.get((system, column)):
        return TableCell("–", "", outcome, "none")
    is_measured = (system, column) in table.speeds
    return TableCell("–" if is_measured else "", "", "no baseline" if is_measured else "not measured", "none")


def _ratio(ratio: LogEstimate) -> TableCell:
    interval = ratio.interval() if ratio.n else UNKNOWN
    verdict = decide(ratio, interval) if ratio.n else Verdict.CANNOT_TELL
    return ratio_cell(verdict, interval, MARGIN, () if interval.is_bounded else (1,))


def _metric_name(metric: str) -> str:
    return "published speedup" if metric == "speedup" else METRICS[metric].removesuffix(" in milliseconds")


def _sentences(first: ExternalMeasurement, table: _Table, is_single: bool) -> list[tuple[str, str]]:
    source = ", ".join(part for part in (first.source, first.published) if part)
    compared = (
        f"{count(len(table.systems), 'system')} on {count(len(table.columns), 'network')} by "
        f"{_metric_name(table.metric)}{'' if table.is_ratio else ', each at its best batch size'}; source: {source}."
    )
    luck = (
        "Single cells were measured once, so only the mean over networks can tell speed from luck; its interval is "
        "for further networks of this kind."
        if is_single
        else f"Intervals are from repeated measurements; equal means within {MARGIN:.0%}."
    )
    distrust = "Speed is not time-to-train: a faster step says nothing of the epochs that a target takes."
    return [("Compared", compared), ("Luck", luck), ("Distrust", distrust)]

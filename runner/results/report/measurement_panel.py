"""The first screen of external measurements and throughput runs: the systems of a study against a baseline."""

import math
from collections.abc import Iterable, Mapping, Sequence

from ..analysis.external_comparison import ExternalComparison, compare_studies
from ..analysis.external_systems import ExternalSystem
from ..analysis.intervals import LEVEL, Interval
from ..analysis.own_measurements import measure_throughput, split_by_run
from ..analysis.verdicts import MARGIN, Levels, decide, family_levels
from ..parse.external import METRICS
from .build import Report
from .page_text import count
from .panels import Panel, Row, TableCell, ratio_cell
from .speed_plot import SpeedRow, plot_speeds
from .systems import device_label, gpu_name

_LEGEND = "Measured once, without repeats: nobody can tell speed from luck."
_BASELINE_CELL = TableCell("1×", "", "baseline", "baseline")
_Column = tuple[str, str]  # network and task


def measurement_panels(report: Report, baseline: str = "") -> list[Panel]:
    """Return a panel for each study that measured two systems alike.

    The clearest answers come first, and among these comparisons of GPUs before those of settings.
    """
    entries = [*report.external_measurements, *measure_throughput(split_by_run(report.throughput_groups))]
    panels = [
        _panel(f"study-{number}", study, pairs)
        for number, (study, pairs) in enumerate(compare_studies(entries, baseline).items(), start=1)
    ]
    return sorted(panels, key=lambda panel: (_share_undecided(panel), len({row.gpu for row in panel.rows}) == 1))


def _share_undecided(panel: Panel) -> float:
    """Return the share of the systems whose mean does not tell faster from slower."""
    tones = [row.cells[0].tone for row in panel.rows[1:]]
    return sum(tone == "unsure" for tone in tones) / len(tones)


def _panel(name: str, study: str, comparisons: Sequence[ExternalComparison]) -> Panel:
    pairs = sorted(comparisons, key=lambda pair: -pair.speed.log if pair.rows else math.inf)
    baseline, columns = pairs[0].baseline, _columns(pairs)
    label, metrics = _label(baseline), _join_metrics(pairs)
    rows = [_row(baseline, [_BASELINE_CELL, *(_baseline_cell(pairs, column) for column in columns)])]
    levels = _cell_levels(pairs, columns)
    rows += [
        _row(pair.other, [_mean_cell(pair), *(_cell(pair, column, levels) for column in columns)]) for pair in pairs
    ]
    is_single = any(cell.marks for row in rows for cell in row.cells)
    return Panel(
        name,
        study,
        f"Speed against {label}: times as fast by {metrics}",
        "GPUs",
        [("All", ""), *((text, "") for text in columns.values())],
        rows,
        _sentences(pairs, is_single),
        [_LEGEND] if is_single else [],
        True,
        [
            plot_speeds(
                f"{name}-speeds",
                label,
                [_chart_row(pair, row) for pair, row in zip(pairs, rows[1:], strict=True) if pair.rows],
            )
        ],
    )


def _columns(pairs: Sequence[ExternalComparison]) -> dict[_Column, str]:
    """Return the title of each network and task that was compared, or that failed."""
    compared = [(row.workload, row.task) for pair in pairs for row in pair.rows]
    entries = [entry for pair in pairs for entry in pair.other.measurements]
    failed = [(entry.workload, entry.task) for entry in entries if entry.outcome != "measured"]
    columns = dict.fromkeys([*compared, *failed])
    has_tasks = len({task for _, task in columns}) > 1
    return {(network, task): f"{network} {task}" if has_tasks else network for network, task in columns}


def _row(system: ExternalSystem, cells: Sequence[TableCell]) -> Row:
    gpus = list(dict.fromkeys(gpu_name(entry.accelerator) for entry in system.measurements))
    detail = ", ".join(gpus) if system.field != "accelerator" else ""
    return Row(_label(system), detail, gpus[0] if len(gpus) == 1 else "", cells)


def _label(system: ExternalSystem) -> str:
    is_gpu = system.field == "accelerator"
    return (device_label(system.value, system.count) if is_gpu else "") or system.title


def _baseline_cell(pairs: Sequence[ExternalComparison], column: _Column) -> TableCell:
    is_compared = any((row.workload, row.task) == column for pair in pairs for row in pair.rows)
    return _BASELINE_CELL if is_compared else TableCell("", "", pairs[0].baseline.state(*column), "none")


def _mean_cell(pair: ExternalComparison) -> TableCell:
    if not pair.rows:
        return TableCell("–", "", "no equal setting", "none")
    interval = pair.interval
    return ratio_cell(pair.verdict, interval, MARGIN, _marks(interval))


def _cell_levels(pairs: Sequence[ExternalComparison], columns: Iterable[_Column]) -> dict[tuple[str, _Column], Levels]:
    """Return the levels of each cell by system and column: all cells of a panel are decided together."""
    keys = [(pair, column) for pair in pairs for column in columns]
    levels = family_levels([pair.ratios(task).get(network) for pair, (network, task) in keys])
    return {(pair.other.title, column): level for (pair, column), level in zip(keys, levels, strict=True)}


def _cell(pair: ExternalComparison, column: _Column, levels: Mapping[tuple[str, _Column], Levels]) -> TableCell:
    network, task = column
    if ratio := pair.ratios(task).get(network):
        level = levels[pair.other.title, column]
        return ratio_cell(
            decide(ratio, levels=level), ratio.interval(level.difference), MARGIN, _marks(ratio.interval())
        )
    state = pair.other.state(network, task)
    return TableCell("–", "", "no equal setting" if state == "measured" else state, "none")


def _marks(interval: Interval) -> tuple[int, ...]:
    return () if interval.is_bounded else (1,)


def _chart_row(pair: ExternalComparison, row: Row) -> SpeedRow:
    points = [math.exp(ratio.log) for ratio in pair.trained.values()]
    return SpeedRow(_label(pair.other), row.gpu, pair.interval, points, [])


def _join_metrics(pairs: Sequence[ExternalComparison]) -> str:
    metrics = dict.fromkeys(row.metric for pair in pairs for row in pair.rows)
    names = {"speedup": "published speedup"}
    return " and ".join(names.get(metric, METRICS[metric].removesuffix(" in milliseconds")) for metric in metrics)


def _sentences(pairs: Sequence[ExternalComparison], is_single: bool) -> list[tuple[str, str]]:
    """Return what was compared, what is luck, and what to distrust."""
    first = pairs[0].baseline.measurements[0]
    source = ", ".join(part for part in (first.source, first.published) if part)
    rows = [row for pair in pairs for row in pair.rows]
    networks, tasks = {row.workload for row in rows}, {row.task for row in rows}
    at_equal = ", at equal batch sizes and settings" if any(row.baseline for row in rows) else ""
    compared = (
        f"{count(len(pairs) + 1, 'system')} on {count(len(networks), 'network')} by "
        f"{_join_metrics(pairs)}{at_equal}; source: {source}."
    )
    compared += " The one number is that of training." if "train" in tasks and len(tasks) > 1 else ""
    luck = (
        "Single cells were measured once, so only the mean over networks can tell speed from luck; its interval is "
        "for further networks of this kind."
        if is_single
        else f"Intervals are from repeated measurements; equal means within {MARGIN:.0%}."
    )
    if any(pair.levels.difference > LEVEL for pair in pairs):
        luck += (
            " Several systems share the 5% chance of a false verdict, so their intervals have levels up to "
            f"{max(pair.levels.difference for pair in pairs) * 100:.3g}%."
        )
    distrust = (
        "Speed is not time-to-train: a faster step says nothing of the epochs that a target takes. One machine a side: "
        "differences hold between these machines."
    )
    return [("Compared", compared), ("Luck", luck), ("Distrust", distrust)]

"""The first screen of a study of one system: its times, how much of them is luck, how many more runs it needs."""

import math
from collections.abc import Callable, Sequence

from ...core.formatting import format_energy
from ..analysis import planning, samples, validity
from ..analysis.groups import RunGroup
from ..analysis.intervals import Interval, Sample, log_mean
from ..analysis.variance import epoch_share
from ..analysis.verdicts import MARGIN
from .chart import Axis, Chart, Plot, span
from .page_text import count, format_number
from .panels import Panel, Row, TableCell
from .systems import Lineup

_MAX_ROWS, _MAX_DOTS = 8, 60  # of the chart, and in a row of it
_LEGEND = [
    "Fewer than three independent runs reached the target: two runs say next to nothing about the spread.",
    "Some runs did not reach the target; the means are of those that did. See the benchmark.",
    "Runs carry validity flags, such as loader-bound or busy host; see Warnings.",
]


def study_panel(name: str, lineup: Lineup) -> Panel:
    """Return the panel of a lineup in which no two systems ran the same benchmark."""
    groups = sorted(lineup.groups.items(), key=lambda item: -len(item[1].runs))
    energies, costs = ([mean(group) for _, group in groups] for mean in (validity.mean_energy, validity.mean_cost))
    titles = ["Runs", "Time-to-train", "Epochs", "Time per epoch", "Spread from epochs", f"Runs for {MARGIN:.0%}"]
    titles += ["Energy"] * any(energy.n for energy in energies) + ["Cost"] * any(cost.n for cost in costs)
    rows = []
    for ((system, workload), group), energy, cost in zip(groups, energies, costs, strict=True):
        cells = _cells(group)
        cells += [_measured(energy, format_energy)] if "Energy" in titles else []
        cells += [_measured(cost, "${:,.3g}".format)] if "Cost" in titles else []
        rows.append(Row(workload, system.label, system.gpu, cells))
    used = sorted({mark for row in rows for cell in row.cells for mark in cell.marks})
    own = [group for _, group in groups]
    return Panel(
        name,
        f"{own[0].runs[0].scale.capitalize()} scale" if own[0].runs[0].scale else lineup.title,
        "What the runs take, as geometric means with 95% intervals",
        "Benchmark",
        [(title, "") for title in titles],
        [_renumber(row, used) for row in rows],
        _sentences(lineup, own, energies, costs),
        [_LEGEND[mark - 1] for mark in used],
        False,
        [plot for plot in [_plot_spread(f"{name}-spread", own)] if plot],
        lineup.rounds,
        own[0].runs[0].scale,
    )


def _cells(group: RunGroup) -> list[TableCell]:
    failed = f"{group.num_failed} not reached" if group.num_failed else "all reached"
    few = len(group.time_sample.values) < planning.MIN_PILOT_RUNS
    marks = [number for number, is_true in ((1, few), (2, bool(group.num_failed)), (3, _is_flagged(group))) if is_true]
    unit = "s per epoch" if group.progress_unit == "epochs" else "s per sample"
    seconds, short = (60.0, "min") if group.mean_minutes.estimate >= 2 else (1.0, "s")
    needed, share = planning.runs_needed(group.time_sample, MARGIN), _share(group)
    return [
        TableCell(str(len(group.runs)), "", failed, "none", tuple(marks)),
        _measured(group.mean_minutes.scaled(60 / seconds), lambda value: f"{format_number(value, 3)} {short}"),
        _measured(group.mean_epochs, lambda value: format_number(value, 3)),
        _measured(group.mean_seconds_per_epoch, lambda value: format_number(value, 3), unit),
        TableCell(f"{share.estimate:.0%}", f"{share.low:.0%}–{share.high:.0%}" if share.is_bounded else "", "", "none")
        if share.n
        else TableCell("–", "", "unknown", "none"),
        TableCell(str(needed), "a side", "", "none") if needed else TableCell("–", "", "too few runs", "none"),
    ]


def _measured(mean: Interval, text: Callable[[float], str], word: str = "") -> TableCell:
    if not mean.n:
        return TableCell("–", "", "unknown", "none")
    bounds = f"{text(mean.low)} to {text(mean.high)}" if mean.is_bounded else ""
    return TableCell(text(mean.estimate), bounds, word, "none")


def _renumber(row: Row, used: Sequence[int]) -> Row:
    cells = [
        TableCell(cell.value, cell.bounds, cell.word, cell.tone, tuple(used.index(mark) + 1 for mark in cell.marks))
        for cell in row.cells
    ]
    return Row(row.label, row.detail, row.gpu, cells)


def _is_flagged(group: RunGroup) -> bool:
    return any(run.flags for run in group.runs)


def _share(group: RunGroup) -> Interval:
    return epoch_share(group.epoch_sample, group.pace_sample)


def _sentences(
    lineup: Lineup, groups: Sequence[RunGroup], energies: Sequence[Interval], costs: Sequence[Interval]
) -> list[tuple[str, str]]:
    """Return what was measured, how much of it is luck, and what to distrust."""
    largest = groups[0]
    runs = sum(len(group.runs) for group in groups)
    systems = lineup.systems[0].label if len(lineup.systems) == 1 else count(len(lineup.systems), "system")
    missing = [name for name, means in (("energy", energies), ("cost", costs)) if not any(mean.n for mean in means)]
    measured = f"{count(runs, 'run')} of {count(len(groups), 'recipe')} on {systems}; no two systems share a benchmark"
    measured += f"; {' and '.join(missing)} not recorded." if missing else "."
    unit, share, needed = largest.progress_unit, _share(largest), planning.runs_needed(largest.time_sample, MARGIN)
    if share.n and needed:
        interval = f" ({share.low:.0%} to {share.high:.0%})" if share.is_bounded else ""
        more = max(needed.high - len(largest.time_sample.values), 0)
        luck = (
            f"{largest.workload}: the coefficient of variation is {largest.epoch_sample.deviation:.1%} for {unit} and "
            f"{largest.pace_sample.deviation:.1%} for the time per {unit[:-1]}, so {share.estimate:.0%}{interval} of "
            f"the variance is luck of the seeds and the rest the machine. To find a difference of {MARGIN:.0%}, plan "
            f"{needed} runs a side: {f'up to {more} more' if more else 'these are enough'}."
        )
    elif needed and len(set(largest.epochs)) == 1:
        luck = (
            f"{largest.workload}: all runs took the same {unit}, so how much these vary is below the grid of "
            f"evaluations. To find a difference of {MARGIN:.0%}, plan {needed} runs a side."
        )
    else:
        luck = "Too few runs of any recipe to tell luck from speed: repeat with other seeds, seed='range(1,11)'."
    flags = sorted({flag for group in groups for run in group.runs for flag in run.flags})
    failed = sum(group.num_failed for group in groups)
    distrust = [f"{count(failed, 'run')} did not reach the target."] if failed else []
    distrust += [f"Runs carry validity flags: {', '.join(flags)}."] if flags else []
    is_one_machine = samples.is_one_machine([run for group in groups for run in group.runs])
    distrust += ["All runs are of one machine."] if is_one_machine else []
    return [("Measured", measured), ("Luck", luck), ("Distrust", " ".join(distrust) or "No run is marked.")]


def _plot_spread(name: str, groups: Sequence[RunGroup]) -> Plot | None:
    """Plot each run relative to the mean of its runs: of one group time, epochs and pace, of several their times."""
    if len([group for group in groups if len(group.time_sample.values) > 1]) == 1:
        group = groups[0]
        unit = group.progress_unit.removesuffix("s")
        samples = {
            "time-to-train": group.time_sample,
            "epochs": group.epoch_sample,
            f"time per {unit}": group.pace_sample,
        }
    else:
        samples = {group.workload: group.time_sample for group in groups}
    strips = {label: _relative(sample) for label, sample in samples.items() if len(sample.values) > 1}
    if not strips:
        return None
    shown = dict(list(strips.items())[:_MAX_ROWS])
    low, high = span([value for values in shown.values() for value in values])
    chart = Chart(Axis(low, high, "times the mean of the runs"), None, 48.0 * len(shown) + 4, left=8)
    chart.rule(1, is_vertical=True)
    for number, (label, values) in enumerate(shown.items()):
        chart.row_label(48.0 * number + 13, f"{label}, {len(samples[label].values)} runs")
        thinned = values[:: max(1, math.ceil(len(values) / _MAX_DOTS))]
        chart.swarm(thinned, 48.0 * number + 34, 0)
    ranges = "; ".join(f"{label}: {min(values):.2f} to {max(values):.2f}" for label, values in shown.items())
    caption = "One point a run, relative to the mean. Epochs vary with the seed, the time per epoch with the machine."
    return chart.plot(name, "Spread of the runs", caption, f"Range of each row, times its mean. {ranges}.")


def _relative(sample: Sample) -> list[float]:
    mean = log_mean(sample).interval().estimate
    return sorted(value / mean for value in sample.values)

"""The first screen of a comparison: a table of GPUs and benchmarks against a baseline, one chart, three sentences."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..analysis.comparison import Comparison, EpochsState, Machines, compare_all
from ..analysis.findings import FindingKind
from ..analysis.group_differences import list_recipe_differences
from ..analysis.intervals import Interval
from ..analysis.verdicts import Verdict
from .benchmark_charts import format_duration
from .build import Report
from .comparison_means import Mean, means_of, shown_ratio
from .page_text import count, format_number
from .panels import Panel, Row, TableCell, format_bounds, ratio_cell
from .speed_plot import SpeedRow, plot_speeds
from .systems import Lineup, System

_MAX_BASELINES = 8  # systems of which each can be picked as the baseline
_MARKS = {
    "failed": "Runs failed; where times are comparable, the ratio is of the expected time to a success.",
    "single": "No verdict: a side has fewer than three independent runs that reached the target.",
    "luck": "The epochs (or samples) are not shown equal: the ratio holds the luck of the seeds too.",
    "holm": "The 95% interval excludes 1, but not at the level that so many comparisons need.",
    "distorted": "Disturbed runs or drift may have made the difference, or hidden it; see the benchmark's details.",
    "flags": "Runs carry validity flags, such as loader-bound; see the benchmark's details.",
    "warned": "A check warns of these runs; see Warnings.",
}


def comparison_panel(name: str, lineup: Lineup, report: Report, anchors: Mapping[str, str]) -> Panel:
    """Return the panel of a lineup whose systems are compared with its baseline, or with another that is picked.

    The verdicts against each baseline are a family of their own, of which at most 5% have a false one.
    """
    panel = _panel(name, lineup, report.comparisons, report, anchors)
    if not 2 < len(lineup.systems) <= _MAX_BASELINES:
        return panel
    others = [replace(lineup, baseline=system, systems=_from(lineup, system)) for system in lineup.systems[1:]]
    panel.alternatives = [
        _panel(f"{name}-{number}", other, compare_all(other.pairs), report, anchors)
        for number, other in enumerate(others, start=2)
    ]
    return panel


def _from(lineup: Lineup, first: System) -> list[System]:
    return [first, *(system for system in lineup.systems if system != first)]


def _panel(
    name: str,
    lineup: Lineup,
    compared: Sequence[Comparison],
    report: Report,
    anchors: Mapping[str, str],
) -> Panel:
    by_title = {(comparison.baseline.title, comparison.other.title): comparison for comparison in compared}
    comparisons = {
        (system, workload): by_title[lineup.groups[lineup.baselines[workload], workload].title, group.title]
        for (system, workload), group in lineup.groups.items()
        if system != lineup.baselines[workload]
    }
    warned = {finding.subject for finding in report.findings if finding.kind is FindingKind.FLAG}
    causes = {key: _causes(comparison, warned) for key, comparison in comparisons.items()}
    numbers = _number([cause for of_cell in causes.values() for cause in of_cell])
    marks = {key: tuple(numbers[cause] for cause in of_cell) for key, of_cell in causes.items()}
    with_baseline = {key: pair for key, pair in comparisons.items() if lineup.baselines[key[1]] == lineup.baseline}
    means = means_of(lineup.systems[1:], with_baseline)
    order = _order(lineup.systems[1:], comparisons, means)
    columns = [(_short(workload, lineup), anchors[workload]) for workload in lineup.workloads]
    return Panel(
        name,
        _title(lineup),
        _caption(lineup, list(comparisons.values())),
        "GPUs",
        [("All", ""), *columns],
        [_row(lineup, system, means.get(system), comparisons, marks) for system in [lineup.baseline, *order]],
        _sentences(lineup, list(comparisons.values()), sum(map(bool, causes.values()))),
        [_MARKS[cause] for cause in numbers],
        True,
        [plot_speeds(f"{name}-speeds", lineup.baseline.label, _speeds(order, comparisons, means))],
        lineup.rounds,
        next(iter(lineup.groups.values())).runs[0].scale,
        baseline=lineup.baseline.label,
    )


def _caption(lineup: Lineup, comparisons: Sequence[Comparison]) -> str:
    text = f"Speed against {lineup.baseline.label}: times as fast to the quality target"
    if any(baseline != lineup.baseline for baseline in lineup.baselines.values()):
        text += "; where it did not run a benchmark, against the system marked as its baseline"
    if any(comparison.verdict == Verdict.NOT_COMPARABLE for comparison in comparisons):
        text += "; in parentheses: by time per epoch, where times to the target are not comparable"
    return text


def _title(lineup: Lineup) -> str:
    scale = next(iter(lineup.groups.values())).runs[0].scale
    return f"{scale.capitalize()} scale" if scale else lineup.title


def _short(workload: str, lineup: Lineup) -> str:
    """Return the name of a benchmark, with its round if the lineup has several."""
    group = next(group for (_, name), group in lineup.groups.items() if name == workload)
    return f"{group.model} {group.round}" if len(lineup.rounds) > 1 else group.model


def _causes(comparison: Comparison, warned: set[str]) -> list[str]:
    """Return the keys of the marks of a cell."""
    sides, ratio = (comparison.baseline, comparison.other), shown_ratio(comparison)
    is_comparable = comparison.verdict != Verdict.NOT_COMPARABLE
    excludes_one = ratio.is_bounded and not ratio.low <= 1 <= ratio.high
    applies = {
        "failed": any(side.num_failed for side in sides),
        "single": is_comparable and comparison.has_few_runs,
        "luck": is_comparable and ratio.is_bounded and comparison.epochs_state is EpochsState.NOT_SHOWN_EQUAL,
        "holm": comparison.verdict == Verdict.CANNOT_TELL
        and excludes_one
        and not (comparison.distorting or comparison.has_few_runs),
        "distorted": comparison.distorting is not None,
        "flags": any(run.flags for side in sides for run in side.runs),
        "warned": comparison.other.title in warned,
    }
    return [cause for cause in applies if applies[cause]]


def _number(causes: Sequence[str]) -> dict[str, int]:
    """Return the number of each cause that occurs, in the order of the legend."""
    return {cause: number for number, cause in enumerate((cause for cause in _MARKS if cause in causes), start=1)}


def _order(
    systems: Sequence[System],
    comparisons: Mapping[tuple[System, str], Comparison],
    means: Mapping[System, Mean | None],
) -> list[System]:
    """Return the systems with one number first, then those with the most benchmarks, then the fastest."""

    def rank(system: System) -> tuple[bool, int, float]:
        mean = means[system]
        return mean is None, -sum(key[0] == system for key in comparisons), -mean.ratio.estimate if mean else 0.0

    return sorted(systems, key=rank)


def _row(
    lineup: Lineup,
    system: System,
    mean: Mean | None,
    comparisons: Mapping[tuple[System, str], Comparison],
    marks: Mapping[tuple[System, str], tuple[int, ...]],
) -> Row:
    cells = [_mean_cell(lineup, system, mean, comparisons)]
    cells += [
        _cell(lineup, system, workload, comparisons, marks.get((system, workload), ())) for workload in lineup.workloads
    ]
    detail = ", ".join(part for part in (system.maker, system.remark) if part)
    return Row(system.devices, detail, system.gpu, cells)


def _mean_cell(
    lineup: Lineup,
    system: System,
    mean: Mean | None,
    comparisons: Mapping[tuple[System, str], Comparison],
) -> TableCell:
    if system == lineup.baseline:
        return TableCell("1×", "", "baseline", "baseline")
    own = [
        comparison
        for (row, workload), comparison in comparisons.items()
        if row == system and lineup.baselines[workload] == lineup.baseline
    ]
    if mean is None:
        return TableCell("–", "", "not comparable" if own else "no common benchmark", "none")
    if mean.verdict == Verdict.NOT_COMPARABLE:
        cell = _pace_cell(mean.ratio, ())
        span = "–".join(format_number(value, 3) for value in mean.span)
        return replace(cell, bounds=f"{span} over benchmarks") if mean.used > 1 else cell
    cell = ratio_cell(mean.verdict, mean.ratio, own[0].margin)
    return replace(cell, word=f"{cell.word} on {mean.used} of {len(lineup.workloads)}")


def _pace_cell(ratio: Interval, marks: tuple[int, ...]) -> TableCell:
    """Return the cell of systems that are not comparable by time-to-train: their ratio by time per epoch."""
    value = f"({format_number(ratio.estimate, 3)}×)" if ratio.n else "–"
    return TableCell(value, format_bounds(ratio), Verdict.NOT_COMPARABLE.value, "none", marks)


def _cell(
    lineup: Lineup,
    system: System,
    workload: str,
    comparisons: Mapping[tuple[System, str], Comparison],
    marks: tuple[int, ...],
) -> TableCell:
    group = lineup.groups.get((system, workload))
    if group is None:
        return TableCell("", "", "not run", "none")
    if system == lineup.baselines[workload]:
        time = format_duration(60 * group.mean_minutes.estimate) if group.converged_runs else "not reached"
        return TableCell("1×", time, "baseline", "baseline")
    comparison = comparisons[system, workload]
    if comparison.verdict == Verdict.NOT_COMPARABLE:
        return _pace_cell(comparison.seconds_per_epoch, marks)
    return ratio_cell(comparison.verdict, shown_ratio(comparison), comparison.margin, marks)


def _sentences(lineup: Lineup, comparisons: Sequence[Comparison], num_marked: int) -> list[tuple[str, str]]:
    """Return what was compared, what is luck, and what to distrust."""
    verdicts = [comparison.verdict for comparison in comparisons]
    runs = sum(len(group.runs) for group in lineup.groups.values())
    compared = (
        f"{count(runs, 'run')} of {count(len(lineup.systems), 'system')} on "
        f"{count(len(lineup.workloads), 'benchmark')} against {lineup.baseline.label}, by "
        "time-to-train; above 1 is faster, with 95% confidence intervals. All: the geometric mean over the comparable "
        "benchmarks; where there are none, in parentheses over all, with their range."
    )
    decided = sum(verdict in (Verdict.FASTER, Verdict.SLOWER) for verdict in verdicts)
    equal, unsure = verdicts.count(Verdict.EQUAL), verdicts.count(Verdict.CANNOT_TELL)
    tested = len(verdicts) - verdicts.count(Verdict.NOT_COMPARABLE)
    luck = (
        f"{count(tested, 'comparable pair')}: {decided} beyond luck, {equal} equal, {unsure} that nobody can tell from "
        "luck. The chance that any cell is beyond luck although both sides are equal is at most 5%, and so is that of "
        "any number under All."
    )
    if not tested:
        luck = (
            "The intervals hold for the time per epoch, which hardly varies between seeds; the epochs are left out, "
            "because here they compare recipes."
        )
    distrust = []
    incomparable = [comparison for comparison in comparisons if comparison.verdict == Verdict.NOT_COMPARABLE]
    if in_parentheses := sum(shown_ratio(comparison).n > 0 for comparison in incomparable):
        ratios = count(in_parentheses, "ratio in parentheses leaves", "ratios in parentheses leave")
        distrust.append(f"{ratios} out the epochs{_reason_to_leave_out(comparisons)}.")
    if num_marked:
        carry = "carries" if num_marked == 1 else "carry"
        distrust.append(f"{num_marked} of {count(len(comparisons), 'cell')} {carry} marks, see below.")
    if given := [pair.machines for pair in comparisons if pair.machines is not Machines.SAMPLED]:
        distrust.append(_describe_machines(given, len(comparisons)))
    return [("Compared", compared), ("Luck", luck), ("Distrust", " ".join(distrust))]


def _describe_machines(given: Sequence[Machines], num_cells: int) -> str:
    """Return where the differences of cells hold whose machines are not a sample."""
    if len(given) < num_cells:
        return f"In {count(len(given), 'cell')}, differences hold between these machines."
    if {*given} == {Machines.ONE}:
        return "Both sides ran on one machine: differences hold there."
    if Machines.GIVEN in given:
        return "Differences hold between these machines."
    return "One machine a side: differences hold between these machines."


def _reason_to_leave_out(comparisons: Sequence[Comparison]) -> str:
    """Return why times are not comparable: in what most of these pairs differ that may change the epochs."""
    pairs = [(entry.baseline, entry.other) for entry in comparisons if entry.verdict == Verdict.NOT_COMPARABLE]
    names = Counter(name for pair in pairs for name in list_recipe_differences(*pair))
    most = [name.removeprefix("opt_").replace("_", " ") for name, _ in names.most_common(3)]
    if not most:
        return ", because the targets differ"
    return f", because the recipes differ, mostly in {', '.join(most)}"


def _speeds(
    systems: Sequence[System],
    comparisons: Mapping[tuple[System, str], Comparison],
    means: Mapping[System, Mean | None],
) -> list[SpeedRow]:
    rows = []
    for system in systems:
        own = [comparison for (row, _), comparison in comparisons.items() if row == system]
        known = [(comparison, shown_ratio(comparison)) for comparison in own if shown_ratio(comparison).n]
        solid = [ratio.estimate for comparison, ratio in known if comparison.verdict != Verdict.NOT_COMPARABLE]
        hollow = [ratio.estimate for comparison, ratio in known if comparison.verdict == Verdict.NOT_COMPARABLE]
        mean = means[system]
        rows.append(SpeedRow(system.label, system.gpu, mean.ratio if mean else None, solid, hollow))
    return rows

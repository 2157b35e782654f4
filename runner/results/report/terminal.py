"""Terminal output of `timetrial study`."""

import math
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...core.console import print_text, table_console
from ..analysis import planning, samples, stats
from ..analysis.comparison import Basis, Comparison
from ..analysis.findings import Finding, FindingKind
from ..analysis.groups import RunGroup
from ..analysis.intervals import Interval, geometric_mean
from ..analysis.scores import PROFILE_FACTORS, GpuScore, PerformanceProfile
from ..analysis.throughput_groups import ThroughputGroup
from ..analysis.variance import variance_shares
from ..parse import rules
from ..parse.external import ExternalMeasurement
from . import comparison_text

_DETECTABLE_DIFFERENCES = (0.05, 0.10)
_POWER_CURVE_RUNS = (3, 5, 10, 20, 30)


def show_run_groups(console: Console, groups: Sequence[RunGroup]) -> None:
    """Print score, confidence intervals, failures and spread of each group, by benchmark and round."""
    for benchmark in dict.fromkeys((group.benchmark, group.round) for group in groups):
        console.print(Text(" ".join(benchmark), style="bold underline"))
        for group in groups:
            if (group.benchmark, group.round) == benchmark:
                _show_run_group(console, group)
        console.print()
    for line in _variance_lines(groups):
        print_text(console, Text(line))


def show_scores(console: Console, scores: Sequence[GpuScore], profiles: Sequence[PerformanceProfile]) -> None:
    """Print one number per system: its speed against the baseline, and how often it is near the fastest."""
    for score in scores:
        speed, elsewhere = (format_interval(interval) for interval in (score.speed, score.speed_elsewhere))
        left_out = f"; without {', '.join(score.left_out)}, which cannot be compared" if score.left_out else ""
        print_text(
            console,
            f"{score.other} is {speed} times as fast as {score.baseline} over {', '.join(score.workloads)}{left_out}. "
            f"On further workloads: {elsewhere}{f', {score.machines}' if score.machines else ''}.",
            markup=False,
        )
    for profile in profiles:
        shares = ", ".join(
            f"{share:.0%} within {factor:g}" for factor, share in zip(PROFILE_FACTORS, profile.shares, strict=True)
        )
        print_text(
            console,
            f"{profile.system}: of {profile.workloads} workloads {shares} times the fastest.",
            markup=False,
        )


def show_plan(console: Console, groups: Sequence[RunGroup], comparisons: Sequence[Comparison]) -> None:
    """Print how many runs of each group a difference needs, and whether a study may stop now."""
    for group in groups:
        print_text(console, Text(group.title, style="bold"))
        for name, value in _plan_rows(group):
            print_text(console, Text(f"  {name:<18}{value}"))
    for comparison in comparisons:
        look = _describe_look(comparison, len(comparisons))
        print_text(console, Text(f"{comparison_text.title(comparison)}: {look}.", style="bold"))


def _plan_rows(group: RunGroup) -> Iterator[tuple[str, str]]:
    for label, pilot in (
        ("time-to-train", group.time_sample),
        (f"seconds per {group.progress_unit[:-1]}", group.pace_sample),
    ):
        num_runs = len(pilot.values)
        if num_runs < planning.MIN_PILOT_RUNS:
            yield label, f"too few independent runs ({num_runs}): run {planning.MIN_PILOT_RUNS} first"
            continue
        needed = (
            f"{planning.runs_needed(pilot, difference)} runs a group find {difference:.0%}"
            for difference in _DETECTABLE_DIFFERENCES
        )
        curve = (
            f"{planning.detectable_difference(runs, planning.upper_deviation(pilot)):.1%} with {runs}"
            for runs in _POWER_CURVE_RUNS
        )
        yield label, "; ".join(needed)
        yield "", f"smallest difference found: {', '.join(curve)}"


def _describe_look(comparison: Comparison, num_pairs: int) -> str:
    if comparison.distorting:
        return f"cannot tell, {comparison.distorting.cause}: repeat these runs, the sides in turn"
    if not comparison.is_comparable:
        return "not comparable by time-to-train: see timetrial compare"
    if comparison.basis is Basis.EXPECTED_TIME and not comparison.has_few_runs:
        return "no plan for sides with failed runs: see timetrial compare"
    look = comparison.next_look(num_pairs)
    if look is None:
        return f"run at least {planning.MIN_PILOT_RUNS} seeds a side before the first look"
    interval = f"{100 * look.level:.4g}% CI of the ratio: {format_bounds(look.interval)}"
    if look.verdict:
        return f"stop, {look.verdict} ({interval})"
    if look.total_runs > planning.MAX_LOOKS:
        limit = f"more than the {planning.MAX_LOOKS} that may be looked at one by one"
        return f"cannot tell yet ({interval}): 5% needs about {look.total_runs} runs a side, {limit}"
    return f"go on until about {look.total_runs} runs a side ({interval})"


def show_throughput(console: Console, groups: Sequence[ThroughputGroup]) -> None:
    """Print a table of throughput measurements, one row per setting: means over the runs with confidence intervals."""
    if not groups:
        return
    metrics: dict[str, Callable[[ThroughputGroup], list[float]]] = {
        "samples/s": lambda group: group.samples_per_second,
        "train ms": lambda group: group.train_ms,
        "eval ms": lambda group: group.eval_ms,
    }
    if any(group.usd_per_samples_per_second for group in groups):
        metrics["$ per sample/s"] = lambda group: group.usd_per_samples_per_second
    table = Table(
        title="throughput", title_justify="left", title_style="bold underline", box=None, padding=(0, 2, 0, 0)
    )
    for column in ("network", "GPUs", "precision", "interconnect", "batch per GPU", "runs", *metrics, ""):
        table.add_column(column, overflow="fold")
    for group in sorted(groups, key=lambda g: (g.network, g.precision, g.batch, g.num_accelerators, g.interconnect)):
        means = [geometric_mean(values_of(group)) for values_of in metrics.values()]
        remarks = [*(["out of memory"] if group.out_of_memory else []), *sorted(group.flags)]
        cells = (
            group.network,
            f"{group.num_accelerators} x {group.accelerator}",
            group.precision_label,
            group.interconnect,
            str(group.batch),
            str(len(group.results) + group.out_of_memory),
            *(format_interval(mean) if mean.n else "-" for mean in means),
            ", ".join(remarks),
        )
        table.add_row(*map(Text, cells))
    table_console(console).print(table)


def show_measurements(console: Console, measurements: Sequence[ExternalMeasurement]) -> None:
    """Print a table of each study's measurements."""
    for study in dict.fromkeys((entry.study, entry.source, entry.published) for entry in measurements):
        print_text(console, Text(study[0], style="bold underline"))
        print_text(console, Text(", ".join(part for part in study[1:] if part)))
        table = Table(box=None, padding=(0, 2, 0, 0))
        for column in ("network", "task", "GPUs", "precision", "interconnect", "batch", "metric", "value"):
            table.add_column(column, overflow="fold", justify="right" if column in ("batch", "value") else "left")
        for entry in measurements:
            if (entry.study, entry.source, entry.published) == study:
                against = f" over {entry.baseline}" if entry.baseline else ""
                value = entry.outcome if entry.value is None else format_number(entry.value)
                cells = (entry.workload, entry.task, f"{entry.num_accelerators} x {entry.accelerator}", entry.precision)
                setting = (entry.interconnect, str(entry.batch or ""), entry.metric + against, value)
                table.add_row(*map(Text, (*cells, *setting)))
        table_console(console).print(table)
        console.print()


def show_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Print banners, then flags, then notes."""
    styles = {FindingKind.BANNER: "bold yellow", FindingKind.FLAG: "red", FindingKind.NOTE: "dim"}
    for kind, style in styles.items():
        for finding in findings:
            if finding.kind is kind:
                text = Text.assemble((f"{kind}: ", style), f"{finding.subject}: {finding.message}")
                print_text(console, text)


def format_number(value: float | None, digits: int = 3) -> str:
    """Return `value` with so many significant digits, or "-" if it is unknown."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.{digits}g}"


def format_interval(interval: Interval) -> str:
    """Return an estimate with its bounds; of a single run, the estimate alone."""
    estimate = format_number(interval.estimate)
    return f"{estimate} ({format_bounds(interval)})" if math.isfinite(interval.low) else estimate


def format_bounds(interval: Interval, digits: int = 3) -> str:
    """Return the bounds of an interval."""
    if not interval.is_bounded:
        return "none: too few runs"
    return f"{format_number(interval.low, digits)} to {format_number(interval.high, digits)}"


def _show_run_group(console: Console, group: RunGroup) -> None:
    accelerators = f", {group.accelerators}" if group.accelerators and not group.setting else ""
    title = f"{group.origin} {group.setting}".strip() + accelerators
    print_text(console, Text(title, style="bold"))
    for name, value in _run_group_rows(group):
        print_text(console, Text(f"  {name:<14}{value}"))


def _run_group_rows(group: RunGroup) -> list[tuple[str, str]]:
    """Return (name, value) of each line about a group; what is unknown is left out."""
    unit, factor = ("s", 60) if max(run.observed for run in group.runs) < 60 else ("min", 1)
    failed = f", {group.num_failed} failed" if group.num_failed else ""
    score = group.score_interval
    text = f"{format_interval(score.scaled(factor))} {unit}" if score else "none"
    required = rules.runs_per_score(group.benchmark)
    if required and len(group.runs) < required and group.runs[0].run_record is None:
        text += f"; MLPerf's score needs {required} runs"
    rows = [("runs", f"{len(group.runs)}{failed}; olympic mean {text}")]
    if group.median_window:
        first, median_score = group.median_window
        rows.append(("median window", f"from run {first + 1}: score {format_number(median_score * factor)} {unit}"))
    if not group.converged_runs:
        longest = max(run.observed for run in group.runs) / 60 * factor
        rows.append(("time-to-train", f"> {format_number(longest)} {unit}: no run reached its target"))
        return rows
    of_converged = " of converged runs" if group.num_failed else ""
    middle = group.survival.median
    median = f"; median {format_number(middle * factor)} {unit}" if middle else "; median not reached"
    median = median if len(group.runs) > 1 else ""
    rows.append(("time-to-train", f"{format_interval(group.mean_minutes.scaled(factor))} {unit}{of_converged}{median}"))
    if group.num_failed:
        rows += _failure_rows(group, unit, factor)
    if group.epochs:
        low, high = (format_number(value) for value in (min(group.epochs), max(group.epochs)))
        spread = f", range {low} to {high}" if len(group.epochs) > 1 else ""
        rows.append((group.progress_unit, format_interval(group.mean_epochs) + spread))
        rows.append(
            (f"per {group.progress_unit.removesuffix('s')}", f"{format_interval(group.mean_seconds_per_epoch)} s")
        )
    if len(group.minutes) > 1:
        variations = [stats.coefficient_of_variation(values) for values in (group.minutes, group.seconds_per_epoch)]
        rows.append(
            (
                "spread",
                f"{variations[0]:.1%} in time-to-train, {variations[1]:.1%} in time per {group.progress_unit[:-1]}",
            )
        )
    rows += [("note", text) for text in samples.describe_dependence("these runs", group.converged_runs)]
    return rows


def _failure_rows(group: RunGroup, unit: str, factor: float) -> list[tuple[str, str]]:
    outcomes, seconds_to_unit = group.outcomes, factor / 60
    rate = outcomes.success_rate()
    expected = outcomes.expected_time().scaled(seconds_to_unit)
    rows = [
        ("success rate", f"{rate.estimate:.0%} ({rate.low:.0%} to {rate.high:.0%})"),
        ("expected time", f"{format_interval(expected)} {unit} to a success, failed runs included"),
    ]
    if group.horizon:  # else a run failed at its start
        restricted = outcomes.restricted_mean(group.horizon).scaled(seconds_to_unit)
        horizon = f"{format_number(group.horizon * seconds_to_unit)} {unit}"
        rows.append(("restricted", f"{format_interval(restricted)} {unit}, mean with runs cut at {horizon}"))
    return rows


def _variance_lines(groups: Sequence[RunGroup]) -> list[str]:
    """Return the shares in the variance of time-to-train of each workload that has replicated factors."""
    lines = []
    for workload in dict.fromkeys(group.workload for group in groups):
        of_workload = [group for group in groups if group.workload == workload]
        runs = [run for group in of_workload for run in group.converged_runs if run.duration]
        shares = variance_shares([run.duration or 0.0 for run in runs], samples.variance_factors(runs))
        if shares:
            texts = (
                f"{entry.factor} {entry.share.estimate:.0%} ({entry.share.low:.0%} to {entry.share.high:.0%})"
                for entry in shares
            )
            within = f" at equal {' and '.join(shares[0].within)}" if shares[0].within else ""
            lines.append(f"{workload}: share of the variance of time-to-train{within} by {', '.join(texts)}.")
    return lines

"""Terminal output of `timetrial study` and `timetrial compare`."""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import astuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...core.console import table_console
from ..analysis import stats
from ..analysis.comparison import Comparison
from ..analysis.findings import Finding
from ..analysis.groups import RunGroup
from ..analysis.stats import Interval
from ..analysis.throughput_groups import ThroughputComparison, ThroughputGroup

_DETECTABLE_DIFFERENCES = (0.05, 0.10)


def show_run_groups(console: Console, groups: Sequence[RunGroup]) -> None:
    """Print score, confidence intervals, spread and required number of runs of each group, by benchmark and round."""
    for benchmark in dict.fromkeys((group.benchmark, group.round) for group in groups):
        console.print(Text(" ".join(benchmark), style="bold underline"))
        for group in groups:
            if (group.benchmark, group.round) == benchmark:
                _show_run_group(console, group)
        console.print()
    for line in _variance_lines(groups):
        console.print(Text(line), soft_wrap=True)


def show_comparison(console: Console, comparison: Comparison) -> None:
    """Print the verdict, the differences other than the GPU, and the ratios with their confidence intervals."""
    console.print()
    if comparison.banner:
        console.print(Text(comparison.banner, style="bold yellow"), soft_wrap=True)
    console.print(Text(comparison.verdict, style="bold"), soft_wrap=True)
    if comparison.differences:
        console.print("Differences other than the GPU:")
        for difference in comparison.differences:
            console.print(Text(f"  - {difference}"), soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("ratio, first over second", "estimate", "95% CI"):
        table.add_column(column)
    ratios = {
        "time per epoch": comparison.time_per_epoch,
        "epochs to converge": comparison.epochs,
        "overhead": comparison.overhead,
        "time-to-train": comparison.time_to_train,
        "time-to-train, epochs pooled": comparison.pooled_time_to_train,
    }
    for name, ratio in ratios.items():
        if ratio:
            table.add_row(name, format_number(ratio.estimate), _format_bounds(ratio))
    console.print(table)


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
        means = [stats.confidence_interval(values_of(group)) for values_of in metrics.values()]
        remarks = [*(["out of memory"] if group.out_of_memory else []), *sorted(group.flags)]
        table.add_row(
            group.network,
            f"{group.num_accelerators} x {group.accelerator}",
            group.precision_label,
            group.interconnect,
            str(group.batch),
            str(len(group.results) + group.out_of_memory),
            *(format_interval(mean) if mean.n else "-" for mean in means),
            ", ".join(remarks),
        )
    table_console(console).print(table)


def show_throughput_comparison(console: Console, comparison: ThroughputComparison) -> None:
    """Print the verdict on the throughput of two settings, and their differences."""
    console.print()
    console.print(Text(f"{comparison.first.title}: {comparison.verdict}", style="bold"), soft_wrap=True)
    for difference in comparison.differences:
        console.print(Text(f"  - {difference}"), soft_wrap=True)
    groups = (comparison.first, comparison.second)
    prices = [stats.confidence_interval(group.usd_per_samples_per_second) for group in groups]
    if all(price.n for price in prices):
        first, second = map(format_interval, prices)
        console.print(f"  purchase price in $ per training sample/s: {first} vs. {second}", soft_wrap=True)


def show_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Print banners, then flags, then notes."""
    styles = {"banner": "bold yellow", "flag": "red", "note": "dim"}
    for kind, style in styles.items():
        for finding in findings:
            if finding.kind == kind:
                text = Text.assemble((f"{kind}: ", style), f"{finding.subject}: {finding.message}")
                console.print(text, soft_wrap=True)


def format_number(value: float | None) -> str:
    """Return `value` with three significant digits, or "-" if it is unknown."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def format_interval(interval: Interval) -> str:
    """Return an estimate with its bounds; of a single run, the estimate alone."""
    estimate = format_number(interval.estimate)
    return f"{estimate} ({_format_bounds(interval)})" if math.isfinite(interval.low) else estimate


def _format_bounds(interval: Interval) -> str:
    if not math.isfinite(interval.low):
        return "none: too few runs"
    return f"{format_number(interval.low)} to {format_number(interval.high)}"


def _show_run_group(console: Console, group: RunGroup) -> None:
    accelerators = f", {group.accelerators}" if group.accelerators and not group.setting else ""
    title = f"{group.submitter} {group.system} {group.setting}".strip() + accelerators
    console.print(Text(title, style="bold"), soft_wrap=True)
    for name, value in _run_group_rows(group):
        console.print(Text(f"  {name:<14}{value}"), soft_wrap=True)


def _run_group_rows(group: RunGroup) -> list[tuple[str, str]]:
    """Return (name, value) of each line about a group; what is unknown is left out."""
    unit, factor = ("s", 60) if group.minutes and max(group.minutes) < 1 else ("min", 1)
    score = f"{format_number(group.minutes_scaled * factor)} {unit}" if group.minutes_scaled else "none"
    failed = f", {group.num_failed} failed" if group.num_failed else ""
    rows = [("runs", f"{len(group.runs)}{failed}; olympic mean {score}")]
    if group.median_window:
        first, median_score = group.median_window
        rows.append(("median window", f"from run {first + 1}: score {format_number(median_score * factor)} {unit}"))
    if group.minutes:
        # The number of runs is multiplied as well, but it is not shown.
        mean = Interval(*(value * factor for value in astuple(group.mean_minutes)))
        median = ""
        if len(group.runs) > 1:
            middle = group.survival.median
            median = f"; median {format_number(middle * factor)} {unit}" if middle else "; median not reached"
        rows.append(("time-to-train", f"{format_interval(mean)} {unit}{median}"))
    if group.epochs:
        epochs = f", range {format_number(min(group.epochs))} to {format_number(max(group.epochs))}"
        rows.append(("epochs", format_interval(group.mean_epochs) + (epochs if len(group.epochs) > 1 else "")))
        rows.append(("per epoch", f"{format_interval(group.mean_seconds_per_epoch)} s"))
    if len(group.minutes) > 1:
        variations = [stats.coefficient_of_variation(values) for values in (group.minutes, group.seconds_per_epoch)]
        rows.append(("spread", f"{variations[0]:.1%} in time-to-train, {variations[1]:.1%} in time per epoch"))
        rows += [(f"to detect {share:.0%}", _runs_needed(group, share)) for share in _DETECTABLE_DIFFERENCES]
    return rows


def _runs_needed(group: RunGroup, difference: float) -> str:
    counts = [stats.runs_needed(values, difference) for values in (group.minutes, group.seconds_per_epoch)]
    by_time, by_epoch = (str(count) if count else "unknown" for count in counts)
    return f"{by_time} runs per group by time-to-train, {by_epoch} by time per epoch"


def _variance_lines(groups: Sequence[RunGroup]) -> list[str]:
    """Return the variance components of time-to-train of each workload whose seeds are shared by several groups."""
    lines = []
    for workload in dict.fromkeys(group.workload for group in groups):
        runs = [run for group in groups if group.workload == workload for run in group.converged_runs]
        seeds = [run.seed for run in runs]
        if len(runs) < 4 or None in seeds or len(set(seeds)) in (1, len(seeds)):
            continue
        factors: dict[str, Sequence[Hashable]] = {
            "seed": seeds,
            "GPU": [run.accelerator for run in runs],
            "number of GPUs": [run.num_accelerators for run in runs],
        }
        variances = stats.variance_components([run.duration or 0.0 for run in runs], factors)
        total = sum(variance for variance in variances.values() if math.isfinite(variance))
        if total > 0:
            shares = ", ".join(f"{name} {_share(variance, total)}" for name, variance in variances.items())
            lines.append(f"{workload}: variance of time-to-train by {shares}.")
    return lines


def _share(variance: float, total: float) -> str:
    return f"{variance / total:.0%}" if math.isfinite(variance) else "not identifiable"

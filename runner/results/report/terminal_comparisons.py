"""Terminal output of `timetrial compare`."""

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...core.console import print_text, table_console
from ..analysis.comparison import Basis, Comparison, Machines
from ..analysis.external_comparison import ExternalComparison
from ..analysis.failures import ExpectedTimeRatio
from ..analysis.intervals import Interval, geometric_mean
from ..analysis.throughput_comparison import ThroughputComparison
from . import comparison_text, speed_text
from .terminal import format_bounds, format_interval, format_number


def show_comparison(console: Console, comparison: Comparison, num_comparisons: int = 1) -> None:
    """Print the verdict, the reasons to distrust it, the differences other than the GPU, and the ratios."""
    console.print()
    print_text(console, Text(comparison_text.summary(comparison), style="bold"))
    for reason in comparison_text.reasons(comparison):
        print_text(console, Text(f"  ! {reason}", style="yellow"))
    if differences := comparison_text.differences(comparison):
        console.print("Differences other than the GPU:")
        for difference in differences:
            print_text(console, Text(f"  - {difference}"))
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("ratio, baseline over other", "estimate", "95% CI"):
        table.add_column(column)
    for name, ratio in _ratios(comparison).items():
        if math.isfinite(ratio.estimate):
            table.add_row(Text(name), f"{ratio.estimate:.4g}", format_bounds(ratio, 4))
    if table.row_count:
        console.print(table)
    if comparison.correlation:
        unpaired = "the machines decide" if comparison.machines is Machines.SAMPLED else "the unpaired ratio decides"
        decides = "their pairs decide" if comparison.basis is Basis.PAIRED_TIME else unpaired
        text = f"Times of equal seeds correlate by {format_interval(comparison.correlation)}; {decides}."
        print_text(console, text)
    if num_comparisons > 1:
        level = f"{100 * comparison.levels.difference:.3g}%"
        print_text(
            console,
            f"One of {num_comparisons} comparisons: its verdict uses a {level} interval.",
        )


def _ratios(comparison: Comparison) -> dict[str, Interval]:
    unit = comparison.baseline.progress_unit
    ratios = {
        f"{unit} to converge, {comparison_text.epochs_state(comparison)}": comparison.epochs,
        f"seconds per {unit.removesuffix('s')}": comparison.seconds_per_epoch,
        "  of these, training": comparison.train_seconds_per_epoch,
        "time-to-train of converged runs": comparison.time_to_train,
    }
    if comparison.paired:
        ratios["time-to-train, equal seeds paired"] = comparison.paired
    if isinstance(comparison.ratio, ExpectedTimeRatio):
        ratios["expected time to a success"] = comparison.ratio.interval()
    return ratios


def show_throughput_comparison(console: Console, comparison: ThroughputComparison) -> None:
    """Print the verdict on the throughput of two settings, and their differences."""
    names = f"{comparison.other.title} against {comparison.baseline.title}"
    console.print()
    print_text(
        console,
        Text(f"{names}: {speed_text.throughput_phrase(comparison)}", style="bold"),
    )
    for reason in speed_text.throughput_reasons(comparison):
        print_text(console, Text(f"  ! {reason}", style="yellow"))
    for difference in speed_text.setting_differences(comparison):
        print_text(console, Text(f"  - {difference}"))
    groups = (comparison.baseline, comparison.other)
    prices = [geometric_mean(group.usd_per_samples_per_second) for group in groups]
    if all(price.n for price in prices):
        first, second = map(format_interval, prices)
        print_text(console, f"  purchase price in $ per training sample/s: {first} vs. {second}")


def show_external_comparison(console: Console, comparison: ExternalComparison) -> None:
    """Print the verdict on two systems, and a table of the measurements that it rests on."""
    console.print()
    print_text(console, Text(speed_text.external_summary(comparison), style="bold"))
    table = Table(box=None, padding=(0, 2, 0, 0))
    sides = (comparison.baseline.title, comparison.other.title)
    for column in ("network", "task", "setting", "metric", *sides, "times as fast"):
        table.add_column(Text(column), overflow="fold")
    for row in comparison.rows:
        values = (format_number(value) for value in (row.baseline, row.other))
        cells = (row.workload, row.task, row.setting, row.metric, *values, f"{row.ratio:.3g}")
        table.add_row(*map(Text, cells))
    if comparison.rows:
        table_console(console).print(table)
        print_text(console, _describe_interval(comparison))


def _describe_interval(comparison: ExternalComparison) -> str:
    if len(comparison.trained) == 1 and comparison.speed.interval().is_bounded:
        return "The interval is from repeated measurements."
    if any(math.isfinite(row.speed.error) for row in comparison.rows):
        return "The interval is for further networks of this kind."
    return "Each was measured once: the interval is for further networks of this kind."

"""What `timetrial study` and `timetrial compare` print."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import astuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...core.console import table_console
from ...record.flops import PURCHASE
from ..analysis import stats
from ..analysis.comparison import Comparison
from ..analysis.findings import Finding
from ..analysis.groups import Cell
from ..analysis.stats import Interval
from ..analysis.throughput_groups import SpeedCell, SpeedPair

_DIFFERENCES = (0.05, 0.10)


def show_cells(console: Console, cells: Sequence[Cell]) -> None:
    """A block a cell, by benchmark: score, intervals, spread, and how many runs a difference needs."""
    for benchmark in dict.fromkeys((cell.benchmark, cell.round) for cell in cells):
        console.print(Text(" ".join(benchmark), style="bold underline"))
        for cell in cells:
            if (cell.benchmark, cell.round) == benchmark:
                _show_cell(console, cell)
        console.print()
    for line in _variance(cells):
        console.print(Text(line), soft_wrap=True)


def show_comparison(console: Console, found: Comparison) -> None:
    """The verdict, what differs apart from the card, and the ratios with their intervals."""
    console.print()
    if found.banner:
        console.print(Text(found.banner, style="bold yellow"), soft_wrap=True)
    console.print(Text(found.verdict, style="bold"), soft_wrap=True)
    if found.differences:
        console.print("What differs apart from the card:")
        for difference in found.differences:
            console.print(Text(f"  - {difference}"), soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("ratio, first over second", "estimate", "95% interval"):
        table.add_column(name)
    rows = [("time per epoch", found.per_epoch), ("epochs to converge", found.epochs), ("overhead", found.overhead)]
    rows.append(("time-to-train", found.time))
    if found.expected:
        rows.append(("time-to-train expected, epochs pooled", found.expected))
    for name, ratio in rows:
        table.add_row(name, number(ratio.estimate), _span(ratio))
    console.print(table)


def show_speeds(console: Console, cells: Sequence[SpeedCell]) -> None:
    """A row for each setting that `timetrial throughput` measured: means over its runs, with intervals."""
    if not cells:
        return
    bought = any(cell.values(PURCHASE) for cell in cells)
    table = Table(
        title="throughput", title_justify="left", title_style="bold underline", box=None, padding=(0, 2, 0, 0)
    )
    for name in (
        "network",
        "cards",
        "precision",
        "links",
        "batch a card",
        "runs",
        "samples/s",
        "train ms",
        "eval ms",
        *(["$ per sample/s"] if bought else []),
        "",
    ):
        table.add_column(name, overflow="fold")
    for cell in sorted(cells, key=lambda cell: (cell.network, cell.precision, cell.batch, cell.count, cell.links)):
        keys = ("samples_per_second", "train_ms", "eval_ms", *([PURCHASE] if bought else []))
        spans = [stats.interval(cell.values(key)) for key in keys]
        said = ", ".join([*(["out of memory"] if cell.out_of_memory else []), *sorted(cell.flags)])
        numbers = [interval(span) if span.n else "-" for span in spans]
        place = (cell.network, f"{cell.count} x {cell.card}", cell.code, cell.links, str(cell.batch))
        table.add_row(*place, str(len(cell.results) + cell.out_of_memory), *numbers, said)
    table_console(console).print(table)


def show_speed_pair(console: Console, found: SpeedPair) -> None:
    """The verdict on two settings' speeds, and what differs."""
    console.print()
    console.print(Text(f"{found.one.title}: {found.verdict}", style="bold"), soft_wrap=True)
    for difference in found.differences:
        console.print(Text(f"  - {difference}"), soft_wrap=True)
    paid = [stats.interval(cell.values(PURCHASE)) for cell in (found.one, found.other)]
    if all(span.n for span in paid):
        first, second = map(interval, paid)
        console.print(f"  dollars of purchase for a training sample a second: {first} against {second}", soft_wrap=True)


def show_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Banners, flags and notes, in this order."""
    styles = {"banner": "bold yellow", "flag": "red", "note": "dim"}
    for kind, style in styles.items():
        for finding in findings:
            if finding.kind == kind:
                console.print(
                    Text.assemble((f"{kind}: ", style), f"{finding.about}: {finding.sentence}"), soft_wrap=True
                )


def number(value: float | None) -> str:
    """Three digits for what is known, a dash for what is not."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def interval(found: Interval) -> str:
    """An estimate with its bounds; the bare estimate of a single run."""
    return f"{number(found.estimate)} ({_span(found)})" if math.isfinite(found.low) else number(found.estimate)


def _span(found: Interval) -> str:
    return f"{number(found.low)} to {number(found.high)}" if math.isfinite(found.low) else "none: too few runs"


def _show_cell(console: Console, cell: Cell) -> None:
    where = f", {cell.accelerators}" if cell.accelerators and not cell.setting else ""
    console.print(Text(f"{cell.submitter} {cell.system} {cell.setting}".strip() + where, style="bold"), soft_wrap=True)
    failed = f", {cell.failed} failed" if cell.failed else ""
    unit, times = ("s", 60) if cell.minutes and max(cell.minutes) < 1 else ("min", 1)
    score = f"{number(cell.minutes_scaled * times)} {unit}" if cell.minutes_scaled else "none"
    rows = [("runs", f"{len(cell.runs)}{failed}; olympic score {score}")]
    if cell.window:
        first, median_score = cell.window
        rows.append(("median window", f"runs {first + 1} and on: median score {number(median_score * times)} {unit}"))
    if cell.minutes:
        middle = cell.survival.median
        median = f"; median {number(middle * times)} {unit}" if middle else "; median not reached"
        mean = Interval(*(value * times for value in astuple(cell.mean_minutes)))  # of n nothing is shown
        rows.append(("time-to-train", f"{interval(mean)} {unit}{median if len(cell.runs) > 1 else ''}"))
    if cell.epochs:
        span = f", from {number(min(cell.epochs))} to {number(max(cell.epochs))}" if len(cell.epochs) > 1 else ""
        rows.append(("epochs", interval(cell.mean_epochs) + span))
        rows.append(("per epoch", f"{interval(cell.mean_seconds_per_epoch)} s"))
    if len(cell.minutes) > 1:
        apart = (stats.spread(cell.minutes), stats.spread(cell.seconds_per_epoch))
        rows.append(("spread", f"{apart[0]:.1%} by time-to-train, {apart[1]:.1%} by time per epoch"))
        rows += [(f"to find {difference:.0%}", _needed(cell, difference)) for difference in _DIFFERENCES]
    for name, value in rows:
        console.print(Text(f"  {name:<14}{value}"), soft_wrap=True)


def _needed(cell: Cell, difference: float) -> str:
    counts = [stats.runs_needed(values, difference) for values in (cell.minutes, cell.seconds_per_epoch)]
    told = [str(count) if count else "unknown" for count in counts]
    return f"{told[0]} runs a side by time-to-train, {told[1]} by time per epoch"


def _variance(cells: Sequence[Cell]) -> list[str]:
    """Shares of the variance of time-to-train by seed, card and count, per work whose seeds repeat over cells."""
    lines = []
    for work in dict.fromkeys(cell.work for cell in cells):
        runs = [run for cell in cells if cell.work == work for run in cell.converged]
        seeds = [run.seed for run in runs]
        if len(runs) < 4 or None in seeds or len(set(seeds)) in (1, len(seeds)):
            continue
        factors: dict[str, Sequence[Hashable]] = {
            "seed": seeds,
            "card": [run.accelerator for run in runs],
            "number of cards": [run.num_accelerators for run in runs],
        }
        shares = stats.variance_components([run.duration or 0.0 for run in runs], factors)
        total = sum(value for value in shares.values() if math.isfinite(value))
        if total > 0:
            told = ", ".join(f"{name} {_share(value, total)}" for name, value in shares.items())
            lines.append(f"{work}: variance of time-to-train by {told}.")
    return lines


def _share(value: float, total: float) -> str:
    return f"{value / total:.0%}" if math.isfinite(value) else "not to be told apart"

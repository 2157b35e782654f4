"""`timetrial peaks`: what a device can do at best, measured; the roofs under which a report places every workload."""

import itertools
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from ..core.atomic_files import to_json, write_atomically, write_failure
from ..core.errors import ConfigurationError, DeviceError, HardwareError, OutOfMemory, RunError
from ..core.formatting import format_number
from ..hardware import devices
from ..hardware.datasheets import card_of, groups
from ..hardware.readings import Cards
from ..record import environment
from ..record.run_dir import new_id, slug
from ..results.analysis.roofline import FILE, SCHEMA
from ..training import all_reduce
from . import microbenchmarks
from .microbenchmarks import Case

ALL_REDUCE = "all-reduce"
KINDS = (*microbenchmarks.KINDS, ALL_REDUCE)
_BURST_SECONDS, _LEAST_REPEATS, _MOST_REPEATS = 0.01, 3, 15
_CACHES, _MOST_SETS = 4, 64  # operands of all sets take so many times the last cache
_ALL_REDUCE_MIB = (1, 16, 256)
_COLUMNS = (SpinnerColumn(), TextColumn("{task.completed:>4}"), TextColumn("{task.description}"))


@dataclass(frozen=True)
class Effort:
    """Seconds that the repeats of one case may take; a series ends with a call that takes over `longest_call`."""

    case_seconds: float
    longest_call: float


FULL, QUICK = Effort(0.12, 0.5), Effort(0.04, 0.02)


@dataclass(frozen=True)
class Row:
    """One case, measured: seconds of a call as the median over repeats, with the fastest and the slowest.

    `tflops` and `gb_s` follow from the median. `host_bound` marks a device that waited for the host's next call: the
    figure is then that of the host. `outcome` says why there is no figure. Clock and watts were read under this load,
    watts only where they are of the moment.
    Where not the `fewest` operations are counted, `tflops` may be more than the device can do.
    """

    kind: str
    shape: str
    storage: str = ""
    compute: str = ""
    seconds: float | None = None
    fastest: float | None = None
    slowest: float | None = None
    repeats: int = 0
    calls: int = 0
    sets: int = 0
    operations: float = 0.0
    moved_bytes: float = 0.0
    tflops: float | None = None
    gb_s: float | None = None
    host_bound: bool = False
    core_mhz: float | None = None
    watts: float | None = None
    outcome: str = ""
    fewest: bool = True

    @property
    def spread(self) -> float:
        """From the fastest to the slowest repeat, as a share of the median."""
        return ((self.slowest or 0.0) - (self.fastest or 0.0)) / (self.seconds or math.inf)


def chosen(kinds: Sequence[str], name: str) -> tuple[str, ...]:
    """The kinds to measure, where none is named all that there are for the accelerator group `name`.

    Raises `ConfigurationError` for a kind that is none, `DeviceError` where cards are too few for it.
    """
    cards = 0 if name == "cpu" else devices.available()
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigurationError(f"{kind} is nothing that peaks measures: choose of {', '.join(KINDS)}.")
    if "transfer" in kinds and name == "cpu":
        raise DeviceError("transfer needs a card, to and from which it copies: leave it out.")
    if ALL_REDUCE in kinds and cards == 1:
        raise DeviceError(f"{ALL_REDUCE} needs two cards and there is one: leave it out.")
    usual = KINDS if cards > 1 else tuple(microbenchmarks.KINDS)
    return tuple(kind for kind in KINDS if kind in (kinds or usual))


def run(
    kinds: Sequence[str], name: str | None, out: Path | None, *, quick: bool, console: Console | None
) -> tuple[dict[str, Any], Path]:
    """Measures, shows (unless there is no console) and keeps; returns what peaks.json holds, and its path."""
    name = name or devices.detect()
    facts = known(name)
    devices.require(name, 1)
    wanted = chosen(kinds, name)
    folder = out or place(devices.label(name))
    make_folder(folder)  # now, not after minutes of measuring
    began, stopped = time.monotonic(), True
    rows: list[Row] = []
    try:
        with Progress(*_COLUMNS, console=console or Console(stderr=True), transient=True) as progress:
            task = progress.add_task("", total=None)
            made = measure(wanted, name, quick=quick, threads=facts.get("threads"))
            for kind, same in itertools.groupby(made, key=lambda row: row.kind):
                first = len(rows)
                for row in same:
                    rows.append(row)
                    progress.update(task, description=escape(f"{kind} {row.shape} {row.compute}"), advance=1)
                if console:
                    show_kind(console, kind, rows[first:])
        stopped = False
    finally:
        if rows:  # those before a stop have cost their time, and are worth as much
            seconds = time.monotonic() - began
            told = document(name, rows, facts.get("threads"), seconds, quick=quick, stopped=stopped)
            if console:
                show_best(console, told["card"], rows)
            path = write(folder, told)
            if console:
                console.print(f"  {'kept':<14}{escape(str(path))}", soft_wrap=True, highlight=False)
    return told, path


def known(name: str) -> dict[str, Any]:
    """The facts of the accelerator group `name`; raises `ConfigurationError` where there is none."""
    if name not in groups():
        raise ConfigurationError(f"accelerator={name} is not known: choose of {', '.join(groups())}.")
    return groups()[name]


def measure(kinds: Sequence[str], name: str, *, quick: bool, threads: int | None) -> Iterator[Row]:
    """A row a case, on the first device of the accelerator group `name`; the all-reduce goes over all of them.

    A CPU counts as what one rank of a run has: `threads` threads.
    """
    device = devices.device(name, 0)
    if device.type == "cpu" and threads:
        torch.set_num_threads(threads)
    sensors = devices.sensors(1) if device.type != "cpu" else None
    devices.search_convolutions()
    torch.manual_seed(0)
    effort = QUICK if quick else FULL
    try:
        for kind in (kind for kind in microbenchmarks.KINDS if kind in kinds):
            if kind == "transfer" and device.type == "cpu":
                continue
            for series in microbenchmarks.KINDS[kind](quick):
                yield from _of_series(series, device, effort, sensors)
    finally:
        devices.allow_tf32(False)
        if sensors is not None:
            sensors.close()
    if ALL_REDUCE in kinds:
        yield from _of_ranks(name, quick)


def _of_series(series: Sequence[Case], device: torch.device, effort: Effort, sensors: Cards | None) -> Iterator[Row]:
    for case in series:
        try:
            if case.compute:
                devices.require_precision(device, case.compute)
            row = measured(case, device, effort, sensors)
        except DeviceError:  # the device has no units for it: nothing to say
            return
        except (RuntimeError, MemoryError) as error:
            cause = devices.explain(error)
            if isinstance(cause, (DeviceError, HardwareError)):  # which the next case would meet again
                raise cause from error
            outcome = "out of memory" if isinstance(cause, OutOfMemory) else "not supported"
            yield Row(case.kind, case.shape, case.storage, case.compute, outcome=outcome)
            return
        yield row
        if (row.seconds or 0.0) > effort.longest_call:
            return


def measured(case: Case, device: torch.device, effort: Effort, sensors: Cards | None = None) -> Row:
    """Times one case: warmed up, in bursts that hide the host's part, over operands that no cache holds."""
    devices.allow_tf32(case.compute == "tf32")
    calls = [case.make(device)]
    calls[0]()
    calls[0]()
    once, _ = devices.timed(device, calls[0])
    # Slow calls, which work long on their operands whatever holds them, get fewer sets: as many as there is time for.
    cold = math.ceil(_CACHES * devices.cache_bytes(device) / case.held_bytes)
    sets = max(1, min(_MOST_SETS, cold, int(effort.case_seconds / _LEAST_REPEATS / max(once, 1e-6))))
    calls += [case.make(device) for _ in range(sets - 1)]
    once, _ = devices.timed(device, lambda: [call() for call in calls])
    rounds = max(1, math.ceil(_BURST_SECONDS / max(once, 1e-6)))

    def burst() -> None:
        for _ in range(rounds):
            for call in calls:
                call()

    several = int(effort.case_seconds / max(once * rounds, 1e-6))
    repeats = 1 if once / sets > effort.longest_call else max(_LEAST_REPEATS, min(_MOST_REPEATS, several))
    spans = [devices.timed(device, burst) for _ in range(repeats)]
    each = rounds * sets
    seconds = sorted(span / each for span, _ in spans)
    middle = statistics.median(seconds)
    core_mhz = watts = None
    if sensors is not None:
        burst()
        now = sensors.read(0)  # while it runs
        # A mean over a second would be of what ran before.
        core_mhz, watts = now.core_mhz, None if now.watts_over_seconds else now.power_watts
        devices.wait(device)
    handed_over = statistics.median(handing for _, handing in spans) / each
    return Row(
        case.kind, case.shape, case.storage, case.compute, middle, seconds[0], seconds[-1], repeats, each, sets,
        case.operations, case.moved_bytes,
        tflops=case.operations / middle / 1e12 if case.operations else None,
        gb_s=case.moved_bytes / middle / 1e9,
        host_bound=device.type != "cpu" and case.kind != "transfer" and handed_over > 0.9 * middle,
        core_mhz=core_mhz, watts=watts, fewest=case.fewest,
    )  # fmt: skip


def _of_ranks(name: str, quick: bool) -> Iterator[Row]:
    """The sum over all devices of this machine, between them directly and through the host's memory."""
    ranks = 2 if name == "cpu" else devices.available()
    for direct in (True, False) if name != "cpu" else (True,):
        for mib in _ALL_REDUCE_MIB[-1:] if quick else _ALL_REDUCE_MIB:
            shape = f"{mib} MiB, {ranks} devices" + ("" if direct else ", through the host")
            try:
                speed = all_reduce.measure(name, ranks, mib=mib, peer_to_peer=direct)
            except RunError as error:
                yield Row(ALL_REDUCE, shape, "fp32", outcome=str(error))
                break
            carried = 2 * (ranks - 1) / ranks * mib * 2**20
            seconds = carried / 1e9 / speed
            yield Row(ALL_REDUCE, shape, "fp32", seconds=seconds, moved_bytes=carried, gb_s=speed)


def best(rows: Sequence[Row]) -> dict[str, Any]:
    """The roofs: the fastest operation of each format (stored and computed in it, or fp32 in tf32), the fastest copy.

    What can be had with fewer operations than are counted is no roof: by its count a 3x3 convolution in fp32 went at
    1.8 times the peak of an H200's data sheet.
    """
    fastest: dict[str, Row] = {}
    for row in rows:
        if row.tflops and row.fewest and row.compute in (row.storage, "tf32"):
            fastest[row.compute] = max(row, fastest.get(row.compute, row), key=lambda one: one.tflops or 0.0)
    copies = [row.gb_s for row in rows if row.kind == "copy" and row.gb_s]
    return {
        "tflops": {compute: row.tflops for compute, row in fastest.items()},
        "of": {compute: f"{row.kind} {row.shape}" for compute, row in fastest.items()},
        "gb_s": max(copies, default=None),
    }


def document(
    name: str, rows: Sequence[Row], threads: int | None, seconds: float, *, quick: bool, stopped: bool
) -> dict[str, Any]:
    """What peaks.json holds; `stopped` before all was measured."""
    return {
        "schema": SCHEMA,
        "card": devices.label(name),
        "threads": threads,
        "quick": quick,
        "stopped": stopped,
        "measured": time.time(),
        "took_seconds": seconds,
        "peaks": best(rows),
        "rows": [asdict(row) for row in rows],
        "system": environment.describe(),
    }


def place(card: str) -> Path:
    """Where peaks.json goes unless told otherwise: beside the runs, where a report finds all that were made."""
    return Path("runs", slug(platform.node()), "peaks", slug(card), new_id())


def make_folder(folder: Path) -> None:
    """Makes the folder that peaks.json goes to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_failure(folder, error) from error


def write(folder: Path, told: dict[str, Any]) -> Path:
    """Writes peaks.json whole or not at all."""
    write_atomically(folder / FILE, to_json(told))
    return folder / FILE


def show_best(console: Console, card: str, rows: Sequence[Row]) -> None:
    """The roofs beside the data sheet's."""
    facts, roofs = card_of(card) or {}, best(rows)
    console.print(f"\n[bold]{escape(card)}, at best[/bold]", highlight=False)
    for compute, most in roofs["tflops"].items():
        sheet = (facts.get("tflops") or {}).get(compute)
        words = f"{_against(compute, most, 'TFLOP/s', sheet)} ({roofs['of'][compute]})"
        console.print(words, soft_wrap=True, highlight=False)
    if roofs["gb_s"]:
        console.print(_against("memory", roofs["gb_s"], "GB/s", facts.get("bandwidth_gb_s")), highlight=False)


def _against(what: str, most: float, unit: str, sheet: float | None) -> str:
    share = f", {most / sheet:.0%} of the data sheet's {sheet:,g}" if sheet else ""
    return f"  {what:<14}{format_number(most)} {unit}{share}"


def show_kind(console: Console, kind: str, rows: Sequence[Row]) -> None:
    """A line a case."""
    counts = any(row.tflops for row in rows)
    columns: dict[str, Callable[[Row], str]] = {
        "shape": lambda row: row.shape,
        "stored": lambda row: row.storage,
        **({"computed": lambda row: row.compute} if any(row.compute for row in rows) else {}),
        "time": lambda row: _duration(row.seconds) if row.seconds else escape(row.outcome),
        "within": lambda row: f"{row.spread:.1%}" if row.repeats > 1 else "",
        ("TFLOP/s" if counts else "GB/s"): lambda row: format_number(row.tflops if counts else row.gb_s),
        **({"MHz": lambda row: format_number(row.core_mhz)} if any(row.core_mhz for row in rows) else {}),
        **({"W": lambda row: format_number(row.watts)} if any(row.watts for row in rows) else {}),
        **({"": lambda row: "host-bound" if row.host_bound else ""} if any(row.host_bound for row in rows) else {}),
    }
    table = Table(title=kind, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in ("shape", "stored", "computed") else "right")
    for row in rows:
        table.add_row(*(told(row) for told in columns.values()))
    console.print()
    console.print(table)


def _duration(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} µs" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"

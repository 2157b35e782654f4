"""`timetrial peaks`: measure the peak rates of a device, the roofs of a report's roofline."""

import itertools
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from ..core.atomic_files import to_json, write_atomically, write_failure
from ..core.console import is_quiet
from ..core.errors import ConfigurationError, DeviceError, HardwareError, OutOfMemory, RunError
from ..core.formatting import format_number, slug
from ..hardware import device_description, device_timing, devices
from ..hardware.datasheets import accelerator_configs, find_datasheet
from ..hardware.error_translation import to_run_error
from ..hardware.readings import GpuSensors
from ..hardware.sensors import open_sensors
from ..record import environment
from ..record.run_dir import new_id
from ..results.analysis.roofline import PEAKS_FILE, PEAKS_SCHEMA
from ..training import all_reduce
from . import microbenchmarks
from .microbenchmarks import Case

ALL_REDUCE = "all-reduce"
KINDS = (*microbenchmarks.KINDS, ALL_REDUCE)
_BURST_SECONDS, _MIN_REPEATS, _MAX_REPEATS = 0.01, 3, 15
_CACHE_MULTIPLE, _MAX_OPERAND_SETS = 4, 64  # the sets of operands together exceed the last-level cache this many times
_ALL_REDUCE_MIB = (1, 16, 256)
_HOST_BOUND = 0.9  # of the time of a call, spent on submitting it
_PROGRESS_COLUMNS = (SpinnerColumn(), TextColumn("{task.completed:>4}"), TextColumn("{task.description}"))


@dataclass(frozen=True)
class Effort:
    """Seconds for the repeats of one case; a series ends after a call that takes longer than `max_call_seconds`."""

    case_seconds: float
    max_call_seconds: float


FULL, QUICK = Effort(0.12, 0.5), Effort(0.04, 0.02)


@dataclass(frozen=True)
class Row:
    """The measurement of one case: seconds per call as median, minimum and maximum over the repeats.

    `tflops` and `gb_s` follow from the median. `host_bound` marks a device that waited for the host to submit the next
    call; the rates are then those of the host. `outcome` says why a case has no measurement. Clock and power were read
    under this load, power only if it is instantaneous. Unless the counted operations are `is_minimal`, `tflops` can
    exceed the peak of the device.
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
    is_minimal: bool = True

    @property
    def spread(self) -> float:
        """Maximum minus minimum over the median."""
        return ((self.slowest or 0.0) - (self.fastest or 0.0)) / (self.seconds or math.inf)


def select_kinds(kinds: Sequence[str], accelerator: str) -> tuple[str, ...]:
    """Return the kinds to measure, by default all that the accelerator config supports.

    Raises `ConfigurationError` for an unknown kind, `DeviceError` for one that needs more GPUs.
    """
    num_gpus = 0 if accelerator == "cpu" else devices.device_count()
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigurationError(f"{kind} is no kind of micro-benchmark: choose from {', '.join(KINDS)}.")
    if "transfer" in kinds and accelerator == "cpu":
        raise DeviceError("transfer needs a GPU to copy to and from: leave it out.")
    if ALL_REDUCE in kinds and num_gpus == 1:
        raise DeviceError(f"{ALL_REDUCE} needs two GPUs and there is one: leave it out.")
    default = KINDS if num_gpus > 1 else tuple(microbenchmarks.KINDS)
    return tuple(kind for kind in KINDS if kind in (kinds or default))


def run(
    kinds: Sequence[str], accelerator: str | None, out: Path | None, *, quick: bool, console: Console | None
) -> tuple[dict[str, Any], Path]:
    """Measure, print (with a console) and write peaks.json; return its content and its path."""
    accelerator = accelerator or devices.detect_accelerator()
    threads = accelerator_config(accelerator).get("threads")
    devices.require_devices(accelerator, 1)
    selected = select_kinds(kinds, accelerator)
    folder = out or default_folder(devices.display_name(accelerator))
    make_folder(folder)  # fails before the measurement rather than after it
    started, stopped = time.monotonic(), True
    rows: list[Row] = []
    try:
        shown_on = console or Console(stderr=True)
        with Progress(*_PROGRESS_COLUMNS, console=shown_on, transient=True, disable=is_quiet()) as progress:
            task = progress.add_task("", total=None)
            measured = measure_kinds(selected, accelerator, quick=quick, threads=threads)
            for kind, rows_of_kind in itertools.groupby(measured, key=lambda row: row.kind):
                first = len(rows)
                for row in rows_of_kind:
                    rows.append(row)
                    progress.update(task, description=escape(f"{kind} {row.shape} {row.compute}"), advance=1)
                if console:
                    show_kind(console, kind, rows[first:])
        stopped = False
    finally:
        if rows:  # also after a stop
            seconds = time.monotonic() - started
            document = to_document(accelerator, rows, threads, seconds, quick=quick, stopped=stopped)
            if console:
                show_peaks(console, document["card"], rows)
            path = write_document(folder, document)
            if console:
                console.print(f"  {'written to':<14}{escape(str(path))}", soft_wrap=True, highlight=False)
    return document, path


def accelerator_config(accelerator: str) -> dict[str, Any]:
    """Return the content of a file in conf/accelerator; raise `ConfigurationError` if there is none."""
    configs = accelerator_configs()
    if accelerator not in configs:
        raise ConfigurationError(f"accelerator={accelerator} is unknown: choose from {', '.join(configs)}.")
    return configs[accelerator]


def measure_kinds(kinds: Sequence[str], accelerator: str, *, quick: bool, threads: int | None) -> Iterator[Row]:
    """Yield a row per case, measured on the first device; the all-reduce uses all devices.

    A CPU is measured with `threads` threads, as one rank of a run uses it.
    """
    device = devices.select_device(accelerator, 0)
    if device.type == "cpu" and threads:
        torch.set_num_threads(threads)
    sensors = open_sensors(1) if device.type != "cpu" else None
    devices.enable_cudnn_benchmark()
    torch.manual_seed(0)
    effort = QUICK if quick else FULL
    try:
        for kind in (kind for kind in microbenchmarks.KINDS if kind in kinds):
            if kind == "transfer" and device.type == "cpu":
                continue
            for series in microbenchmarks.KINDS[kind](quick):
                yield from _measure_series(series, device, effort, sensors)
    finally:
        devices.allow_tf32(False)
        if sensors is not None:
            sensors.close()
    if ALL_REDUCE in kinds:
        yield from _measure_all_reduce(accelerator, quick)


def _measure_series(
    series: Sequence[Case], device: torch.device, effort: Effort, sensors: GpuSensors | None
) -> Iterator[Row]:
    for case in series:
        try:
            if case.compute:
                devices.require_precision(device, case.compute)
            row = measure_case(case, device, effort, sensors)
        except DeviceError:  # the device does not support the format
            return
        except (RuntimeError, MemoryError) as error:
            run_error = to_run_error(error)
            if isinstance(run_error, (DeviceError, HardwareError)):  # would occur again in the next case
                raise run_error from error
            outcome = "out of memory" if isinstance(run_error, OutOfMemory) else "not supported"
            yield Row(case.kind, case.shape, case.storage, case.compute, outcome=outcome)
            return
        yield row
        if (row.seconds or 0.0) > effort.max_call_seconds:
            return


def measure_case(case: Case, device: torch.device, effort: Effort, sensors: GpuSensors | None = None) -> Row:
    """Time one case after a warm-up, in bursts that hide the host's overhead, on operands that no cache holds."""
    devices.allow_tf32(case.compute == "tf32")
    calls = [case.make(device)]
    calls[0]()
    calls[0]()
    pass_seconds, _ = device_timing.time_on_device(device, calls[0])
    # Caches hardly matter to slow calls, which get as many sets of operands as there is time for.
    uncached_sets = math.ceil(_CACHE_MULTIPLE * device_description.last_level_cache_bytes(device) / case.operand_bytes)
    timed_sets = int(effort.case_seconds / _MIN_REPEATS / max(pass_seconds, 1e-6))
    sets = max(1, min(_MAX_OPERAND_SETS, uncached_sets, timed_sets))
    calls += [case.make(device) for _ in range(sets - 1)]
    pass_seconds, _ = device_timing.time_on_device(device, lambda: [call() for call in calls])
    passes = max(1, math.ceil(_BURST_SECONDS / max(pass_seconds, 1e-6)))

    def burst() -> None:
        for _ in range(passes):
            for call in calls:
                call()

    affordable_repeats = int(effort.case_seconds / max(pass_seconds * passes, 1e-6))
    is_slow = pass_seconds / sets > effort.max_call_seconds
    repeats = 1 if is_slow else max(_MIN_REPEATS, min(_MAX_REPEATS, affordable_repeats))
    timings = [device_timing.time_on_device(device, burst) for _ in range(repeats)]
    num_calls = passes * sets
    seconds = sorted(on_device / num_calls for on_device, _ in timings)
    median = statistics.median(seconds)
    core_mhz = watts = None
    if sensors is not None:
        burst()
        reading = sensors.read(0)  # under load
        # Power averaged over a second would include what ran before.
        core_mhz, watts = reading.core_mhz, None if reading.power_averaging_seconds else reading.power_watts
        devices.synchronize(device)
    submission_seconds = statistics.median(submission for _, submission in timings) / num_calls
    return Row(
        case.kind, case.shape, case.storage, case.compute, median, seconds[0], seconds[-1], repeats, num_calls, sets,
        case.operations, case.moved_bytes,
        tflops=case.operations / median / 1e12 if case.operations else None,
        gb_s=case.moved_bytes / median / 1e9,
        host_bound=device.type != "cpu" and case.kind != "transfer" and submission_seconds > _HOST_BOUND * median,
        core_mhz=core_mhz, watts=watts, is_minimal=case.is_minimal,
    )  # fmt: skip


def _measure_all_reduce(accelerator: str, quick: bool) -> Iterator[Row]:
    """Yield the all-reduce over all devices of this machine, peer to peer and through host memory."""
    ranks = 2 if accelerator == "cpu" else devices.device_count()
    for peer_to_peer in (True, False) if accelerator != "cpu" else (True,):
        for mib in _ALL_REDUCE_MIB[-1:] if quick else _ALL_REDUCE_MIB:
            shape = f"{mib} MiB, {ranks} devices" + ("" if peer_to_peer else ", through host memory")
            try:
                bandwidth = all_reduce.measure(accelerator, ranks, mib=mib, peer_to_peer=peer_to_peer)
            except RunError as error:
                yield Row(ALL_REDUCE, shape, "fp32", outcome=str(error))
                break
            bus_bytes = 2 * (ranks - 1) / ranks * mib * 2**20
            seconds = bus_bytes / 1e9 / bandwidth
            yield Row(ALL_REDUCE, shape, "fp32", seconds=seconds, moved_bytes=bus_bytes, gb_s=bandwidth)


def find_peaks(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the roofs: the fastest case of each format (stored and computed in it, or fp32 in tf32) and copy.

    Cases whose operation count is not minimal do not count: by its count a 3x3 convolution in fp32 ran at 1.8 times
    the data-sheet peak of an H200. `left_out` has the fastest of each kind that a roof leaves out for this reason.
    """
    fastest: dict[str, Row] = {}
    left_out: dict[tuple[str, str], Row] = {}
    for row in rows:
        if row.tflops and row.compute in (row.storage, "tf32"):
            if row.is_minimal:
                fastest[row.compute] = max(row, fastest.get(row.compute, row), key=lambda row: row.tflops or 0.0)
            else:
                key = (row.compute, row.kind)
                left_out[key] = max(row, left_out.get(key, row), key=lambda row: row.tflops or 0.0)
    copies = [row.gb_s for row in rows if row.kind == "copy" and row.gb_s]
    return {
        "tflops": {compute: row.tflops for compute, row in fastest.items()},
        "achieved_by": {compute: f"{row.kind} {row.shape}" for compute, row in fastest.items()},
        "gb_s": max(copies, default=None),
        "left_out": [
            {"compute": compute, "kind": kind, "shape": row.shape, "tflops": row.tflops}
            for (compute, kind), row in left_out.items()
        ],
    }


def to_document(
    accelerator: str, rows: Sequence[Row], threads: int | None, seconds: float, *, quick: bool, stopped: bool
) -> dict[str, Any]:
    """Return the content of peaks.json; `stopped` means that not everything was measured."""
    return {
        "schema": PEAKS_SCHEMA,
        "card": devices.display_name(accelerator),
        "threads": threads,
        "quick": quick,
        "stopped": stopped,
        "measured": time.time(),
        "duration_seconds": seconds,
        "peaks": find_peaks(rows),
        "rows": [asdict(row) for row in rows],
        "system": environment.describe(),
    }


def default_folder(device_name: str) -> Path:
    """Return a new folder for peaks.json beside the runs, where a report finds it."""
    return Path("runs", slug(platform.node()), "peaks", slug(device_name), new_id())


def make_folder(folder: Path) -> None:
    """Create the folder of peaks.json."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_failure(folder, error) from error


def write_document(folder: Path, document: dict[str, Any]) -> Path:
    """Write peaks.json atomically and return its path."""
    write_atomically(folder / PEAKS_FILE, to_json(document))
    return folder / PEAKS_FILE


def show_peaks(console: Console, device_name: str, rows: Sequence[Row]) -> None:
    """Print the roofs, compared with the data sheet."""
    datasheet, peaks = find_datasheet(device_name) or {}, find_peaks(rows)
    console.print(f"\n[bold]Peaks of {escape(device_name)}[/bold]", highlight=False)
    for compute, tflops in peaks["tflops"].items():
        datasheet_tflops = (datasheet.get("tflops") or {}).get(compute)
        line = f"{_peak_line(compute, tflops, 'TFLOP/s', datasheet_tflops)} ({peaks['achieved_by'][compute]})"
        console.print(line, soft_wrap=True, highlight=False)
    if peaks["gb_s"]:
        console.print(_peak_line("memory", peaks["gb_s"], "GB/s", datasheet.get("bandwidth_gb_s")), highlight=False)
    if peaks["left_out"]:
        rates = f"{_format_left_out(peaks['left_out'])} TFLOP/s by the count."
        text = f"  No roof, because they can take fewer operations than are counted: {rates}"
        console.print(text, soft_wrap=True, highlight=False)


def _format_left_out(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return such as "convolution (fp32 0.08, fp16 0.005), attention (fp32 0.01)"."""
    rates: dict[str, list[str]] = {}
    for row in rows:
        rates.setdefault(row["kind"], []).append(f"{row['compute']} {format_number(row['tflops'])}")
    return ", ".join(f"{kind} ({', '.join(same)})" for kind, same in rates.items())


def _peak_line(name: str, value: float, unit: str, datasheet_value: float | None) -> str:
    percent = f", {value / datasheet_value:.0%} of the data sheet's {datasheet_value:,g}" if datasheet_value else ""
    return f"  {name:<14}{format_number(value)} {unit}{percent}"


def show_kind(console: Console, kind: str, rows: Sequence[Row]) -> None:
    """Print a table with a line per case."""
    has_tflops = any(row.tflops for row in rows)
    columns: dict[str, Callable[[Row], str]] = {
        "shape": lambda row: row.shape,
        "storage": lambda row: row.storage,
        **({"compute": lambda row: row.compute} if any(row.compute for row in rows) else {}),
        "time": lambda row: _format_duration(row.seconds) if row.seconds else escape(row.outcome),
        "spread": lambda row: f"{row.spread:.1%}" if row.repeats > 1 else "",
        ("TFLOP/s" if has_tflops else "GB/s"): lambda row: format_number(row.tflops if has_tflops else row.gb_s),
        **({"MHz": lambda row: format_number(row.core_mhz)} if any(row.core_mhz for row in rows) else {}),
        **({"W": lambda row: format_number(row.watts)} if any(row.watts for row in rows) else {}),
        **({"": lambda row: "host-bound" if row.host_bound else ""} if any(row.host_bound for row in rows) else {}),
    }
    table = Table(title=kind, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in ("shape", "storage", "compute") else "right")
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    console.print()
    console.print(table)


def _format_duration(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} µs" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"

"""`timetrial peaks`: measure the peak rates of a device, the roofs of a report's roofline."""

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

from ..core.atomic_files import to_json, write_atomically, write_failure
from ..core.console import is_quiet
from ..core.errors import ConfigurationError, DeviceError, HardwareError, OutOfMemory, RunError
from ..core.formatting import slug
from ..hardware import device_description, device_timing, devices
from ..hardware.datasheets import accelerator_configs
from ..hardware.error_translation import to_run_error
from ..hardware.readings import GpuSensors
from ..hardware.sensors import open_sensors
from ..record import environment
from ..record.run_dir import new_id
from ..results.analysis.roofline import PEAKS_FILE, PEAKS_SCHEMA
from ..training import all_reduce
from . import microbenchmarks
from .microbenchmarks import Case
from .peak_rows import Row, find_peaks
from .peak_tables import show_kind, show_peaks

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


def measure_kinds(
    kinds: Sequence[str],
    accelerator: str,
    *,
    quick: bool,
    threads: int | None,
    keep: Callable[[Case], bool] = lambda case: True,
) -> Iterator[Row]:
    """Yield a row per case to `keep`, measured on the first device; the all-reduce uses all devices.

    A CPU is measured with `threads` threads, as one rank of a run uses it.
    """
    device = devices.select_device(accelerator, 0)
    if device.type == "cpu" and threads:
        torch.set_num_threads(threads)
    sensors = open_sensors(1) if device.type != "cpu" else None
    devices.search_convolution_plans(True)
    torch.manual_seed(0)
    effort = QUICK if quick else FULL
    try:
        for kind in (kind for kind in microbenchmarks.KINDS if kind in kinds):
            if kind == "transfer" and device.type == "cpu":
                continue
            for series in microbenchmarks.KINDS[kind](quick):
                yield from _measure_series(list(filter(keep, series)), device, effort, sensors)
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

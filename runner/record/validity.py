"""Validity flags: reasons to distrust the measured time of a run."""

import itertools
import statistics
from collections.abc import Iterator, Sequence

from .run_record import ClockDeviation, HostLoad
from .telemetry_samples import (
    MAX_GAP_SECONDS,
    SamplesByDevice,
    TelemetrySample,
    counter_increase,
    max_fraction,
    spans_on_clock,
    total_seconds,
    under_load,
    with_value,
)

# Names of flags.
CLOCK = "clock"
LOW_UTILIZATION = "low utilization"
BUSY_HOST = "busy host"
LOADER_BOUND = "loader-bound"
THROTTLED = "throttled"
_MAX_CLOCK_SECONDS = 1.0
_MAX_DATA_WAIT = 0.05  # of the training time
_MAX_THROTTLED = 0.01  # of a GPU's samples
_THROTTLE_REASONS = ("thermal", "hardware")  # a GPU at its power cap runs as designed
_MAX_CLOCK_SPREAD = 0.10  # of the median clock, over the central 90% of the samples under load
_MIN_CLOCK_SAMPLES = 20
_MIN_UTILIZATION_PERCENT = 50.0
_MIN_UTILIZATION_SAMPLES = 3  # the first covers the second before the clock started
_MIN_COVERAGE = 0.98  # of the clock
# Other processes that use 5% of the processors can slow a run that needs all of them by 5%.
_MAX_OTHER_PROCESSES = 0.05
# Load before the clock costs no time by itself. A quarter of the processors means another job, which may go on and take
# memory bandwidth and clock speed that its processor time does not show.
_MAX_OTHER_PROCESSES_BEFORE = 0.25


def find_flags(
    gpus: SamplesByDevice,
    hosts: SamplesByDevice,
    host_load: HostLoad | None,
    *,
    train_seconds: float | None,
    data_wait_seconds: float,
    active_seconds: float | None,
    num_gpus_expected: int,
) -> dict[str, str]:
    """Return the name and the sentence of each flag."""
    flags = dict(_gpu_flags(gpus))
    data_wait = data_wait_seconds / train_seconds if train_seconds else 0.0
    if data_wait > _MAX_DATA_WAIT:
        flags[LOADER_BOUND] = f"{data_wait:.0%} of training was spent waiting for batches"
    if host_load is not None and _is_busy(host_load):
        flags[BUSY_HOST] = _describe_host_load(host_load)
    sampled = gpus or hosts
    if sampled and active_seconds and active_seconds > MAX_GAP_SECONDS:
        covered = min(total_seconds(spans_on_clock(rows)) for rows in sampled.values())
        if covered < _MIN_COVERAGE * active_seconds:
            fraction = covered / active_seconds
            flags["telemetry"] = f"only {fraction:.0%} of the clock was sampled: energy covers this part only"
    if gpus and len(gpus) < num_gpus_expected:
        flags["telemetry"] = f"only {len(gpus)} of {num_gpus_expected} GPUs were sampled: energy covers these only"
    return flags


def find_clock_flag(clock: ClockDeviation | None) -> dict[str, str]:
    """Return the flag of a run whose time is not that of its work, and which therefore takes part in no verdict."""
    if clock is None:
        return {}
    sentences = []
    if abs(clock.lead_seconds) > _MAX_CLOCK_SECONDS:
        sentences.append(f"the wall clock moved by {clock.lead_seconds:+,.1f} s against the monotonic clock")
    if clock.suspended_seconds > _MAX_CLOCK_SECONDS:
        sentences.append(f"a process was suspended for up to {clock.suspended_seconds:,.1f} s")
    return {CLOCK: " and ".join(sentences)} if sentences else {}


def find_change_flag(changed: Sequence[str]) -> dict[str, str]:
    """Return the flag of a run whose attempts were not made with the same software and GPUs."""
    return {"changed": f"attempts differ in {', '.join(changed)}"} if changed else {}


def _is_busy(load: HostLoad) -> bool:
    """Return whether other processes used so much of the processors that the time of the run is doubtful."""
    before = load.other_processes_before or 0.0
    return load.other_processes > _MAX_OTHER_PROCESSES or before > _MAX_OTHER_PROCESSES_BEFORE


def _describe_host_load(load: HostLoad) -> str:
    before = load.other_processes_before
    then = "" if before is None else f" ({before:.0%} before the clock started)"
    return f"other processes used {load.other_processes:.0%} of the run's {load.processors:g} processors{then}"


def _gpu_flags(gpus: SamplesByDevice) -> Iterator[tuple[str, str]]:
    yield from _throttling(gpus)
    clocks = sorted(sample.values["core_mhz"] for rows in gpus.values() for sample in under_load(rows))
    if len(clocks) >= _MIN_CLOCK_SAMPLES:
        low, high = clocks[len(clocks) // 20], clocks[-1 - len(clocks) // 20]
        if high - low > _MAX_CLOCK_SPREAD * statistics.median(clocks):
            yield "clock spread", f"the core clock under load varied from {low:.0f} to {high:.0f} MHz"
    utilizations = [percent for rows in gpus.values() if (percent := median_utilization(rows)) is not None]
    if utilizations and min(utilizations) < _MIN_UTILIZATION_PERCENT:
        sentence = f"a GPU was busy for only {min(utilizations):.0f}% of training"
        yield LOW_UTILIZATION, f"{sentence}: it waited for the host, the data loader or other GPUs"
    shared = max_fraction(gpus.values(), lambda sample: sample.values.get("other_processes", 0) > 0)
    if shared:
        yield "other processes", f"other processes used a GPU in {shared:.0%} of its samples"
    for kind in ("corrected", "uncorrected"):
        errors = sum(_increase_on_clock(rows, f"ecc_{kind}") for rows in gpus.values())
        if errors:
            yield "ECC errors", f"{errors:.0f} {kind} during the run"


def _throttling(gpus: SamplesByDevice) -> Iterator[tuple[str, str]]:
    throttled = throttled_fraction(gpus)
    if throttled > _MAX_THROTTLED:
        on_clock = [sample for rows in gpus.values() for sample in rows if sample.phase]
        reasons = " and ".join(
            reason for reason in _THROTTLE_REASONS if any(reason in sample.throttle_reasons for sample in on_clock)
        )
        yield THROTTLED, f"clocks were lowered ({reasons}) in {throttled:.0%} of a GPU's samples"


def throttled_fraction(gpus: SamplesByDevice) -> float:
    """Return the share of the samples with lowered clocks, of the GPU with the most."""
    return max_fraction(
        gpus.values(), lambda sample: any(reason in sample.throttle_reasons for reason in _THROTTLE_REASONS)
    )


def median_utilization(rows: Sequence[TelemetrySample]) -> float | None:
    """Return the median utilization of a GPU in training, in percent; None for too few samples."""
    training = with_value((row for row in rows if row.phase == "train"), "utilization_percent")
    percents = [row.values["utilization_percent"] for row in training]
    return statistics.median(percents) if len(percents) >= _MIN_UTILIZATION_SAMPLES else None


def _increase_on_clock(rows: Sequence[TelemetrySample], counter: str) -> float:
    return sum(itertools.starmap(counter_increase(counter), spans_on_clock(with_value(rows, counter))))

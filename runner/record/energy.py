"""Energy, power and cost of a run, from telemetry.csv."""

import itertools
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import telemetry_samples, validity
from .disturbance import disturbed_share
from .host_load import measure_host_load
from .run_record import Cost, HostLoad, TelemetrySummary
from .telemetry_samples import (
    SamplesByDevice,
    TelemetrySample,
    counter_increase,
    sampling_interval,
    spans_on_clock,
    total_seconds,
    with_value,
)

_MIN_COVERAGE = 0.95  # fraction of a device's time on the clock for which a column must have values


@dataclass(frozen=True)
class TelemetryReport:
    """What telemetry.csv says of a run; without samples `telemetry` is None, without a price `cost` is None."""

    telemetry: TelemetrySummary | None
    cost: Cost | None
    flags: dict[str, str]
    disturbed_share: float


@dataclass(frozen=True)
class _Energy:
    """Joules on the clock over all devices, and the integral of their power."""

    joules: float | None = None
    source: str | None = None
    integral_joules: float | None = None
    is_counter: bool = False


def summarize_telemetry(
    run_dir: Path,
    *,
    train_seconds: float | None,
    data_wait_seconds: float,
    active_seconds: float | None,
    samples: int,
    usd_per_hour: float | None,
    num_gpus_expected: int = 0,
) -> TelemetryReport:
    """Summarize the telemetry of a run that has ended.

    `active_seconds` is the time on the clock, None for a run without one; `samples` counts the training samples on
    it. `usd_per_hour` is the price of all GPUs together. If any GPU was sampled, `num_gpus_expected` should have been.
    """
    devices = telemetry_samples.read_samples(run_dir)
    hosts = {name: rows for name, rows in devices.items() if name.endswith("/host")}
    gpus = {name: rows for name, rows in devices.items() if name not in hosts}
    host_load = measure_host_load(hosts)
    flags = validity.find_flags(
        gpus,
        hosts,
        host_load,
        train_seconds=train_seconds,
        data_wait_seconds=data_wait_seconds,
        active_seconds=active_seconds,
        num_gpus_expected=num_gpus_expected,
    )
    cost = Cost(usd_per_hour * active_seconds / 3600, usd_per_hour) if usd_per_hour and active_seconds else None
    summary = _summarize(gpus, hosts, samples, host_load) if devices else None
    share = disturbed_share(flags, gpus, host_load, data_wait_seconds=data_wait_seconds, active_seconds=active_seconds)
    return TelemetryReport(summary, cost, flags, share)


def _summarize(
    gpus: SamplesByDevice, hosts: SamplesByDevice, num_samples: int, host_load: HostLoad | None
) -> TelemetrySummary:
    sampled = gpus or hosts
    interval = sampling_interval(sampled.values())
    covered = [total_seconds(spans_on_clock(rows)) for rows in sampled.values()]
    seconds = statistics.mean(covered) if covered else 0.0
    gpu_energy = _measure_energy(gpus.values(), "energy_joules", interval)
    host_energy = _measure_energy(hosts.values(), "host_energy_joules", interval)
    energy = gpu_energy if gpus else host_energy
    clocks = [sample.values["core_mhz"] for rows in gpus.values() for sample in telemetry_samples.under_load(rows)]
    return TelemetrySummary(
        gpus=len(gpus),
        every_seconds=interval,
        seconds=seconds,
        energy_joules=gpu_energy.joules,
        energy_source=gpu_energy.source,
        integral_joules=gpu_energy.integral_joules,
        host_energy_joules=host_energy.joules,
        host_energy_source=host_energy.source,
        mean_watts=energy.joules / seconds if energy.joules and seconds else None,
        train_watts=_mean_watts("train", gpus, hosts, energy.is_counter),
        eval_watts=_mean_watts("eval", gpus, hosts, energy.is_counter),
        samples_per_joule=num_samples / energy.joules if num_samples and energy.joules else None,
        core_mhz=(min(clocks), statistics.median(clocks), max(clocks)) if clocks else None,
        highest_temperature_c=_maximum(gpus, "temperature_c"),
        highest_memory_mib=_maximum(gpus, "memory_mib"),
        at_power_cap=telemetry_samples.max_fraction(gpus.values(), lambda sample: "power" in sample.throttle_reasons),
        host_load=host_load,
    )


def _measure_energy(devices: Collection[Sequence[TelemetrySample]], counter: str, interval: float) -> _Energy:
    """Return the energy of all devices by their counters if each has one, else by the integral of their power."""
    counted = [_sum_over_clock(rows, counter, counter_increase(counter)) for rows in devices]
    integrals = [_sum_over_clock(rows, "power_watts", _integrate_power) for rows in devices]
    source = "RAPL" if counter.startswith("host") else next((rows[-1].source for rows in devices), "")
    integral = None if None in integrals or not integrals else sum(filter(None, integrals))
    if counted and None not in counted:
        return _Energy(sum(filter(None, counted)), f"{source} energy counter", integral, is_counter=True)
    if integral is None:
        return _Energy()
    rate = f" at {1 / interval:.2g} Hz" if interval else ""
    return _Energy(integral, f"integral of {source} power{rate}", integral)


def _mean_watts(phase: str, gpus: SamplesByDevice, hosts: SamplesByDevice, is_counter: bool) -> float | None:
    """Return the mean power of all GPUs together, or of the hosts without a GPU, over spans within one phase."""
    counter = "energy_joules" if gpus else "host_energy_joules"
    column, joules_of = (counter, counter_increase(counter)) if is_counter else ("power_watts", _integrate_power)
    watts = 0.0
    for rows in (gpus or hosts).values():
        spans = [span for span in spans_on_clock(with_value(rows, column)) if span[0].phase == span[1].phase == phase]
        if not (seconds := total_seconds(spans)):
            return None
        watts += sum(itertools.starmap(joules_of, spans)) / seconds
    return watts or None


def _integrate_power(before: TelemetrySample, after: TelemetrySample) -> float:
    """Integrate by trapezoids; power that is a mean over the time before a sample counts for that whole span."""
    watts = after.values["power_watts"]
    if not after.values.get("power_averaging_seconds"):
        watts = (before.values["power_watts"] + watts) / 2
    return watts * (after.time - before.time)


def _sum_over_clock(
    rows: Sequence[TelemetrySample], column: str, joules_of: Callable[[TelemetrySample, TelemetrySample], float]
) -> float | None:
    """Sum over the spans on the clock; None if samples with a value in `column` miss more than 5% of it."""
    spans = list(spans_on_clock(with_value(rows, column)))
    if not spans or total_seconds(spans) < _MIN_COVERAGE * total_seconds(spans_on_clock(rows)):
        return None
    return sum(itertools.starmap(joules_of, spans))


def _maximum(devices: SamplesByDevice, column: str) -> float | None:
    return max((row.values[column] for rows in devices.values() for row in with_value(rows, column)), default=None)

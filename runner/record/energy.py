"""Energy, power and cost of a run, from telemetry.csv."""

import itertools
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.formatting import format_energy
from . import telemetry_samples, validity
from .disturbance import disturbed_share
from .host_load import measure_host_load
from .plausible_samples import counter_joules, drop_implausible, integrate_power
from .run_record import Cost, HostLoad, TelemetrySummary
from .telemetry_samples import (
    SamplesByDevice,
    TelemetrySample,
    sampling_interval,
    spans_on_clock,
    total_seconds,
    with_value,
)

_MIN_COVERAGE = 0.95  # fraction of a device's time on the clock for which a column must have values
_MAX_DISAGREEMENT = 0.10  # between a counter and the integral of the power, of the integral
_MIN_DISCARDED_SECONDS = 1.0  # less is the imprecision of the samples
_MIN_SPANS = 10  # of the power, for its integral to judge a counter


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
    implausible: int = 0
    """Places in which a counter was not plausible."""
    contradiction: str = ""
    """Why there is no energy, although there are figures of it."""


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
    The cost is that of all the time in which a process ran on the clock: work that a kill has discarded is sampled but
    not active.
    """
    devices, dropped = {}, 0
    for name, rows in telemetry_samples.read_samples(run_dir).items():
        devices[name], num_dropped = drop_implausible(rows)
        dropped += num_dropped
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
    share = disturbed_share(flags, gpus, host_load, data_wait_seconds=data_wait_seconds, active_seconds=active_seconds)
    cost = None
    if usd_per_hour and active_seconds:
        sampled = max((total_seconds(spans_on_clock(rows)) for rows in devices.values()), default=0.0)
        seconds = sampled if sampled > active_seconds + _MIN_DISCARDED_SECONDS else active_seconds
        cost = Cost(usd_per_hour * seconds / 3600, usd_per_hour)
    if not devices:
        return TelemetryReport(None, cost, flags, share)
    telemetry, energy_flag = _summarize(gpus, hosts, samples, host_load, dropped)
    return TelemetryReport(telemetry, cost, flags | ({"energy": energy_flag} if energy_flag else {}), share)


def _summarize(
    gpus: SamplesByDevice, hosts: SamplesByDevice, num_samples: int, host_load: HostLoad | None, dropped: int
) -> tuple[TelemetrySummary, str]:
    """Return the summary, and the sentence of the flag for energy that is uncertain, empty without."""
    sampled = gpus or hosts
    interval = sampling_interval(sampled.values())
    covered = [total_seconds(spans_on_clock(rows)) for rows in sampled.values()]
    seconds = statistics.mean(covered) if covered else 0.0
    gpu_energy = _measure_energy(gpus.values(), "energy_joules", interval)
    host_energy = _measure_energy(hosts.values(), "host_energy_joules", interval)
    energy = gpu_energy if gpus else host_energy
    implausible = dropped + gpu_energy.implausible + host_energy.implausible
    samples = "sample of power, energy or time was" if implausible == 1 else "samples of power, energy or time were"
    left_out = f"{implausible} {samples} not plausible and left out" if implausible else ""
    clocks = [sample.values["core_mhz"] for rows in gpus.values() for sample in telemetry_samples.under_load(rows)]
    summary = TelemetrySummary(
        gpus=len(gpus),
        every_seconds=interval,
        seconds=seconds,
        energy_joules=gpu_energy.joules,
        energy_source=gpu_energy.source,
        integral_joules=gpu_energy.integral_joules,
        host_energy_joules=host_energy.joules,
        host_energy_source=host_energy.source,
        mean_watts=energy.joules / seconds if energy.joules and seconds else None,
        train_watts=_mean_watts("train", gpus, hosts, energy),
        eval_watts=_mean_watts("eval", gpus, hosts, energy),
        samples_per_joule=num_samples / energy.joules if num_samples and energy.joules else None,
        core_mhz=(min(clocks), statistics.median(clocks), max(clocks)) if clocks else None,
        highest_temperature_c=_maximum(gpus, "temperature_c"),
        highest_memory_mib=_maximum(gpus, "memory_mib"),
        at_power_cap=telemetry_samples.max_fraction(gpus.values(), lambda sample: "power" in sample.throttle_reasons),
        host_load=host_load,
        implausible_samples=implausible,
    )
    return summary, gpu_energy.contradiction or host_energy.contradiction or left_out


def _measure_energy(devices: Collection[Sequence[TelemetrySample]], counter: str, interval: float) -> _Energy:
    """Return the energy of all devices by their counters if each has one, else by the integral of their power.

    Without a figure if the counters and the integral contradict each other.
    """
    readings = [counter_joules(_covering_spans(rows, counter), counter) for rows in devices]
    counted, implausible = [joules for joules, _ in readings], sum(replaced for _, replaced in readings)
    powered = [_covering_spans(rows, "power_watts") for rows in devices]
    integral: float | None = None
    if powered and all(powered):
        integral = sum(itertools.starmap(integrate_power, itertools.chain(*powered)))
    source = "RAPL" if counter.startswith("host") else next((rows[-1].source for rows in devices), "")
    if counted and None not in counted:
        joules = sum(filter(None, counted))
        is_sampled = all(len(spans) >= _MIN_SPANS for spans in powered)
        if is_sampled and integral is not None and abs(joules - integral) > _MAX_DISAGREEMENT * integral:
            figures = f"the counter says {format_energy(joules)}, the integral of the power {format_energy(integral)}"
            return _Energy(implausible=implausible, contradiction=f"{source}: {figures}, so no energy is reported")
        return _Energy(joules, f"{source} energy counter", integral, is_counter=True, implausible=implausible)
    if integral is None:
        return _Energy(implausible=implausible)
    rate = f" at {1 / interval:.2g} Hz" if interval else ""
    return _Energy(integral, f"integral of {source} power{rate}", integral, implausible=implausible)


def _mean_watts(phase: str, gpus: SamplesByDevice, hosts: SamplesByDevice, energy: _Energy) -> float | None:
    """Return the mean power of all GPUs together, or of the hosts without a GPU, over spans within one phase."""
    counter = "energy_joules" if gpus else "host_energy_joules"
    watts = 0.0
    for rows in (gpus or hosts).values():
        column = counter if energy.is_counter else "power_watts"
        spans = [span for span in spans_on_clock(with_value(rows, column)) if span[0].phase == span[1].phase == phase]
        if not spans or energy.contradiction:
            return None
        joules = (
            counter_joules(spans, counter)[0] if energy.is_counter else sum(itertools.starmap(integrate_power, spans))
        )
        if joules is None:
            return None
        watts += joules / total_seconds(spans)
    return watts or None


def _covering_spans(rows: Sequence[TelemetrySample], column: str) -> list[tuple[TelemetrySample, TelemetrySample]]:
    """Return the spans on the clock; none if samples with a value in `column` miss more than 5% of it."""
    spans = list(spans_on_clock(with_value(rows, column)))
    return spans if total_seconds(spans) >= _MIN_COVERAGE * total_seconds(spans_on_clock(rows)) else []


def _maximum(devices: SamplesByDevice, column: str) -> float | None:
    return max((row.values[column] for rows in devices.values() for row in with_value(rows, column)), default=None)

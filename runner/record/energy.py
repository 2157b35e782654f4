"""What a run drew and cost, and what speaks against its time: read out of telemetry.csv once it has ended."""

import csv
import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..core.formatting import format_energy

_GAP_SECONDS = 5.0  # between two samples: with more, or twice the usual, nobody looked, as between two attempts
_THROTTLED = 0.01  # share of a card's samples with lowered clocks from which it is said
_CLOCK_SPREAD = 0.10  # of the middle clock, over nine tenths of the samples under load
_FEWEST_CLOCKS = 20  # whose tenth is to be left out
_LOADED = 50.0  # percent of load from which a clock says something, and a card counts as used
_FEWEST_LOADS = 3  # the first still tells of the second before the clock
_COVERED = 0.95  # share of the clock that must have been sampled
LOW_UTILISATION = "low utilisation"  # the flag's name
LOADER_BOUND = 0.05  # of the training time, spent on getting batches, read or made on the device: more is said
_LOWERED = ("thermal", "hardware")  # a card at its power cap does what it is built for


class Sample(NamedTuple):
    """A row: `values` holds the numbers that the source told, `throttle` its words for lowered clocks."""

    time: float
    phase: str
    source: str
    values: dict[str, float]
    throttle: str


Devices = dict[str, list[Sample]]  # by node and device, such as "0/host"


def read(folder: Path) -> Devices:
    """The samples of all nodes in order of time; rows that a kill cut short are passed over."""
    found: Devices = {}
    for path in sorted(folder.glob("telemetry*.csv")):
        node = path.stem.removeprefix("telemetry").lstrip("_") or "0"
        with open(path, newline="", encoding="utf-8", errors="replace") as file:
            for row in csv.DictReader(file):
                sample = _sample(row)
                if sample:
                    found.setdefault(f"{node}/{row['device']}", []).append(sample)
    return found


def _sample(row: Mapping[str | None, Any]) -> Sample | None:
    if None in row or None in row.values():  # too many fields, or too few
        return None
    words = dict(row)
    try:
        time, phase, source = float(words.pop("time")), words.pop("phase"), words.pop("source")
        throttle = words.pop("throttle")
        del words["device"]
        values = {str(name): float(value) for name, value in words.items() if value}
    except (KeyError, ValueError):
        return None
    return Sample(time, phase, source, values, throttle)


def judge(
    folder: Path, result: Mapping[str, Any], samples: int, dollars_an_hour: float | None, expected: int = 0
) -> dict[str, Any]:
    """Entries for status.json: `telemetry` (energy in joules, watts, clocks), `cost` in dollars, `flags` in words.

    `samples` were trained on the clock, `dollars_an_hour` is the price of all cards, of which there should be samples
    of `expected` if there are any; a `result` without seconds has no cost.
    """
    devices = read(folder)
    cards = {name: rows for name, rows in devices.items() if not name.endswith("/host")}
    hosts = {name: rows for name, rows in devices.items() if name.endswith("/host")}
    seconds = result.get("active_seconds")
    flags = dict(_flags(cards, result))
    entries: dict[str, Any] = {"flags": flags}
    if devices:
        entries["telemetry"] = _sums(cards, hosts, samples)
        covered = min((_seconds(_spans(rows)) for rows in (cards or hosts).values()), default=0.0)
        if seconds and covered < _COVERED * seconds and seconds > _GAP_SECONDS:
            flags["telemetry"] = f"only {covered / seconds:.0%} of the clock was sampled: energy is that of this part"
        if cards and len(cards) < expected:
            flags["telemetry"] = f"only {len(cards)} of {expected} cards were sampled: energy is that of these"
    if dollars_an_hour and seconds:
        entries["cost"] = {"dollars": dollars_an_hour * seconds / 3600, "dollars_an_hour": dollars_an_hour}
    return entries


def _sums(cards: Devices, hosts: Devices, samples: int) -> dict[str, Any]:
    every = _rhythm((cards or hosts).values())
    covered = [_seconds(_spans(rows)) for rows in (cards or hosts).values()]
    seconds = statistics.mean(covered) if covered else 0.0
    drawn, host = _energy(cards.values(), "energy_joules", every), _energy(hosts.values(), "host_energy_joules", every)
    told = drawn if cards else host
    joules, by_counter = told.get("joules"), str(told.get("source")).endswith("counter")
    clocks = [sample.values["core_mhz"] for rows in cards.values() for sample in _loaded(rows)]
    return {
        "cards": len(cards),
        "every_seconds": every,
        "seconds": seconds,
        "energy_joules": drawn.get("joules"),
        "energy_source": drawn.get("source"),
        "integral_joules": drawn.get("integral"),
        "host_energy_joules": host.get("joules"),
        "host_energy_source": host.get("source"),
        "mean_watts": joules / seconds if joules and seconds else None,
        "train_watts": _watts_in("train", cards, hosts, by_counter),
        "eval_watts": _watts_in("eval", cards, hosts, by_counter),
        "samples_per_joule": samples / joules if samples and joules else None,
        "core_mhz": [min(clocks), statistics.median(clocks), max(clocks)] if clocks else None,
        "highest_temperature_c": _highest(cards, "temperature_c"),
        "highest_memory_mib": _highest(cards, "memory_mib"),
        "at_power_cap": _share(cards.values(), lambda sample: "power" in sample.throttle),
    }


def _energy(devices: Iterable[Sequence[Sample]], counter: str, every: float) -> dict[str, Any]:
    """Joules on the clock over all devices, by their counters if all have one, else by their watts; {} without both."""
    counted = [_summed(rows, counter, _by(counter)) for rows in devices]
    integral = [_summed(rows, "power_watts", _by_watts) for rows in devices]
    source = next((rows[-1].source for rows in devices), "")
    source = "RAPL" if counter.startswith("host") else source
    watts = None if None in integral or not integral else sum(filter(None, integral))
    if counted and None not in counted:
        return {"joules": sum(filter(None, counted)), "source": f"{source}'s counter", "integral": watts}
    if watts is None:
        return {}
    rate = f" at {1 / every:.2g} Hz" if every else ""
    return {"joules": watts, "source": f"integral of {source}'s watts{rate}", "integral": watts}


def _watts_in(phase: str, cards: Devices, hosts: Devices, by_counter: bool) -> float | None:
    """Mean watts of all cards together, or of the hosts where there are none, over spans that lie in one phase."""
    counter = "energy_joules" if cards else "host_energy_joules"
    name, part = (counter, _by(counter)) if by_counter else ("power_watts", _by_watts)
    total = 0.0
    for rows in (cards or hosts).values():
        telling = _spans([sample for sample in rows if name in sample.values])
        spans = [(one, two) for one, two in telling if one.phase == two.phase == phase]
        if not (seconds := _seconds(spans)):
            return None
        total += sum(itertools.starmap(part, spans)) / seconds
    return total or None


def _by(counter: str) -> Callable[[Sample, Sample], float]:
    """What a counter grew by; one that fell began anew."""
    return lambda one, two: max(two.values[counter] - one.values[counter], 0.0)


def _grown(rows: Sequence[Sample], counter: str) -> float:
    """By how much a counter grew on the clock."""
    return sum(itertools.starmap(_by(counter), _spans([sample for sample in rows if counter in sample.values])))


def _by_watts(one: Sample, two: Sample) -> float:
    """Trapezoids; where watts are a mean over the time before a sample, the second's are those of the span."""
    watts = two.values["power_watts"]
    if not two.values.get("watts_over_seconds"):
        watts = (one.values["power_watts"] + watts) / 2
    return watts * (two.time - one.time)


def _summed(rows: Sequence[Sample], name: str, part: Callable[[Sample, Sample], float]) -> float | None:
    """The sum over spans on the clock; None where samples that tell `name` leave over 5% of it out."""
    telling = list(_spans([sample for sample in rows if name in sample.values]))
    if not telling or _seconds(telling) < _COVERED * _seconds(_spans(rows)):
        return None
    return sum(itertools.starmap(part, telling))


def _seconds(spans: Iterable[tuple[Sample, Sample]]) -> float:
    return sum(after.time - before.time for before, after in spans)


def _spans(rows: Sequence[Sample]) -> Iterator[tuple[Sample, Sample]]:
    """Neighbouring samples, the first of them on the clock, with no gap between them."""
    longest = max(_GAP_SECONDS, 2 * _rhythm([rows]))
    for before, after in itertools.pairwise(rows):
        if before.phase and after.time - before.time <= longest:
            yield before, after


def _rhythm(devices: Iterable[Sequence[Sample]]) -> float:
    """The usual number of seconds between two samples; 0 where there are none."""
    steps = [after.time - before.time for rows in devices for before, after in itertools.pairwise(rows)]
    return statistics.median(steps) if steps else 0.0


def _loaded(rows: Sequence[Sample]) -> list[Sample]:
    """Training samples of a card that worked and told its clock."""
    at_work = (
        sample for sample in rows if sample.phase == "train" and sample.values.get("load_percent", 100) > _LOADED
    )
    return [sample for sample in at_work if "core_mhz" in sample.values]


def _load(rows: Sequence[Sample]) -> float | None:
    """Percent of the time that a card was at work in training, by the middle one of its samples."""
    loads = [row.values["load_percent"] for row in rows if row.phase == "train" and "load_percent" in row.values]
    return statistics.median(loads) if len(loads) >= _FEWEST_LOADS else None


def _highest(devices: Devices, name: str) -> float | None:
    return max((row.values[name] for rows in devices.values() for row in rows if name in row.values), default=None)


def _share(devices: Iterable[Sequence[Sample]], has: Callable[[Sample], bool]) -> float:
    """BatchSharding of the samples on the clock, of the device that has most."""
    shares = []
    for rows in devices:
        on_clock = [sample for sample in rows if sample.phase]
        shares.append(sum(map(has, on_clock)) / len(on_clock) if on_clock else 0.0)
    return max(shares, default=0.0)


def _flags(cards: Devices, result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and sentence of all that speaks against the run's time."""
    on_clock = [sample for rows in cards.values() for sample in rows if sample.phase]
    share = _share(cards.values(), _is_lowered)
    if share > _THROTTLED:
        causes = " and ".join(word for word in _LOWERED if any(word in sample.throttle for sample in on_clock))
        yield "throttled", f"clocks were lowered ({causes}) in {share:.0%} of a card's samples"
    clocks = sorted(sample.values["core_mhz"] for rows in cards.values() for sample in _loaded(rows))
    if len(clocks) >= _FEWEST_CLOCKS:
        low, high = clocks[len(clocks) // 20], clocks[-1 - len(clocks) // 20]
        if high - low > _CLOCK_SPREAD * statistics.median(clocks):
            yield "clock spread", f"under load from {low:.0f} to {high:.0f} MHz"
    loads = [load for rows in cards.values() if (load := _load(rows)) is not None]
    if loads and min(loads) < _LOADED:
        words = f"a card had work for only {min(loads):.0f}% of training"
        yield LOW_UTILISATION, f"{words}: the host, the loader or other cards made it wait"
    beside = _share(cards.values(), lambda sample: sample.values.get("neighbours", 0) > 0)
    if beside:
        yield "neighbours", f"other processes were on a card in {beside:.0%} of its samples"
    for kind in ("ecc_corrected", "ecc_uncorrected"):
        new = sum(_grown(rows, kind) for rows in cards.values())
        if new:
            yield "ECC errors", f"{new:.0f} {kind.removeprefix('ecc_')} during the run"
    waited = waiting(result)
    if waited > LOADER_BOUND:
        yield "loader-bound", f"{waited:.0%} of training was spent on getting batches"


def _is_lowered(sample: Sample) -> bool:
    return any(word in sample.throttle for word in _LOWERED)


def waiting(result: Mapping[str, Any]) -> float:
    """BatchSharding of the training time that was spent on getting batches; 0 where it is not known."""
    seconds = result.get("train_seconds")
    return float(result["data_wait_seconds"] / seconds) if seconds else 0.0


def rows(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lines of the table that ends a run; nothing is said of what was not measured."""
    found, lines = status.get("telemetry") or {}, []
    for prefix, title in (("", "energy"), ("host_", "host energy")):
        if joules := found.get(f"{prefix}energy_joules"):
            watts = f"{joules / found['seconds']:,.0f} W on average" if found["seconds"] else ""
            lines.append((title, f"{format_energy(joules)}, {watts} ({found[f'{prefix}energy_source']})"))
    if rate := found.get("samples_per_joule"):
        lines.append(("", f"{rate:,.4g} samples/J"))
    if cost := status.get("cost"):
        lines.append(("cost", f"${cost['dollars']:,.3g} at ${cost['dollars_an_hour']:,.3g} an hour"))
    lines += [(name, f"[yellow]{words}[/yellow]") for name, words in (status.get("flags") or {}).items()]
    return lines

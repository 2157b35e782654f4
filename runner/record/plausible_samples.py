"""Leave out of the energy what physics excludes: samples out of order, impossible power and misread counters.

A counter is judged from one change to the next, so that one which is read before it advances loses nothing. Where it
runs backwards, faster than the device can draw power, or not at all, the integral of the power takes its place.
"""

import bisect
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence

from .telemetry_samples import TelemetrySample, total_seconds, with_value

_Span = tuple[TelemetrySample, TelemetrySample]

_CAP_MARGIN = 1.5  # of the power cap, which a GPU exceeds for milliseconds
_SPIKE = 3.0  # times the 98th percentile of the power; for devices that report no cap
_MIN_SAMPLES = 20  # for such a percentile
_MAX_RATE = 10.0  # times the median rate of a counter; for devices that report no power
_MIN_SHARE = 0.05  # of the integral of the power; an idle GPU draws more of what it draws under load
_MAX_BRIDGED = 0.05  # of a counter's time without a plausible value, if there is no power either


def drop_implausible(rows: Sequence[TelemetrySample]) -> tuple[list[TelemetrySample], int]:
    """Return the samples of a device in order of time, without impossible power; and how many samples that changed.

    Where times fall, the fewest samples are left out whose absence puts the others in order.
    """
    kept = _in_order(rows)
    limit = _max_watts(kept)
    dropped = len(rows) - len(kept)
    for place, row in enumerate(kept):
        if not 0 <= row.values.get("power_watts", 0.0) <= limit:
            values = {name: value for name, value in row.values.items() if name != "power_watts"}
            kept[place] = row._replace(values=values)
            dropped += 1
    return kept, dropped


def _in_order(rows: Sequence[TelemetrySample]) -> list[TelemetrySample]:
    """Return the longest subsequence whose times do not fall, by patience sorting."""
    times: list[float] = []  # the earliest time at which a subsequence of each length ends
    ends: list[int] = []  # the row there
    previous: list[int] = []  # for each row, that before it in its subsequence
    for place, row in enumerate(rows):
        length = bisect.bisect_right(times, row.time)
        previous.append(ends[length - 1] if length else -1)
        times[length : length + 1] = [row.time]
        ends[length : length + 1] = [place]
    chosen, place = [], ends[-1] if ends else -1
    while place >= 0:
        chosen.append(rows[place])
        place = previous[place]
    return chosen[::-1]


def _max_watts(rows: Sequence[TelemetrySample]) -> float:
    """Return the power that a device cannot exceed: by its cap, else by its usual power."""
    caps = [cap for row in rows if (cap := row.values.get("power_cap_watts", 0.0)) > 0]
    if caps:
        return _CAP_MARGIN * statistics.median(caps)
    watts = sorted(row.values["power_watts"] for row in with_value(rows, "power_watts"))
    return _SPIKE * watts[int(0.98 * (len(watts) - 1))] if len(watts) >= _MIN_SAMPLES else math.inf


def integrate_power(before: TelemetrySample, after: TelemetrySample) -> float:
    """Integrate by trapezoids; power that is a mean over the time before a sample counts for that whole span."""
    watts = after.values["power_watts"]
    if not after.values.get("power_averaging_seconds"):
        watts = (before.values["power_watts"] + watts) / 2
    return watts * (after.time - before.time)


def counter_joules(spans: Sequence[_Span], counter: str) -> tuple[float | None, int]:
    """Return the joules that a counter shows over `spans`, and in how many places they were not plausible.

    None if the counter is implausible for more than 5% of the time and the device reports no power.
    """
    if not spans:
        return None, 0
    limit = _max_counter_watts(spans, counter)
    joules, seconds, missing, replaced = 0.0, 0.0, 0.0, 0
    for group in _until_changed(spans, counter):
        duration = total_seconds(group)
        increase = group[-1][1].values[counter] - group[0][0].values[counter]
        has_power = all("power_watts" in sample.values for span in group for sample in span)
        expected = sum(itertools.starmap(integrate_power, group)) if has_power else None
        if 0 <= increase <= limit * duration and increase >= _MIN_SHARE * (expected or 0.0):
            joules, seconds = joules + increase, seconds + duration
            continue
        replaced += 1
        if expected is None:
            missing += duration
        else:
            joules, seconds = joules + expected, seconds + duration
    if missing > _MAX_BRIDGED * (seconds + missing):
        return None, replaced
    return joules * (seconds + missing) / seconds, replaced


def _until_changed(spans: Iterable[_Span], counter: str) -> Iterator[list[_Span]]:
    """Yield runs of adjacent spans, each to the next change of the counter."""
    group: list[_Span] = []
    for span in spans:
        if group and group[-1][1] is not span[0]:
            yield group
            group = []
        group.append(span)
        if span[0].values[counter] != span[1].values[counter]:
            yield group
            group = []
    if group:
        yield group


def _max_counter_watts(spans: Sequence[_Span], counter: str) -> float:
    """Return the rate in watts that the counter of a device cannot exceed."""
    samples = [spans[0][0], *(after for _, after in spans)]
    if any("power_watts" in sample.values or "power_cap_watts" in sample.values for sample in samples):
        return _max_watts(samples)
    rates = [(after.values[counter] - before.values[counter]) / (after.time - before.time) for before, after in spans]
    rising = [rate for rate in rates if rate > 0]
    return _MAX_RATE * statistics.median(rising) if rising else 0.0

"""The ratio of the times of two run groups, with all that varies in it: runs, seeds, machines, successive runs."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..parse.runs import Run
from . import run_order, samples
from .groups import RunGroup
from .intervals import LogEstimate, Sample, add_variance, beside, log_mean, log_ratio, serial_error

MIN_PAIRS = 5
"""Equal seeds from which their pairs decide: fewer cost more degrees of freedom than equal luck is worth."""


def decides_by_pairs(baseline: RunGroup, other: RunGroup) -> bool:
    """Return whether both sides are of timetrial and ran the same seeds, at least `MIN_PAIRS`: then their pairs decide.

    The rule looks at the seeds alone, never at the times: it is fixed before they are known. In other logs, equal seeds
    need not make runs alike.
    """
    if any(run.run_record is None for group in (baseline, other) for run in group.converged_runs):
        return False
    seeds = [{run.seed for run in group.converged_runs} for group in (baseline, other)]
    return seeds[0] == seeds[1] and None not in seeds[0] and len(seeds[0]) >= MIN_PAIRS


def pair_times(baseline: RunGroup, other: RunGroup) -> tuple[Sample, Sample]:
    """Return the time-to-train of the seeds that both sides ran, in the same order: means over the runs of a seed."""
    sides: list[dict[int, list[Run]]] = [{}, {}]
    for group, by_seed in zip((baseline, other), sides, strict=True):
        for run in group.converged_runs:
            if run.seed is not None:
                by_seed.setdefault(run.seed, []).append(run)
    shared = [seed for seed in sides[0] if seed in sides[1]]
    times = [samples.sample([of_side[seed] for seed in shared], lambda run: run.duration) for of_side in sides]
    floors = [sample.floor for sample in _time_samples(baseline, other)]
    return Sample(times[0].values, floors[0]), Sample(times[1].values, floors[1])


def _time_samples(baseline: RunGroup, other: RunGroup) -> tuple[Sample, Sample]:
    """Return the time-to-train of both sides, which varies at least by the grid of the epochs."""
    epochs, times = (baseline.epoch_sample, other.epoch_sample), (baseline.time_sample, other.time_sample)
    floors = beside(*epochs).floor, beside(*reversed(epochs)).floor
    first, second = (Sample(time.values, max(time.floor, floor)) for time, floor in zip(times, floors, strict=True))
    return first, second


def paired_ratio(baseline: Sample, other: Sample) -> LogEstimate:
    """Return the ratio of two samples whose values belong together one by one (Student 1908, on logs)."""
    ratios = tuple(np.exp(baseline.logs - other.logs).tolist())
    return log_mean(Sample(ratios, math.hypot(baseline.floor, other.floor)))


def time_ratio(baseline: RunGroup, other: RunGroup, *, by_machine: bool) -> LogEstimate:
    """Return the ratio of the times-to-train, baseline over other: that of the pairs of equal seeds if they decide."""
    unpaired = log_ratio(*_time_samples(baseline, other))
    over_runs = paired_ratio(*pair_times(baseline, other)) if decides_by_pairs(baseline, other) else unpaired
    return _vary(over_runs, unpaired, baseline, other, _duration, by_machine=by_machine)


def unpaired_time_ratio(baseline: RunGroup, other: RunGroup, *, by_machine: bool) -> LogEstimate:
    """Return the ratio of the times-to-train, whatever the seeds."""
    unpaired = log_ratio(*_time_samples(baseline, other))
    return _vary(unpaired, unpaired, baseline, other, _duration, by_machine=by_machine)


def paired_time_ratio(baseline: RunGroup, other: RunGroup) -> LogEstimate:
    """Return the ratio of the times-to-train over the seeds that both sides ran, as runs on one machine each."""
    paired = paired_ratio(*pair_times(baseline, other))
    return _vary(paired, paired, baseline, other, _duration, by_machine=False)


def pace_ratio(
    baseline: RunGroup, other: RunGroup, pace_of: Callable[[Run], float | None], *, by_machine: bool
) -> LogEstimate:
    """Return the ratio of the times per epoch that `pace_of` returns for a run."""
    over_runs = log_ratio(*(group.sample(pace_of, group.clock_floor) for group in (baseline, other)))
    return _vary(over_runs, over_runs, baseline, other, pace_of, by_machine=by_machine)


def _vary(
    over_runs: LogEstimate,
    unpaired: LogEstimate,
    baseline: RunGroup,
    other: RunGroup,
    value_of: Callable[[Run], float | None],
    *,
    by_machine: bool,
) -> LogEstimate:
    """Return a ratio over runs with what machines and successive runs add to its error.

    `unpaired` is the ratio that does not pair equal seeds, of the value that `value_of` returns for a run. With
    `by_machine` the machines are the observations of each side. If runs of one seed are on several of them, the spread
    over machines leaves out the luck of the seeds, whose variance is added: this counts the variance of single runs
    twice and errs on the safe side. Otherwise the error is at least that over runs, since few machines can agree by
    chance. Without `by_machine`, successive runs of a machine may correlate, unless the sides ran in turn.
    """
    sides = (baseline, other)
    if not by_machine:
        if run_order.is_interleaved(baseline.converged_runs, other.converged_runs):
            return over_runs
        serial = (serial_error(_paces_in_order(group)) for group in sides)
        return replace(over_runs, error=math.hypot(over_runs.error, *serial))
    machines = [samples.runs_by_machine(group.converged_runs) for group in sides]
    # A machine's mean is less noisy than a run, so the floor of a run does not apply to it.
    over_machines = log_ratio(*(samples.sample(of_side, value_of) for of_side in machines))
    if any(samples.shares_seeds(of_side) for of_side in machines):
        over_machines = add_variance(over_machines, over_runs)
    else:
        over_machines = replace(over_machines, error=max(over_machines.error, unpaired.error))
    return replace(over_machines, n=over_runs.n)


def _duration(run: Run) -> float | None:
    return run.duration


def _paces_in_order(group: RunGroup) -> list[float]:
    """Return the paces of the runs of a side on one machine; the epochs of runs with other seeds do not correlate."""
    runs = group.converged_runs
    is_sequence = len(samples.runs_by_machine(runs)) == 1
    return [run.pace for run in run_order.runs_in_order(runs) if run.pace] if is_sequence else []

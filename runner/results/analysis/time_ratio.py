"""The ratio of the times of two run groups, with all that varies in it: runs, seeds, machines, successive runs."""

import math
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
    """Return the ratio of the times-to-train, baseline over other.

    With `by_machine` the machines are the observations of each side. If runs of one seed are on several of them, the
    spread over machines leaves out the luck of the seeds, whose variance is added: this counts the variance of single
    runs twice and errs on the safe side. Without, successive runs of a machine may correlate, unless the sides ran
    in turn.
    """
    sides = (baseline, other)
    over_seeds = (
        paired_ratio(*pair_times(baseline, other))
        if decides_by_pairs(baseline, other)
        else log_ratio(*_time_samples(baseline, other))
    )
    if not by_machine:
        if run_order.is_interleaved(baseline.converged_runs, other.converged_runs):
            return over_seeds
        serial = (serial_error(_paces_in_order(group)) for group in sides)
        return replace(over_seeds, error=math.hypot(over_seeds.error, *serial))
    machines = [samples.runs_by_machine(group.converged_runs) for group in sides]
    # A machine's mean is less noisy than a run, so the floor of a run does not apply to it.
    over_machines = log_ratio(*(samples.sample(of_side, lambda run: run.duration) for of_side in machines))
    if any(samples.shares_seeds(of_side) for of_side in machines):
        over_machines = add_variance(over_machines, over_seeds)
    return replace(over_machines, n=over_seeds.n)


def _paces_in_order(group: RunGroup) -> list[float]:
    """Return the paces of the runs of a side on one machine; the epochs of runs with other seeds do not correlate."""
    runs = group.converged_runs
    is_sequence = len(samples.runs_by_machine(runs)) == 1
    return [run.pace for run in run_order.runs_in_order(runs) if run.pace] if is_sequence else []

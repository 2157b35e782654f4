"""What counts as one observation: repeats of a seed, machines, and random streams that a study holds fixed."""

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from ..parse.runs import Run
from .intervals import Sample


def independent_runs(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs in clusters: repeats of one seed are not independent and share a cluster.

    Runs of timetrial with equal seeds repeat each other. Of other logs only copies do, because their seeds need not
    make a run repeatable.
    """
    clusters: dict[Hashable, list[Run]] = {}
    for index, run in enumerate(runs):
        clusters.setdefault(_repeat_key(run, index), []).append(run)
    return list(clusters.values())


def _repeat_key(run: Run, index: int) -> Hashable:
    if run.run_record is not None:
        return run.seed if run.seed is not None else index, *sorted(run.streams.items())
    if not run.evaluations:
        return index
    return run.duration, *((entry.seconds, entry.progress, *entry.quality.items()) for entry in run.evaluations)


def runs_by_machine(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs in clusters by machine; one cluster if a run does not state its GPUs.

    A host name alone does not tell machines apart: a container may have a new one in each run, and virtual machines may
    all have the same. Runs share a machine if they share a GPU or a boot of the host, whose id is random; its name
    stands for a boot that is not known.
    """
    if not all(run.gpu_ids for run in runs):
        return [list(runs)]
    machines: list[tuple[set[str], list[Run]]] = []
    for run in runs:
        host = run.boot or run.host
        names, members = {*run.gpu_ids, *([host] if host else [])}, [run]
        for machine in [machine for machine in machines if machine[0] & names]:
            machines.remove(machine)
            names |= machine[0]
            members = machine[1] + members
        machines.append((names, members))
    return [members for _, members in machines]


def is_one_machine(runs: Sequence[Run]) -> bool:
    """Return whether all runs are known to be of one machine, by its boot or host name, or by its GPUs."""
    hosts = {run.boot or run.host for run in runs}
    is_same_host = len(hosts) == 1 and all(hosts)
    return is_same_host or (all(run.gpu_ids for run in runs) and len(runs_by_machine(runs)) == 1)


def shares_seeds(machines: Sequence[Sequence[Run]]) -> bool:
    """Return whether runs of the same seed are on several machines."""
    runs = [run for machine in machines for run in machine]
    return len(independent_runs(runs)) < sum(len(independent_runs(machine)) for machine in machines)


def sample(clusters: Sequence[Sequence[Run]], value_of: Callable[[Run], float | None], floor: float = 0.0) -> Sample:
    """Return one value per cluster, the geometric mean of its runs; runs without a positive value are left out."""
    values = []
    for cluster in clusters:
        known = [value for run in cluster if (value := value_of(run)) and value > 0]
        if len(known) == 1:
            values.append(float(known[0]))
        elif known:
            values.append(float(np.exp(np.mean(np.log(known)))))
    return Sample(tuple(values), floor)


def fixed_streams(runs: Sequence[Run]) -> tuple[list[str], list[str]]:
    """Return the random streams whose seed is the same in all runs, and those whose seed varies."""
    names = list(dict.fromkeys(name for run in runs for name in run.streams))
    varied = [name for name in names if len({run.streams.get(name) for run in runs}) > 1]
    return [name for name in names if name not in varied], varied


def describe_dependence(title: str, runs: Sequence[Run]) -> list[str]:
    """Return a sentence for each reason why the spread of `runs` is not that of independent runs."""
    reasons = []
    num_independent = len(independent_runs(runs))
    if num_independent < len(runs):
        reasons.append(
            f"{title}: {len(runs)} runs repeat each other's seeds and count as {num_independent} independent "
            f"{'run' if num_independent == 1 else 'runs'}"
        )
    fixed, varied = fixed_streams(runs)
    if fixed and varied:
        names = [" and ".join(name.replace("_", " ") for name in streams) for streams in (varied, fixed)]
        reasons.append(f"{title}: only {names[0]} varies, so the interval leaves out the luck of {names[1]}")
    seeds = [run.seed for run in runs if run.seed is not None and run.run_record is None]
    if len(set(seeds)) < len(seeds) and num_independent == len(runs):
        reasons.append(f"{title}: runs share a seed and may not be independent")
    return reasons


def variance_factors(runs: Sequence[Run]) -> dict[str, list[Hashable]]:
    """Return the level of each run in every factor that may explain the spread of a workload's times.

    The seed counts as a whole unless a study varies single streams: then each stream that varies is a factor.
    """
    machine_of = {id(run): number for number, machine in enumerate(runs_by_machine(runs)) for run in machine}
    factors: dict[str, list[Hashable]] = {
        "GPU": [run.accelerator for run in runs],
        "number of GPUs": [run.num_accelerators for run in runs],
        "machine": [machine_of[id(run)] for run in runs],
        "precision": [run.precision for run in runs],
        "batch size": [run.global_batch_size for run in runs],
    }
    names = {name for run in runs for name in run.streams}
    patterns = {tuple(run.streams.get(name) for name in sorted(names)) for run in runs}
    levels = {name: {run.streams.get(name) for run in runs} for name in sorted(names)}
    if any(len(seeds) < len(patterns) for seeds in levels.values()):
        factors |= {name.replace("_", " "): [run.streams.get(name) for run in runs] for name in levels}
    elif all(run.seed is not None for run in runs):
        factors["seed"] = [run.seed for run in runs]
    return factors

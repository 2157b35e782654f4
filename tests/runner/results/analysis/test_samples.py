"""What counts as one observation, on runs built by hand."""

from pathlib import Path

from timetrial.runner.record.run_record import RunRecord
from timetrial.runner.results.analysis import samples
from timetrial.runner.results.parse.evaluations import Evaluation
from timetrial.runner.results.parse.runs import Run


def make_run(duration, seed=None, host="", gpus="", own=True, **streams):
    run = Run(Path("result_0.txt"), Path("result_0.txt"), success=True, duration=duration, observed=duration)
    run.seed, run.host, run.gpu_ids, run.streams = seed, host, frozenset(gpus), streams
    run.run_record = RunRecord() if own else None
    run.evaluations = [Evaluation(duration, 4, {"value": 0.9})]
    return run


def test_equal_seeds_of_own_runs_count_once():
    runs = [make_run(10.0, 1), make_run(12.1, 1), make_run(11.0, 2)]
    assert [len(cluster) for cluster in samples.independent_runs(runs)] == [2, 1]
    sample = samples.sample(samples.independent_runs(runs), lambda run: run.duration)
    assert [round(value, 6) for value in sample.values] == [11.0, 11.0]  # sqrt(10 * 12.1)
    assert (
        "3 runs repeat each other's seeds and count as 2 independent runs" in samples.describe_dependence("x", runs)[0]
    )


def test_other_logs_are_repeats_only_if_they_are_copies():
    runs = [make_run(10.0, 1, own=False), make_run(10.0, 2, own=False), make_run(10.5, 1, own=False)]
    assert [len(cluster) for cluster in samples.independent_runs(runs)] == [2, 1]
    different = [make_run(10.0, 1, own=False), make_run(10.5, 1, own=False)]
    assert len(samples.independent_runs(different)) == 2
    assert samples.describe_dependence("x", different) == ["x: runs share a seed and may not be independent"]


def test_fixed_stream_is_named():
    runs = [make_run(10.0 + n, 7, initialization=1, data_order=n) for n in range(3)]
    assert len(samples.independent_runs(runs)) == 3
    (reason,) = samples.describe_dependence("x", runs)
    assert reason == "x: only data order varies, so the interval leaves out the luck of initialization"
    assert samples.describe_dependence("x", [make_run(10.0, n, initialization=n, data_order=n) for n in range(3)]) == []


def test_streams_are_factors_where_a_study_varies_them():
    crossed = [make_run(10.0, 7, initialization=a, data_order=b) for a in (1, 2) for b in (3, 4)]
    factors = samples.variance_factors(crossed)
    assert factors["initialization"] == [1, 1, 2, 2]
    assert factors["data order"] == [3, 4, 3, 4]
    assert "seed" not in factors
    together = [make_run(10.0, n, initialization=n, data_order=n) for n in range(3)]
    assert samples.variance_factors(together)["seed"] == [0, 1, 2]


def count_machines(*runs):
    """Return the number of runs of each machine, of runs that are given by host name and names of GPUs."""
    made = [make_run(1.0, host=host, gpus=gpus) for host, gpus in runs]
    return sorted(len(machine) for machine in samples.runs_by_machine(made))


def test_machines_are_told_apart_by_their_gpus():
    assert count_machines(("a", "12"), ("b", "34"), ("a", "12")) == [1, 2]
    assert count_machines(("pod-1", "1"), ("pod-2", "1"), ("pod-3", "1")) == [3]
    assert count_machines(("a", "1"), ("a", "2"), ("b", "3")) == [1, 2]  # two GPUs of one host
    assert count_machines(("", "1"), ("", "2")) == [1, 1]
    assert count_machines(("a", "1"), ("b", "2"), ("c", "12")) == [3]


def test_machines_of_one_name_are_told_apart_by_their_boot():
    runs = [make_run(1.0, host="vm", gpus=gpus) for gpus in "1234"]
    for run, boot in zip(runs, "aabb", strict=True):
        run.boot = boot
    assert sorted(map(len, samples.runs_by_machine(runs))) == [2, 2]
    assert [samples.is_one_machine(part) for part in (runs[:2], runs)] == [True, False]
    runs[2].gpu_ids = runs[0].gpu_ids  # the same machine, started again
    assert samples.is_one_machine(runs)


def test_machines_with_unknown_gpus_count_as_one():
    assert count_machines(("pod-1", ""), ("pod-2", ""), ("pod-3", "")) == [3]
    assert count_machines(("a", "1"), ("b", "")) == [2]


def test_seeds_on_several_machines_are_shared():
    machines = [[make_run(1.0, seed) for seed in seeds] for seeds in ((1, 2), (2, 3))]
    assert samples.shares_seeds(machines)
    assert not samples.shares_seeds([machines[0], [make_run(1.0, 3), make_run(1.0, 4)]])
    assert not samples.shares_seeds([[make_run(1.0, 1), make_run(1.1, 1)], [make_run(1.0, 2)]])

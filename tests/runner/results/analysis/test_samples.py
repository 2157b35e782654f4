"""What counts as one observation, on runs built by hand."""

from pathlib import Path

from timetrial.runner.record.run_record import RunRecord
from timetrial.runner.results.analysis import samples
from timetrial.runner.results.parse.evaluations import Evaluation
from timetrial.runner.results.parse.runs import Run


def make_run(duration, seed=None, host="", own=True, **streams):
    run = Run(Path("result_0.txt"), Path("result_0.txt"), success=True, duration=duration, observed=duration)
    run.seed, run.host, run.streams = seed, host, streams
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


def test_hosts_need_names():
    assert [len(of_host) for of_host in samples.runs_by_host([make_run(1.0, host=name) for name in "aba"])] == [2, 1]
    assert samples.runs_by_host([make_run(1.0, host="a"), make_run(1.0)]) == []

"""One number a GPU, on published trees of several workloads."""

import pytest

from timetrial.runner.results.analysis import scores
from timetrial.runner.results.analysis.comparison import compare_all
from timetrial.runner.results.analysis.groups import group_runs
from timetrial.runner.results.parse import sources


@pytest.fixture
def groups(published):
    """Two systems: the second is 4 times faster on gnmt, as fast on transformer, and never converges on ncf."""
    for benchmark, seconds in (("gnmt", 15.0), ("transformer", 60.0), ("ncf", 60.0)):
        published("a", [30] * 3, 60.0, benchmark=benchmark)
        fails = benchmark == "ncf"
        tree = published("b", [] if fails else [30] * 3, seconds, failed=3 * fails, benchmark=benchmark, gpus=16)
    return group_runs(sources.read_runs([tree]))


def test_speed_is_the_geometric_mean_over_workloads(groups):
    by_system = {system: [group for group in groups if group.system == system] for system in "ab"}
    pairs = [
        (first, second) for first in by_system["a"] for second in by_system["b"] if first.benchmark == second.benchmark
    ]
    (score,) = scores.score_gpus(compare_all(pairs))
    assert score.speed.estimate == pytest.approx(2.0, rel=1e-2)  # sqrt(4 * 1)
    assert score.speed.low > 1.9
    assert score.speed_elsewhere.low < 0.1  # two workloads say little about a third
    assert sorted(score.workloads) == ["gnmt v0.7", "transformer v0.7"]
    assert score.left_out == ["ncf v0.7"]
    assert (score.baseline, score.other) == ("8 x Tesla V100-SXM2-16GB", "16 x Tesla V100-SXM2-16GB")


def test_a_miss_is_infinitely_slow(groups):
    first, second = scores.profile_performance(groups)
    # The first is as fast as the second on transformer and alone on ncf, and 4 times slower on gnmt.
    assert first.shares[:4] == pytest.approx((2 / 3,) * 4)
    assert second.shares == pytest.approx((2 / 3,) * 5)


def test_systems_with_equal_gpus_are_told_apart(published):
    """Two systems of eight V100, one twice as fast: the number is that of each, whatever their order."""
    for benchmark in ("gnmt", "transformer"):
        published("a", [30] * 3, 60.0, benchmark=benchmark)
        published("slow", [30] * 3, 60.0, benchmark=benchmark)
        tree = published("fast", [30] * 3, 30.0, benchmark=benchmark)
    groups = group_runs(sources.read_runs([tree]))
    pairs = [
        (first, second)
        for first in groups
        for second in groups
        if first.system == "a" and second.system != "a" and first.benchmark == second.benchmark
    ]
    for order in (pairs, pairs[::-1]):
        found = {score.other: score.speed.estimate for score in scores.score_gpus(compare_all(order))}
        assert found == {
            "Maker fast, 8 x Tesla V100-SXM2-16GB": pytest.approx(2.0, rel=1e-2),
            "Maker slow, 8 x Tesla V100-SXM2-16GB": pytest.approx(1.0, rel=1e-2),
        }

"""Published results of MLPerf as a baseline."""

from types import SimpleNamespace

import pytest

from timetrial.runner.core.errors import ConfigurationError
from timetrial.runner.record import published_results

RECORD = {
    "config": {
        "recipe": {"scale": "reference", "global_batch_size": 3264},
        "data": {"loader": "torch"},
        "target": {},
        "workload": {"benchmark": "resnet"},
        "round": {"name": "v07"},
        "gpus": 4,
    },
    "training": SimpleNamespace(reached=True, seconds=1800.0),
}


def compare(**changes):
    config = RECORD["config"] | changes
    return published_results.compare_with_published(SimpleNamespace(config=config, training=RECORD["training"]))


def test_entries_are_plausible_and_each_is_there_once():
    entries = published_results.read_all()
    keys = [(entry.round, entry.submitter.lower(), entry.system.lower(), entry.benchmark) for entry in entries]
    assert len(set(keys)) == len(keys) > 1300
    for entry in entries:
        assert entry.converged <= entry.runs
        assert entry.minutes is None or entry.minutes > 0
        assert entry.source in ("logs", "table")
    assert {entry.round for entry in entries} >= {"v0.5", "v0.7", "v3.1", "v5.1"}


def test_nearest_entry_has_the_target_and_as_many_accelerators():
    entry = published_results.nearest("resnet", "v07", 4)
    assert entry.accelerators == 4
    same = [other for other in published_results.find_benchmark("resnet") if other.accelerators == 4]
    assert entry.minutes == min(other.minutes for other in same if other.minutes and other.division == "closed")
    assert published_results.nearest("ncf", "v05", 1).round == "v0.5"
    assert published_results.nearest("ncf", "v07", 1) is None  # it was not part of that round


def test_reference_run_has_one_line():
    (line,) = compare()
    assert line.startswith("25.58 min on 4 x NVIDIA H100-SXM5-80GB, v4.0, Fujitsu, at batch 3,264; this run: 30 min")
    assert line.endswith("on 4 GPUs at batch 3,264")


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": {"scale": "mini", "global_batch_size": 32}},
        {"data": {"loader": "synthetic"}},
        {"target": {"accuracy": 0.5}},
        {"workload": {"benchmark": "cifar10"}},
    ],
)
def test_run_of_another_task_has_none(changes):
    assert compare(**changes) == []


def test_unknown_benchmark_is_refused_with_a_guess():
    with pytest.raises(ConfigurationError, match="has the benchmark resnt: did you mean resnet"):
        published_results.find_benchmark("resnt")

"""Names of the sides of a comparison: what differs, and never twice the same."""

from dataclasses import replace
from pathlib import Path

import pytest

from timetrial.runner.results.analysis.groups import group_runs
from timetrial.runner.results.analysis.throughput_groups import ThroughputGroup
from timetrial.runner.results.parse import sources
from timetrial.runner.results.report.side_labels import label_run_groups, label_throughput_groups

PATHS = [Path("runs/one"), Path("runs/two")]


@pytest.fixture
def group(published):
    (found,) = group_runs(sources.read_runs([published("a", [4, 5], 60.0)]))
    return found


def labels(paths, *groups):
    return [side[0].label for side in label_run_groups(paths, [[group] for group in groups])]


def changed(group, **facts):
    runs = [replace(run, **facts) for run in group.runs]
    return replace(group, runs=runs)


def test_first_property_that_differs_is_enough(group):
    other = changed(group, accelerator="NVIDIA A100-SXM4-40GB", precision="bf16")
    assert labels(PATHS, group, other) == ["8 × V100 16GB", "8 × A100 40GB"]
    assert labels(PATHS, changed(group, precision="fp32"), changed(group, precision="bf16")) == ["fp32", "bf16"]
    assert labels(PATHS, group, replace(group, system="b")) == ["Maker a", "Maker b"]
    assert labels(PATHS, group, replace(group, runs=list(group.runs))) == ["runs/one", "runs/two"]


def test_properties_are_added_until_all_differ(group):
    sides = [changed(group, precision="fp32"), changed(group, precision="bf16"), changed(group, precision="bf16")]
    found = labels([*PATHS, Path("runs/three")], *sides)
    assert found == ["fp32, runs/one", "bf16, runs/two", "bf16, runs/three"]


def test_title_shows_the_label_and_the_benchmark(group):
    (first,), _ = label_run_groups(PATHS, [[group], [changed(group, precision="bf16")]])
    assert first.title.endswith("(gnmt v0.7)")
    assert group.label == ""  # the original is unchanged


def test_equal_throughput_groups_are_named_by_folder():
    config = {"recipe.training.network": "net", "gpus": 1, "precision.name": "fp32", "recipe.global_batch_size": 8}
    groups = [ThroughputGroup("h200", config), ThroughputGroup("h200", config | {"system": "b"})]
    (first,), (second,) = label_throughput_groups(PATHS, [[groups[0]], [groups[1]]])
    assert (first.title.endswith("runs/one"), second.title.endswith("runs/two")) == (True, True)
    (only,), _ = label_throughput_groups(PATHS, [[groups[0]], [ThroughputGroup("h100", config)]])
    assert only.title == "net, 1 x h200, fp32, batch 8 per GPU"

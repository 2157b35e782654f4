"""Names of devices as published systems state them, and the baseline of each benchmark."""

import pytest

from timetrial.runner.results.analysis.groups import group_runs
from timetrial.runner.results.parse import sources
from timetrial.runner.results.report.systems import gpu_name, line_up


@pytest.mark.parametrize(
    ("accelerator", "name"),
    [
        ("NVIDIA Blackwell GPU (B200-SXM-180GB)", "B200 180GB"),
        ("NVIDIA Blackwell GPU (GB200)", "GB200"),
        ("NVIDIA Blackwell Ultra GPU (GB300)", "GB300"),
        ("NVIDIA Hopper GPU (GH200)", "GH200"),
        ("NVIDIA A100-SXM4-80GB(400W)", "A100 80GB"),
        ("H100 NVL Tensor Core GPU (PCIe)", "H100 NVL Tensor Core GPU"),
        ("AMD Instinct MI300X 192GB HBM3", "MI300X 192GB"),
        ("Tesla V100-SXM2-16GB", "V100 16GB"),
        ("tpu-v3", "TPU v3"),
        ("N/A", ""),
    ],
)
def test_devices_are_named_by_their_chip(accelerator, name):
    assert gpu_name(accelerator) == name


def test_a_benchmark_without_the_baseline_has_its_own(published):
    """The baseline runs two benchmarks with a rival; the third is compared with the slowest of those that ran it."""
    for system, benchmark, seconds in (
        ("a", "gnmt", 60.0),
        ("b", "gnmt", 50.0),
        ("a", "transformer", 60.0),
        ("b", "transformer", 50.0),
        ("c", "ncf", 50.0),
        ("d", "ncf", 60.0),
    ):
        tree = published(system, [30] * 3, seconds, benchmark=benchmark, gpus={"a": 1, "b": 2, "c": 4, "d": 8}[system])
    (lineup,) = line_up(group_runs(sources.read_runs([tree])))
    pairs = [(first.system, second.system, first.benchmark) for first, second in lineup.pairs]
    assert sorted(pairs) == [("a", "b", "gnmt"), ("a", "b", "transformer"), ("d", "c", "ncf")]
    assert lineup.baseline == lineup.baselines["gnmt v0.7"]
    assert lineup.baselines["ncf v0.7"].devices == "8 × V100 16GB"


def test_a_system_has_one_row_though_it_alone_ran_a_benchmark(published):
    for system, benchmark in (("a", "gnmt"), ("b", "gnmt"), ("a", "ncf")):
        tree = published(system, [30] * 3, 60.0, benchmark=benchmark, gpus=8)
    (lineup,) = line_up(group_runs(sources.read_runs([tree])))
    assert len(lineup.systems) == 2
    assert [group.system for (system, _), group in lineup.groups.items() if system == lineup.baseline] == ["a", "a"]

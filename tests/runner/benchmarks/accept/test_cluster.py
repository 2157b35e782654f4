"""Nodes of a cluster from their files: ranked, and the slow ones named."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from timetrial.runner.benchmarks.accept import cluster
from timetrial.runner.cli.main import run_command
from timetrial.runner.core.errors import DataError
from timetrial.runner.launch.rank_pool import RankPool

SPEEDS = 1 + 0.004 * np.random.default_rng(1).standard_normal(12)


@pytest.fixture
def folder(write_result, tmp_path):
    for number, speed in enumerate(SPEEDS):
        write_result(f"node{number:02}", speed)
    return tmp_path / "results"


def rank(folder):
    return cluster.rank_nodes(*cluster.read_nodes([folder]))


def test_equal_nodes_have_no_outlier_and_are_ranked_by_speed(folder):
    ranking = rank(folder)
    assert ranking.outliers == ranking.suspects == ()
    assert [node.name for node, _ in ranking.speeds] == [f"node{number:02}" for number in np.argsort(-SPEEDS)]
    speeds = np.sort(SPEEDS)[::-1] / np.median(np.repeat(SPEEDS, 2))
    assert [speed for _, speed in ranking.speeds] == pytest.approx(list(speeds))


def test_a_slow_node_is_the_last_and_its_devices_are_named_if_they_are_slow_twice(folder, write_result):
    write_result("slow", 0.9)
    devices = {("slow", "GPU 0", "memory copy"), ("slow", "GPU 1", "memory copy")}
    ranking = rank(folder)
    assert ranking.speeds[-1][0].name == "slow"
    assert {(each.node, each.device, each.figure) for each in ranking.suspects} == devices
    assert ranking.outliers == ()
    write_result("slow", 0.88, id="20260102-1")
    ranking = rank(folder)
    assert {(each.node, each.device, each.figure) for each in ranking.outliers} == devices
    assert {each.value for each in ranking.outliers} == {2900.0 * 0.88}
    assert ranking.suspects == ()


@pytest.mark.parametrize(("first", "second"), [(0.9, 1.0), (1.0, 0.9)])
def test_a_node_that_is_slow_once_of_twice_is_not_named(folder, write_result, first, second):
    write_result("busy", first)
    write_result("busy", second, id="20260102-1")
    ranking = rank(folder)
    assert ranking.outliers == ranking.suspects == ()


def test_of_several_results_the_last_two_count(folder, write_result):
    for day, speed in ((1, 1.0), (2, 0.9), (3, 0.9)):
        write_result("aging", speed, id=f"2026010{day}-1")
    assert {each.node for each in rank(folder).outliers} == {"aging"}


def test_a_node_that_is_slower_by_a_percent_is_no_outlier_however_equal_the_others_are(write_result, tmp_path):
    for number in range(20):
        write_result(f"node{number}", 1 + 1e-5 * number)
    write_result("last", 0.99)
    assert rank(tmp_path / "results").suspects == ()


def test_other_models_are_not_compared(folder, write_result):
    write_result("other", 0.5, gpu="NVIDIA A100")
    assert rank(folder).suspects == ()


@pytest.mark.parametrize(
    "changes",
    [{"schema": 2}, {"figures": "none"}, {"figures": [{"name": "x"}]}, {"system": {}}, {"result": "fine"}, {"node": 1}],
)
def test_a_damaged_file_is_named_and_left_out(folder, write_result, changes):
    write_result("damaged", 1.0, **changes)
    ranking = rank(folder)
    if "node" in changes:  # any value names it
        assert not ranking.left_out
    else:
        assert len(ranking.speeds) == len(SPEEDS)
        assert "damaged" in ranking.left_out[0]


def test_without_results_the_command_says_what_to_run(tmp_path):
    with pytest.raises(DataError, match="run timetrial accept on each node"):
        cluster.read_nodes([tmp_path])


def test_the_command_names_the_slow_node_and_exits_with_41(folder, write_result, capsys):
    assert run_command(["accept", "--compare", str(folder)], RankPool()) == 0
    assert "No device is slower than the others in 1 figure" in capsys.readouterr().out
    write_result("slow\x1b[2J", 0.9)
    assert run_command(["accept", "--compare", str(folder)], RankPool()) == 41
    shown = capsys.readouterr().out
    assert "slow once: slow" in shown
    assert "memory copy: 0.899 of the median 2904 GB/s" in shown
    assert "Run timetrial accept again on slow" in shown
    assert "\x1b[2J" not in shown
    write_result("slow\x1b[2J", 0.9, id="20260102-1")
    assert run_command(["accept", "--compare", str(folder)], RankPool()) == 41
    assert "slow twice: slow" in capsys.readouterr().out
    assert run_command(["accept", "--compare", str(folder), "--json"], RankPool()) == 41
    assert len(json.loads(capsys.readouterr().out)["outliers"]) == 2
    assert run_command(["accept", "--compare", str(folder), "--out", str(folder / "page"), "--json"], RankPool()) == 41
    json.loads(capsys.readouterr().out)  # nothing else is printed there
    assert "slow twice" in (folder / "page" / "ranking.html").read_text()


def test_a_node_with_fewer_gpus_than_most_is_named(folder, write_result, capsys):
    write_result("half", 1.0, num_gpus=1)
    write_result("double", 1.0, num_gpus=4)
    assert run_command(["accept", "--compare", str(folder), "--out", str(folder / "page")], RankPool()) == 0
    shown = capsys.readouterr().out
    assert "fewer GPUs: half has 1, most nodes have 2\n" in shown
    assert "double has" not in shown
    assert (folder / "page" / "ranking.html").read_text().count("most nodes have 2") == 1
    assert run_command(["accept", "--compare", str(folder), "--json"], RankPool()) == 0
    gpus = {node["node"]: node["gpus"] for node in json.loads(capsys.readouterr().out)["nodes"]}
    assert gpus == {f"node{number:02}": 2 for number in range(12)} | {"half": 1, "double": 4}


def test_of_many_nodes_the_slowest_are_shown(write_result, tmp_path):
    for number in range(30):
        write_result(f"node{number}", 1 - 0.001 * number)
    output = io.StringIO()
    cluster.show(Console(file=output, width=120), rank(tmp_path / "results"))
    assert "The slowest 20 of 30 nodes" in output.getvalue()
    assert "node29" in output.getvalue()
    assert "node3 " not in output.getvalue()

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
    assert ranking.outliers == ()
    assert [node.name for node, _ in ranking.speeds] == [f"node{number:02}" for number in np.argsort(-SPEEDS)]
    speeds = np.sort(SPEEDS)[::-1] / np.median(np.repeat(SPEEDS, 2))
    assert [speed for _, speed in ranking.speeds] == pytest.approx(list(speeds))


def test_a_slow_node_is_the_last_and_its_devices_are_named(folder, write_result):
    write_result("slow", 0.9)
    ranking = rank(folder)
    assert ranking.speeds[-1][0].name == "slow"
    assert {(each.node, each.device, each.figure) for each in ranking.outliers} == {
        ("slow", "GPU 0", "memory copy"),
        ("slow", "GPU 1", "memory copy"),
    }


def test_a_node_that_is_slower_by_a_percent_is_no_outlier_however_equal_the_others_are(write_result, tmp_path):
    for number in range(20):
        write_result(f"node{number}", 1 + 1e-5 * number)
    write_result("last", 0.99)
    assert rank(tmp_path / "results").outliers == ()


def test_other_models_are_not_compared(folder, write_result):
    write_result("other", 0.5, gpu="NVIDIA A100")
    assert rank(folder).outliers == ()


def test_the_newest_result_of_a_node_counts(folder, write_result):
    write_result("node00", 0.5, id="20250101-1")
    assert rank(folder).outliers == ()
    write_result("node00", 0.5, id="20270101-1")
    assert {each.node for each in rank(folder).outliers} == {"node00"}


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
    assert "memory copy: 0.899 of the median 2904 GB/s" in shown
    assert "\x1b[2J" not in shown
    assert run_command(["accept", "--compare", str(folder), "--json"], RankPool()) == 41
    assert len(json.loads(capsys.readouterr().out)["outliers"]) == 2


def test_of_many_nodes_the_slowest_are_shown(write_result, tmp_path):
    for number in range(30):
        write_result(f"node{number}", 1 - 0.001 * number)
    output = io.StringIO()
    cluster.show(Console(file=output, width=120), rank(tmp_path / "results"))
    assert "The slowest 20 of 30 nodes" in output.getvalue()
    assert "node29" in output.getvalue()
    assert "node3 " not in output.getvalue()

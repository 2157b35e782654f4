"""Throughput runs as cells, pairs and figures: real run folders, whose speeds are then set."""

import json
import math
import shutil

import pytest
from rich.console import Console
from typer.testing import CliRunner

from timetrial.runner.cli import main
from timetrial.runner.launch.launcher import launch
from timetrial.runner.results.analysis import throughput_groups
from timetrial.runner.results.analysis.stats import Interval
from timetrial.runner.results.report import build

TINY = ["workload=cifar10", "model=cnn10", "scale=reference", "+recipe.training.width=2", "data=synthetic"]
TINY += ["recipe.global_batch_size=8", "+recipe.data.eval_batch_size=4", "throughput.steps=1", "throughput.blocks=2"]


@pytest.fixture
def measured(compose, tmp_path):
    """measured(name, rates, words): folders of one setting; samples a second are `rates`, None for out of memory."""

    def make(name, rates, *words):
        chosen = [*TINY, "launcher=inline", f"runs={tmp_path}/first", *words]
        _, folder = launch(compose(*chosen), Console(quiet=True))
        config = folder.config.read_text().replace("gpus: 1", "gpus: 2")  # which no two cards here could run
        folder.config.write_text(config)
        for number, rate in enumerate(rates):
            copy = tmp_path / "runs" / f"{name}_{number}"
            shutil.copytree(folder.path, copy)
            status = json.loads((copy / "status.json").read_text())
            if rate is None:
                status |= {"state": "out of memory", "result": None}
            else:
                status["result"] |= {"samples_per_second": rate, "train_ms": 8000 / rate, "eval_ms": 2.0}
            (copy / "status.json").write_text(json.dumps(status))
        shutil.rmtree(folder.path)
        return tmp_path / "runs"

    return make


def test_runs_that_differ_in_luck_alone_are_one_cell_and_those_without_peers_another(measured):
    measured("linked", [100.0, 102.0, 98.0])
    tree = measured("apart", [99.0, 101.0, 100.0], "peer_to_peer=false", "seed=2")
    linked, apart = sorted(throughput_groups.gather([tree]), key=lambda cell: cell.links, reverse=True)
    assert (linked.network, linked.count, linked.batch, linked.links) == ("cnn10", 2, 4, "peer-to-peer")
    assert (apart.links, len(linked.results), len(apart.results)) == ("no peer-to-peer", 3, 3)
    (pair,) = throughput_groups.pairs([linked], [apart])
    assert pair.differences == ["peer_to_peer: True against False"]
    assert pair.rate.estimate == pytest.approx(1.0)
    assert "no difference can be told" in pair.verdict
    (finding,) = throughput_groups.of_links([linked, apart])
    assert "no difference" in finding.sentence


def test_a_difference_is_found_and_a_batch_that_does_not_fit_is_a_value(measured):
    measured("linked", [200.0, 202.0, 198.0])
    measured("big", [None], "recipe.global_batch_size=16")
    tree = measured("apart", [100.0, 101.0, 99.0], "peer_to_peer=false")
    cells = throughput_groups.gather([tree])
    (finding,) = throughput_groups.of_links(cells)
    assert "2.000 times the samples a second" in finding.sentence
    (big,) = (cell for cell in cells if cell.batch == 8)
    assert (big.out_of_memory, big.results) == (1, [])
    assert {figure.outcome for figure in throughput_groups.figures([big])} == {"out of memory"}
    figures = [
        figure for figure in throughput_groups.figures(cells) if figure.metric == "milliseconds" and figure.value
    ]
    told = {(figure.task, figure.batch, figure.interconnect): figure.value for figure in figures}
    assert told["train", 4, "peer-to-peer"] == pytest.approx(40.0, rel=1e-3)
    assert told["eval", 4, "no peer-to-peer"] == pytest.approx(2.0)


def test_commands_read_folders_without_any_log(measured, tmp_path, monkeypatch):
    measured("linked", [100.0, 102.0])
    bought = "accelerator.usd_per_gpu=5000"
    tree = measured("apart", [50.0, 51.0], "peer_to_peer=false", bought)
    assert len(build.build([tree]).figures) == 7
    said = CliRunner().invoke(main.app, ["study", str(tree)]).stdout
    assert "no peer-to-peer" in said
    assert "$ per sample/s" in said
    assert "2.000 times the samples a second" in said
    said = CliRunner().invoke(main.app, ["compare", str(tree / "linked_0"), str(tree / "apart_0")]).stdout
    assert "peer_to_peer: True against False" in said
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(main.app, ["report", str(tree)], catch_exceptions=False)
    page = (tmp_path / "report" / "report.md").read_text()
    assert "timetrial throughput on" in page


def test_a_run_that_trained_is_no_measurement(launch, tmp_path):
    launch()
    assert throughput_groups.gather([tmp_path]) == []


def test_other_threads_or_nodes_are_no_repeats(measured):
    measured("one", [100.0], "accelerator.threads=1")
    tree = measured("two", [50.0], "accelerator.threads=2")
    assert len(throughput_groups.gather([tree])) == 2


def test_a_cell_says_how_many_did_not_fit(measured):
    tree = measured("part", [100.0, None])
    notes = {figure.note for figure in throughput_groups.figures(throughput_groups.gather([tree]))}
    assert notes == {"1 more did not fit"}


def test_an_evaluation_that_was_not_reached_is_no_figure(measured):
    tree = measured("big", [None])
    assert {figure.task for figure in throughput_groups.figures(throughput_groups.gather([tree]))} == {"train"}


def test_links_of_one_card_are_none():
    def cell(peers):
        return throughput_groups.SpeedCell("c", {"gpus": 1, "peer_to_peer": peers, "workload.name": "net"})

    assert not throughput_groups.of_links([cell(True), cell(False)])


def test_verdicts_and_batches_of_a_card():
    cell = throughput_groups.SpeedCell("c", {"recipe.global_batch_size": 256, "gpus": 3, "precision.name": "bf16"})
    assert cell.code == "bf16"
    assert throughput_groups.SpeedCell("c", cell.setting | {"engine.compile": "default"}).code == "bf16 compiled"
    assert cell.batch == 86
    for low, mid, high, start in ((0.8, 0.9, 0.95, "0.900 times"), (0.9, 1.0, 1.1, "no difference")):
        assert throughput_groups.SpeedPair(cell, cell, [], Interval(mid, low, high, 3)).verdict.startswith(start)
    alone = Interval(1.3, math.nan, math.nan, 1)
    assert "without an interval" in throughput_groups.SpeedPair(cell, cell, [], alone).verdict

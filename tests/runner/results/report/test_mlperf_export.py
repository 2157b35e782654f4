"""Tests of the MLPerf export with the official tools."""

import contextlib
import io

import pytest
from mlperf_logging.rcp_checker.rcp_checker import check_directory
from mlperf_logging.result_summarizer import result_summarizer

from timetrial.runner.core.errors import ConfigurationError
from timetrial.runner.results.analysis.groups import group_runs
from timetrial.runner.results.parse import sources
from timetrial.runner.results.report import mlperf_export


@pytest.fixture
def exported(log, tmp_path):
    """Return a group of five ResNet runs with all keys that ruleset 0.7.0 requires, and its exported submitter."""
    for number, epochs in enumerate((34, 35, 35, 36, 35)):
        writer = log(f"tree/v0.7/Maker/box/resnet/result_{number}.txt")
        for key, value in {
            "cache_clear": True, "init_start": None, "submission_org": "Maker", "submission_platform": "box",
            "submission_division": "open", "submission_status": "onprem", "global_batch_size": 1632,
            "train_samples": 1281167, "eval_samples": 50000, "seed": number, "init_stop": None, "run_start": None,
        }.items():  # fmt: skip
            writer(key, value)
        writer("epoch_start", epoch_num=1).evaluate(epochs, 0.76, after=60.0 * epochs)("epoch_stop", epoch_num=1)
        writer("eval_start", epoch_num=1)("eval_stop", epoch_num=1)
        writer("block_start", first_epoch_num=1, epoch_count=1)("block_stop", first_epoch_num=1).stop(after=0.0).write()
    groups = group_runs(sources.read_runs([tmp_path / "tree"]))
    (submitter,) = mlperf_export.export(groups, tmp_path / "out")
    return groups[0], submitter


def test_official_summarizer_computes_the_same_score(exported):
    group, submitter = exported
    folder = submitter / "results" / "box" / "resnet"
    with contextlib.redirect_stdout(io.StringIO()):
        score = result_summarizer._compute_strong_score_standalone(
            "resnet", "box", False, str(folder), "training", "0.7.0"
        )[0]
        summary = result_summarizer.summarize_results(str(submitter), "training", "0.7.0")
    assert score == pytest.approx(group.minutes_olympic, abs=1e-9)
    assert "resnet" in str(summary[0].to_dict())


def test_official_rcp_checker_accepts_the_export(exported):
    _, submitter = exported
    folder = submitter / "results" / "box" / "resnet"
    with contextlib.redirect_stdout(io.StringIO()):
        accepted = check_directory(str(folder), "training", "1.1.0", False, False, rcp_pass="pruned_rcps")[0]
    assert accepted


def test_rejects_folder_that_is_not_empty(exported, tmp_path):
    group, _ = exported
    with pytest.raises(ConfigurationError, match="is not empty"):
        mlperf_export.export([group], tmp_path / "out")


@pytest.mark.parametrize("name", ["..", "/elsewhere/x", "../../x", "." * 300, "x" * 300, "a/../../b"])
def test_nothing_is_written_outside_of_the_folder(log, tmp_path, name):
    """Names of submitter, system and benchmark come from logs of others."""
    for number, benchmark in enumerate(("resnet", name)):
        writer = log(f"tree/{number}/result_0.txt", benchmark=benchmark)
        writer("submission_org", name)("submission_platform", name)("run_start").evaluate(1, 0.76, after=60.0).stop(
            after=0.0
        ).write()
    groups = group_runs(sources.read_runs([tmp_path / "tree"]))
    before = set(tmp_path.rglob("*"))
    mlperf_export.export(groups, tmp_path / "out" / "below")
    written = set(tmp_path.rglob("*")) - before
    assert sum(path.name == "result_0.txt" for path in written) == 2, written
    assert all((tmp_path / "out") in (path, *path.parents) for path in written)


def test_systems_whose_names_differ_in_other_characters_do_not_mix(log, tmp_path):
    for number, system in enumerate(("box a", "box/a")):
        writer = log(f"tree/{number}/result_0.txt")("submission_platform", system)
        writer("run_start").evaluate(1, 0.76, after=60.0).stop(after=0.0).write()
    mlperf_export.export(group_runs(sources.read_runs([tmp_path / "tree"])), tmp_path / "out")
    assert len(list((tmp_path / "out").rglob("result_0.txt"))) == 2
    assert len(list((tmp_path / "out").rglob("systems/*.json"))) == 2

"""`timetrial report`, `study` and `compare` as a person types them."""

import csv
import subprocess
import sys

import pytest

from timetrial.runner.core.errors import Exit
from timetrial.runner.results.parse import external


def timetrial(folder, *words):
    command = [sys.executable, "-P", "-m", "timetrial", *map(str, words)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.fixture
def tree(published):
    published("a", [4, 5, 4, 5, 4], 60.0, failed=1)
    return published("b", [5, 4, 5, 4, 5], 30.0)


def test_study_says_what_luck_is_and_what_the_card_is(tree, tmp_path):
    done = timetrial(tmp_path, "study", "tree")
    assert done.returncode == 0, done.stderr
    assert "Maker a, 8 x Tesla V100-SXM2-16GB\n  runs          6, 1 failed" in done.stdout
    assert "spread        12.4% by time-to-train, 0.0% by time per epoch" in done.stdout
    assert "to find 5%" in done.stdout


def test_compare_gives_a_verdict(tree, tmp_path):
    done = timetrial(tmp_path, "compare", "tree/v0.7/Maker/a", "tree/v0.7/Maker/b")
    assert done.returncode == 0, done.stderr
    assert "2 times slower to the target, with epochs pooled" in done.stdout
    assert "time-to-train expected, epochs pooled" in done.stdout


def test_report_writes_a_page_and_tables(tree, tmp_path):
    tables = ["--runs-csv", "out/runs.csv", "--scores-csv", "out/scores.csv"]
    done = timetrial(tmp_path, "report", "tree", *tables)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "report").exists()
    assert len(list(csv.DictReader((tmp_path / "out/runs.csv").read_text().splitlines()))) == 11
    study = next(iter(sorted((external.KNOWN / "studies").glob("*.csv"))))
    done = timetrial(tmp_path, "report", "tree", study, "--out", "page")
    assert done.returncode == 0, done.stderr
    assert "wrote page/report.html" in done.stdout
    assert "runs: 11, cells: 2, measured speeds: 0, borrowed figures: 40" in done.stdout
    assert (tmp_path / "page/report.html").read_text().lstrip().lower().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["report"], Exit.CONFIGURATION, "Missing argument"),
        (["report", "absent"], Exit.DATA, "absent does not exist"),
        (["study", "empty"], Exit.DATA, "No MLPerf log was found in empty"),
        (["compare", "tree/v0.7/Maker/a", "other"], Exit.DATA, "hold no benchmark in common"),
        (["report", "tree", "--export-mlperf", "tree"], Exit.CONFIGURATION, "tree is not empty"),
        (["report", "tree", "--colour", "red"], Exit.CONFIGURATION, "--colour"),
    ],
)
def test_a_wrong_argument_is_one_sentence_and_its_code(tree, tmp_path, log, words, code, said):
    (tmp_path / "empty").mkdir()
    log("other/result_0.txt", benchmark="ssd")("run_start").evaluate(4, 0.3).stop().write()
    done = timetrial(tmp_path, *words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "report").exists()

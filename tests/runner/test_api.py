"""`import timetrial`: the commands as functions."""

import math
import subprocess
import sys

import pytest

import timetrial
from timetrial.runner.core.errors import ConfigurationError, DataError


def test_the_package_imports_nothing_until_it_is_used():
    program = "import sys, timetrial; print(sorted({'pandas', 'torch', 'hydra'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        timetrial.trian  # noqa: B018


def test_read_runs_has_a_row_per_run_with_its_qualities(launch):
    _, first = launch("seed=1", "recipe.target.v05.hit_rate=0.01")
    _, missed = launch("seed=2", "recipe.target.v05.hit_rate=0.99", "recipe.max_epochs=1")
    runs = timetrial.read_runs(first.path, missed.path)
    assert runs["success"].tolist() == [True, False]
    assert runs["target_hit_rate"].tolist() == [0.01, 0.99]
    assert runs["quality_hit_rate"].between(0, 1).all()
    assert runs["seed"].tolist() == [1, 2]
    assert math.isnan(runs["epochs_to_converge"][1])
    assert runs["cost_usd"].isna().all()


def test_compare_and_report_say_what_the_commands_say(launch, tmp_path):
    _, first = launch("seed=1", "recipe.target.v05.hit_rate=0.01")
    _, second = launch("seed=2", "recipe.target.v05.hit_rate=0.01")
    (comparison,) = timetrial.compare(first.path, second.path)
    assert comparison.verdict == "cannot tell"
    assert [group.num_failed for group in timetrial.report(first.path, out=tmp_path / "page").groups] == [0]
    assert (tmp_path / "page" / "report.html").exists()
    with pytest.raises(ConfigurationError, match="A margin of 5 is no fraction"):
        timetrial.compare(first.path, second.path, margin=5)
    with pytest.raises(DataError, match="No MLPerf log was found"):
        timetrial.read_runs(tmp_path / "page")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["accelerator=cpu", "bogus=1"], "There is no key bogus"),
        (["accelerator=cpu", "recipe.max_epochs=x"], "recipe.max_epochs"),
        (["accelerator=nope"], "accelerator=nope is not known"),
        (["-m", "accelerator=cpu", "recipe.global_batch_size=0,-1"], "recipe.global_batch_size must be 1 or more, not"),
        (["--cfg", "job"], "timetrial.run has run nothing"),
    ],
)
def test_what_never_ran_is_a_run_error(words, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=sentence):
        timetrial.run(*words)


def test_nothing_to_read_is_said():
    with pytest.raises(DataError, match="No path is given"):
        timetrial.read_runs()


@pytest.mark.integration
def test_a_thread_can_run(tiny_ncf, tmp_path):
    program = f"""
import threading, timetrial
rows = []
words = {tiny_ncf!r} + ["recipe.max_epochs=1", "runs_dir={tmp_path}/runs", "data_dir={tmp_path}/data"]
thread = threading.Thread(target=lambda: rows.append(timetrial.run(*words)))
thread.start()
thread.join()
print(len(rows[0]), "row")
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=200)
    assert done.stdout.endswith("1 row\n"), done.stderr

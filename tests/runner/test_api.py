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

"""The command `timetrial new-workload`: what it writes trains and passes its own tests, and what it refuses."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from timetrial.runner.cli.app import app
from timetrial.runner.core.errors import ConfigurationError


@pytest.fixture
def new_workload(tmp_path, monkeypatch):
    """new_workload(*arguments): what the command prints in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments):
        result = CliRunner().invoke(app, ["new-workload", *arguments])
        if result.exception:
            raise result.exception
        return result.output

    return invoke


@pytest.mark.integration
def test_the_written_workload_passes_its_tests_and_reaches_its_target(new_workload, tmp_path):
    output = new_workload("first_try", "--out", "my own")
    command = "PYTHONPATH='my own' timetrial run --config-dir 'my own/first_try/conf' workload=first_try"
    assert command in output.splitlines()[-1]
    assert "python -m pip install -e 'my own'" in output
    tests = tmp_path / "my own" / "tests" / "test_first_try.py"
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "my own")}
    pytest_command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)]
    done = subprocess.run(pytest_command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def test_every_file_is_named_in_the_output(new_workload, tmp_path):
    output = new_workload("first_try")
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {line.removeprefix("wrote ") for line in output.splitlines() if line.startswith("wrote ")} == written
    assert len(written) == 8


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("ncf", "has a workload ncf"),
        ("torch", "There is a package or folder torch"),
        ("tests", "There is a package or folder tests"),
        ("class", "cannot name a Python package"),
        ("TinyLM", "cannot name a Python package"),
        ("tiny-lm", "cannot name a Python package"),
        ("../tiny", "cannot name a Python package"),
        ("3d", "cannot name a Python package"),
        ("", "cannot name a Python package"),
    ],
)
def test_a_name_that_is_taken_or_no_identifier_is_refused(new_workload, tmp_path, name, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        new_workload(name)
    assert list(tmp_path.iterdir()) == []


def test_existing_files_are_not_overwritten(new_workload, tmp_path):
    project = tmp_path / "extra" / "pyproject.toml"
    project.parent.mkdir()
    project.write_text("mine")
    with pytest.raises(ConfigurationError, match=r"pyproject\.toml exists: choose another folder with --out"):
        new_workload("first_try")
    assert project.read_text() == "mine"
    assert not (tmp_path / "extra" / "first_try").exists()

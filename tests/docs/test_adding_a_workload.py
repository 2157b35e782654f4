"""The page on adding a workload, followed to the letter in a temporary folder."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from timetrial.runner.record.record_file import read_record

pytestmark = pytest.mark.integration


@pytest.fixture
def page(root, tmp_path):
    """Write the files of the page below tmp_path; return its commands as lists of words."""
    text = (root / "docs" / "adding_a_workload.md").read_text()
    files = re.findall(r"^\*\*(extra/\S+)\*\*\n\n```\w+\n(.*?)^```$", text, re.M | re.S)
    assert len(files) == 3
    for name, content in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return [shlex.split(line) for line in re.findall(r"^    (PYTHONPATH=\S+ timetrial .*)$", text, re.M)]


def run(words, folder):
    variable, _, *arguments = words
    command = [sys.executable, "-P", "-m", "timetrial", *arguments]
    if not any(word.startswith("accelerator=") for word in arguments):
        command.append("accelerator=cpu")
    environment = os.environ | dict([variable.split("=", 1)])
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_the_page_gives_a_workload_that_reaches_its_target(page, tmp_path):
    one_rank, two_ranks, throughput = page
    records = []
    for name, words in (("one", one_rank), ("two", two_ranks)):
        done = run([*words, f"run_dir={name}"], tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        records.append(read_record(tmp_path / name))
        assert records[-1].verdict.compliant
    losses = [[block.loss for block in record.training.blocks] for record in records]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    done = run([*throughput, "throughput.steps=2", "throughput.blocks=2"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "samples/s" in done.stdout

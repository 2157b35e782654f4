"""The page on adding a workload shows what `timetrial new-workload` writes, and its commands work to the letter."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from timetrial.runner.record.record_file import read_record

pytestmark = pytest.mark.integration


def run(words, folder):
    """Run `[VARIABLE=VALUE] timetrial ...`."""
    variables = [word.split("=", 1) for word in words[: words.index("timetrial")]]
    arguments = words[words.index("timetrial") + 1 :]
    if variables and not any(word.startswith("accelerator=") for word in arguments):
        arguments.append("accelerator=cpu")
    command = [sys.executable, "-P", "-m", "timetrial", *arguments]
    environment = os.environ | dict(variables)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_shows_the_files_and_its_commands_work(root, tmp_path):
    text = (root / "docs" / "adding_a_workload.md").read_text()
    lines = re.findall(r"^    ((?:PYTHONPATH=\S+ )?timetrial .*)$", text, re.M)
    new_workload, one_rank, two_ranks, throughput = (shlex.split(line) for line in lines)
    run(new_workload, tmp_path)
    shown = dict(re.findall(r"^\*\*(extra/\S+)\*\*\n\n```\w+\n(.*?)^```$", text, re.M | re.S))
    assert len(shown) == 4
    assert shown == {name: (tmp_path / name).read_text() for name in shown}
    records = []
    for name, words in (("one", one_rank), ("two", two_ranks)):
        run([*words, f"run_dir={name}"], tmp_path)
        records.append(read_record(tmp_path / name))
        assert records[-1].verdict.compliant
    losses = [[block.loss for block in record.training.blocks] for record in records]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert "samples/s" in run([*throughput, "throughput.steps=2", "throughput.blocks=2"], tmp_path)

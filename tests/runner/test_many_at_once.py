"""Many runs that start at once below one folder: each has a directory and ports of its own."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from timetrial.runner.record.record_file import read_record
from timetrial.runner.results.parse import sources

# One process imports everything and forks: sixty interpreters would need too much memory.
PROGRAM = """
import os, sys
import torch
import torch._dynamo
from rich.console import Console
from timetrial.runner.config.compose import compose
from timetrial.runner.config.validation import validate
from timetrial.runner.launch.run import launch

node = compose(sys.argv[2:]).node
validate(node)
torch.set_num_threads(1)
read_end, write_end = os.pipe()
for _ in range(int(sys.argv[1])):
    if not os.fork():
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(int(launch(node, Console(quiet=True)).exit_code))
os.close(write_end)  # all children start now
while True:
    try:
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    except ChildProcessError:
        break
"""
OVERRIDES = ["recipe.global_batch_size=512", "recipe.target.v05.hit_rate=0.999", "recipe.max_epochs=2"]


@pytest.mark.e2e
def test_sixty_concurrent_runs_have_their_own_directories(tiny_ncf, tmp_path):
    completed = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, "60", *tiny_ncf, *OVERRIDES, "launcher=inline"],
        cwd=tmp_path, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert Counter(completed.stdout.split()) == {"10": 60}, completed.stderr
    folders = [file.parent for file in (tmp_path / "runs").rglob("config.yaml")]
    assert len(folders) == len({folder.name for folder in folders}) == 60
    assert {folder.parent for folder in folders} == {folders[0].parent}
    for folder in folders:
        record = read_record(folder)
        assert (record.state, record.run_class, record.restarts) == ("target not reached", "clean", 0)
    assert len(sources.read_runs([Path(tmp_path / "runs")])) == 60
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.e2e
def test_concurrent_runs_of_two_ranks_use_different_ports(tiny_ncf, tmp_path):
    overrides = [*tiny_ncf, *OVERRIDES, "gpus=2", "launcher=local", "seed=1"]
    command = [sys.executable, "-P", "-m", "timetrial", "run", *overrides]
    with open(tmp_path / "output.txt", "w") as output:
        runs = [subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output) for _ in range(4)]
        codes = [run.wait(300) for run in runs]
    assert codes == [10] * 4, (tmp_path / "output.txt").read_text()
    assert len(list((tmp_path / "runs").rglob("result_1.txt"))) == 4

"""Two hundred runs begun in one moment, into one folder: none meets another, none is lost."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from timetrial.runner.record.record_file import read_record
from timetrial.runner.results.parse import sources

# One process imports everything and forks: two hundred interpreters would want more memory than a laptop has.
PROGRAM = """
import os, sys
import torch
from rich.console import Console
from timetrial.runner.config.compose import compose
from timetrial.runner.config.validation import validate
from timetrial.runner.launch.run import launch

node = compose(sys.argv[2:]).node
validate(node)
torch.set_num_threads(1)
gate, opening = os.pipe()
for _ in range(int(sys.argv[1])):
    if not os.fork():
        os.close(opening)
        os.read(gate, 1)
        os._exit(int(launch(node, Console(quiet=True)).exit_code))
os.close(opening)
while True:
    try:
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    except ChildProcessError:
        break
"""
TINY = [
    "accelerator=cpu",
    "recipe.data.generate={num_users: 200, num_items: 300, num_ratings: 6000, num_clusters: 4}",
    "recipe.data.eval_negatives=99",
    "recipe.global_batch_size=512",
    "recipe.target.v05.hit_rate=0.999",
    "recipe.max_epochs=2",
    "launcher=inline",
]


@pytest.mark.slow
def test_two_hundred_runs_at_once(tmp_path):
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, "200", *TINY],
        cwd=tmp_path, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert Counter(done.stdout.split()) == {"10": 200}, done.stderr
    folders = [file.parent for file in (tmp_path / "runs").rglob("config.yaml")]
    assert len(folders) == len({folder.name for folder in folders}) == 200
    assert {folder.parent for folder in folders} == {folders[0].parent}
    for folder in folders:
        record = read_record(folder)
        assert (record.state, record.run_class, record.restarts) == ("target not reached", "clean", 0)
    assert len(sources.read_runs([Path(tmp_path / "runs")])) == 200
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.slow
def test_runs_of_two_ranks_on_one_machine_take_no_port_from_each_other(tmp_path):
    words = [*TINY[:-1], "gpus=2", "launcher=local", "seed=1"]
    command = [sys.executable, "-P", "-m", "timetrial", "run", *words]
    with open(tmp_path / "said.txt", "w") as said:
        runs = [subprocess.Popen(command, cwd=tmp_path, stdout=said, stderr=said) for _ in range(8)]
        codes = [run.wait(300) for run in runs]
    assert codes == [10] * 8, (tmp_path / "said.txt").read_text()
    assert len(list((tmp_path / "runs").rglob("result_1.txt"))) == 8

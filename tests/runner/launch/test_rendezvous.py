"""Runs over several nodes, with two launchers on this machine in the place of two that srun starts."""

import csv
import os
import subprocess
import sys
import time

import psutil
import pytest

from timetrial.runner.config.validation import validate
from timetrial.runner.core.errors import ConfigurationError, Exit
from timetrial.runner.launch import rendezvous
from timetrial.runner.record.run_dir import RunDir

TINY = [
    "accelerator=cpu",
    "gpus=2",
    "recipe.data.generate={num_users: 200, num_items: 300, num_ratings: 6000, num_clusters: 4}",
    "recipe.data.eval_negatives=99",
    "recipe.global_batch_size=512",
    "recipe.target.v05.hit_rate=0.999",
]


@pytest.fixture
def start(tmp_path):
    """start(node, *overrides) -> one node's launcher of an srun over two."""

    def begin(node, *overrides, step="0"):
        place = {"SLURM_NODEID": str(node), "SLURM_STEP_NUM_NODES": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": step}
        with open(tmp_path / f"node_{node}.txt", "a") as said:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "timetrial", "run", *TINY, "launcher=slurm", "run_dir=run", *overrides],
                cwd=tmp_path, env=os.environ | place, stdout=said, stderr=said,
            )  # fmt: skip

    return begin


def qualities(folder):
    rows = csv.DictReader((folder / "quality.csv").read_text().splitlines())
    return [(row["epoch"], row["loss"], row["hit_rate"]) for row in rows]


def test_two_launchers_meet_and_end_alike(start, tmp_path):
    second = start(1, "recipe.max_epochs=3")  # whichever comes first
    time.sleep(2)
    first = start(0, "recipe.max_epochs=3")
    assert [first.wait(90), second.wait(90)] == [Exit.TARGET_NOT_REACHED] * 2
    record = RunDir(tmp_path / "run", 1).record()
    assert (record.state, record.rendezvous) == ("target not reached", None)
    assert {path.name for path in (tmp_path / "run").glob("std*")} == {
        f"std{kind}_{rank}.txt" for kind in ("out", "err") for rank in (0, 1)
    }
    local = [*TINY, "run_dir=local", "recipe.max_epochs=3"]
    subprocess.run([sys.executable, "-P", "-m", "timetrial", "run", *local], cwd=tmp_path, capture_output=True)
    assert qualities(tmp_path / "run") == qualities(tmp_path / "local")


def test_a_stop_on_any_node_stops_all_and_a_new_step_resumes(start, tmp_path):
    words = ["recipe.max_epochs=100000", "resume=true"]
    both = [start(0, *words), start(1, *words)]
    while not (tmp_path / "run/quality.csv").exists():
        assert both[0].poll() is None
        time.sleep(0.05)
    both[1].terminate()
    assert [process.wait(90) for process in both] == [Exit.STOPPED] * 2
    both = [start(node, *words, "time_limit_seconds=1", step="1") for node in (1, 0)]
    assert [process.wait(90) for process in both] == [Exit.TIME_LIMIT] * 2
    record = RunDir(tmp_path / "run", 1).record()
    assert (record.run_class, record.restarts) == ("resumed", 1)


def test_a_node_whose_ranks_are_lost_ends_the_run_on_all(start, tmp_path):
    words = ["recipe.max_epochs=100000", "launcher.hang_timeout_seconds=5"]
    both = [start(0, *words), start(1, *words)]
    while not (tmp_path / "run/quality.csv").exists():
        assert both[0].poll() is None
        time.sleep(0.05)
    for rank in psutil.Process(both[1].pid).children():
        rank.kill()
    assert [process.wait(120) for process in both] == [Exit.LOST_RANK] * 2


def test_a_meeting_of_an_earlier_step_is_not_joined(tmp_path, monkeypatch):
    folder = RunDir(tmp_path, 1)
    monkeypatch.setenv("SLURM_STEP_ID", "1")
    monkeypatch.setattr(rendezvous, "_WAIT_TIMEOUT_SECONDS", 1.0)
    monkeypatch.setattr(rendezvous, "_LEAVE_TIMEOUT_SECONDS", 1.0)  # nobody has come who would leave
    with rendezvous.host(2, folder) as meeting:
        assert rendezvous.wait(folder) == meeting
        monkeypatch.setenv("SLURM_STEP_ID", "2")
        with pytest.raises(Exception, match="The first node did not start"):
            rendezvous.wait(folder)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["launcher=slurm", "launcher.nodes=2", "gpus=3", "run_dir=a"], "gpus that the nodes divide"),
        (["launcher=local", "launcher.nodes=2", "gpus=2", "run_dir=a"], "use launcher=slurm"),
        (["launcher=slurm", "launcher.nodes=2", "gpus=2"], "add run_dir=FOLDER"),
        (["launcher=slurm", "launcher.nodes=0"], "launcher.nodes must be 1 or more"),
    ],
)
def test_what_does_not_fit_the_nodes_is_refused(compose, overrides, said):
    with pytest.raises(ConfigurationError, match=said):
        validate(compose(*overrides))

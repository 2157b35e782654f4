"""The batch scripts without a batch system."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from timetrial.runner.core.errors import Exit

TINY = [
    "accelerator=cpu",
    "recipe.data.generate={num_users: 200, num_items: 300, num_ratings: 6000, num_clusters: 4}",
    "recipe.data.eval_negatives=99",
    "recipe.global_batch_size=2048",
    "recipe.target.v05.hit_rate=0.2",
    "launcher=inline",
]


@pytest.fixture
def begin(root, tmp_path):
    """begin(script, *words) -> its process in tmp_path, with this Python's timetrial and no Slurm."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def started(script, *words):
        return subprocess.Popen(
            [root / "scripts" / script, *words],
            env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    return started


@pytest.fixture
def script(begin):
    """script(name, *words) -> (exit code, what it printed, what it said on stderr)."""

    def run(name, *words):
        process = begin(name, *words)
        printed, said = process.communicate(timeout=200)
        return process.returncode, printed, said

    return run


def test_a_study_runs_here_and_a_failure_stops_none_of_its_siblings(script, tmp_path):
    words = ["study", *TINY, "recipe.training.learning_rate=1e30,0.005", "seed=1"]
    code, printed, _ = script("slurm/study.sbatch", *words)
    assert code == Exit.DIVERGED
    assert "lower the learning rate" in printed
    assert "reached       yes" in printed
    code, printed, _ = script("slurm/study.sbatch", "study")
    assert code == Exit.DIVERGED
    assert printed.count("nothing to do") == 2


def test_a_stopped_study_goes_on_where_it_was(begin, script, tmp_path):
    words = ["study", *TINY, "seed=1,2"]
    words += ["recipe.target.v05.hit_rate=0.999", "recipe.max_epochs=80"]
    process = begin("slurm/study.sbatch", *words)
    while not (tmp_path / "study/runs/0-seed-1/quality.csv").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == Exit.STOPPED
    assert "a checkpoint is written" in printed
    assert not (tmp_path / "study/runs/1-seed-2").exists()
    code, printed, _ = script("slurm/study.sbatch", "study")
    assert code == Exit.TARGET_NOT_REACHED
    assert "restarts      1" in printed


def test_a_dry_run_prints_every_command_and_writes_nothing(script, tmp_path):
    words = ["study", "accelerator=h200,cpu", "gpus=1,4", "seed=range(1,4)"]
    code, _, said = script("slurm/submit", "--dry-run", "--max-concurrent=2", "--time=1:00:00", "--account=a", *words)
    assert (code, list(tmp_path.iterdir())) == (0, [])
    lines = [line for line in said.splitlines() if line.startswith("sbatch")]
    assert len(lines) == 4
    assert "--array=6-11%2" in lines[0]
    assert "--gres" not in lines[0]
    assert "--array=0-2%2" in lines[1]
    assert "--gres=gpu:1" in lines[1]
    assert "--array=3-5%2" in lines[2]
    assert "--gres=gpu:4" in lines[2]
    assert all("--time=1:00:00" in line for line in lines[:3])
    assert "--dependency=afterany:" in lines[3]
    assert "timetrial\\ report\\ study/runs" in lines[3]
    assert all("--account=a" in line for line in lines)


def test_cards_are_shared_out_over_nodes(script):
    words = ["study", "accelerator=h200", "launcher=slurm", "gpus=4"]
    assert "--gres=gpu:2 --nodes=2" in script("slurm/submit", "--dry-run", "--nodes=2", *words)[2]


def test_a_study_that_could_not_run_is_not_submitted(script, tmp_path):
    code, _, said = script("slurm/submit", "--dry-run", "study", "nonsense=1")
    assert code == Exit.CONFIGURATION
    assert "nonsense is not set here" in said
    assert "sbatch" not in said


def test_a_wheelhouse_has_what_a_system_takes(script, tmp_path):
    """Wheels for another Python and another processor than those that fetch them."""
    code, _, said = script("wheelhouse", "--python=3.12", "--platform=aarch64", "there", "psutil", "six")
    if "No matching distribution" in said:
        pytest.skip("no package index can be reached")
    assert code == 0, said
    names = [path.name for path in (tmp_path / "there").iterdir()]
    assert len(names) == 3
    assert all(name.endswith(("none-any.whl", "aarch64.whl")) for name in names)


SCRIPTS = ["slurm/submit", "slurm/study.sbatch", "wheelhouse"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_says_how_it_is_used(script, name):
    code, printed, said = script(name, "--help")
    assert (code, said) == (0, "")
    assert f"scripts/{name}" in printed
    assert "set -" not in printed
    assert script(name) == (Exit.CONFIGURATION, "", printed)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["slurm/submit", "--dry-run", "--time", "1:00:00", "study", "seed=1"], "study is not an override: options of"),
        (["slurm/submit", "--dry-run", "study", "seed=1", "--time=1:00:00"], "--time=1:00:00 is not an override"),
        (["slurm/study.sbatch", "--time=1:00:00", "study"], "--time=1:00:00 is not an option"),
        (["slurm/study.sbatch", "study"], "study/manifest.txt is missing: add overrides"),
        (["wheelhouse", "--pyhton=3.12", "there"], "--pyhton=3.12 is not an option"),
    ],
)
def test_a_wrong_word_is_named_and_nothing_is_written(script, tmp_path, words, told):
    code, printed, said = script(*words)
    assert (code, printed, told in said, list(tmp_path.iterdir())) == (Exit.CONFIGURATION, "", True, []), said

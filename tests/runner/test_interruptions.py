"""What is left of a run that is killed outright, at any moment, and what a resume makes of it.

TIMETRIAL_KILLS is how often the random killer strikes (5; the record is of 50).
"""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest
from omegaconf import OmegaConf

from timetrial.runner.core.errors import ConfigurationError, Exit, RunDirLocked
from timetrial.runner.record.run_dir import RunDir
from timetrial.runner.training import checkpoint

KILLS = int(os.environ.get("TIMETRIAL_KILLS", "5"))
TINY = [
    "accelerator=cpu",
    "recipe.data.generate={num_users: 200, num_items: 300, num_ratings: 6000, num_clusters: 4}",
    "recipe.data.eval_negatives=99",
    "recipe.global_batch_size=512",
    "recipe.target.v05.hit_rate=0.999",
    "resume=true",
]


@pytest.fixture
def start(tmp_path):
    """start(name, *overrides) -> the process of a run in tmp_path/name."""

    def begin(name, *overrides):
        places = [f"data_dir={tmp_path}/data", f"run_dir={tmp_path}/{name}"]
        command = [sys.executable, "-P", "-m", "timetrial", "run", *TINY, *places, *overrides]
        with open(tmp_path / f"{name}.txt", "w") as said:
            return subprocess.Popen(command, cwd=tmp_path, stdout=said, stderr=subprocess.STDOUT)

    return begin


def finished(process):
    assert process.wait(timeout=120) == Exit.TARGET_NOT_REACHED


def kill(process, *, ranks=True):
    """As a power cut would, all at once; or the launcher alone."""
    family = [psutil.Process(process.pid)]
    family += family[0].children(recursive=True) if ranks else []
    for member in family:
        with suppress(psutil.NoSuchProcess):  # it has just ended
            member.kill()
    process.wait()
    psutil.wait_procs(family)


def wait_for(path, process):
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.02)


def has_begun(folder, process):
    return process.poll() is not None or process.pid in pids(folder)


def qualities(folder):
    rows = csv.DictReader((folder / "quality.csv").read_text().splitlines())
    return [(row["epoch"], row["samples"], row["loss"], row["hit_rate"]) for row in rows]


def record(folder):
    return RunDir(folder, 1).record()


def pids(folder):
    return {attempt.pid for attempt in record(folder).attempts}


def whole_files(folder):
    """Reads all that a run writes, each file whole; returns evaluated blocks, and epochs that a resume is spared."""
    if (folder / "config.yaml").exists():
        assert OmegaConf.load(folder / "config.yaml").workload.name == "ncf"
    for log in folder.glob("result_*.txt"):
        text = log.read_text()
        assert text == "" or text.endswith("\n")
        assert all(json.loads(line.removeprefix(":::MLLOG "))["key"] for line in text.splitlines())
    training = record(folder).training if folder.exists() else None
    blocks = training.blocks if training else ()
    if blocks:
        assert len(qualities(folder)) in (len(blocks), len(blocks) + 1)  # which is written first
    saved = folder / "checkpoint" / "checkpoint.pt"
    return len(blocks), checkpoint.load_checkpoint(saved)["completed_epochs"] if saved.exists() else 0


def test_kill_9_at_random_moments_loses_one_block_at_most(start, tmp_path):
    """Runs are killed again and again until each is through; which epoch, file or phase is hit is chance."""
    words, moments = ["recipe.max_epochs=40", "checkpoint.every_seconds=0"], random.Random(7)
    finished(start("whole", *words))
    whole, kills, runs = qualities(tmp_path / "whole"), 0, 0
    while kills < KILLS:
        folder, runs, attempts = tmp_path / f"run_{runs}", runs + 1, set()
        launcher = f"launcher={'inline' if runs % 2 else 'local'}"
        while True:
            process, killed = start(folder.name, *words, launcher), False
            while moments.random() < 0.98 and not has_begun(folder, process):  # rarely in the middle of an import
                time.sleep(0.05)
            try:
                process.wait(moments.uniform(0.0, 6.0))
            except subprocess.TimeoutExpired:
                kill(process)
                kills, killed = kills + 1, True
            evaluated, kept = whole_files(folder)
            assert kept >= evaluated - 1, (folder, kills)
            attempts |= pids(folder)
            if not killed:
                finished(process)
                break
        final = record(folder)
        assert qualities(folder) == whole, (folder, kills)
        assert final.restarts == len(attempts) - 1, (folder, kills)
        assert (final.state, len(final.verdict.problems)) == ("target not reached", 1)
        assert not [path for path in folder.rglob("*") if path.suffix == ".tmp"]
    print(f"{kills} kills, {runs} runs, all whole and equal")


def test_killed_before_a_checkpoint_it_starts_over_with_a_clean_clock(start, tmp_path):
    words = ["recipe.max_epochs=40", "launcher=inline"]
    process = start("run", *words)
    wait_for(tmp_path / "run" / "quality.csv", process)
    kill(process)
    finished(start("run", *words))
    final = record(tmp_path / "run")
    assert (final.run_class, final.restarts, final.training.lost_seconds) == ("clean", 1, 0.0)
    assert final.training.seconds == final.training.active_seconds


def test_every_restart_is_counted_though_none_reached_a_checkpoint_of_its_own(start, tmp_path):
    words = ["recipe.max_epochs=100000", "launcher=inline", "checkpoint.every_seconds=1000"]
    process = start("run", *words)
    wait_for(tmp_path / "run" / "quality.csv", process)
    process.terminate()
    assert process.wait(timeout=60) == Exit.STOPPED
    for _ in range(2):
        before = (tmp_path / "run" / "status.json").stat().st_mtime_ns
        process = start("run", *words)
        status_file = tmp_path / "run" / "status.json"
        while status_file.stat().st_mtime_ns == before or record(tmp_path / "run").run_class != "resumed":
            time.sleep(0.05)
        kill(process)
    assert record(tmp_path / "run").restarts == 2


def test_ranks_of_a_killed_launcher_hold_the_folder_until_they_have_ended(start, tmp_path):
    words = ["recipe.max_epochs=15", "gpus=2", "launcher=local"]
    process = start("run", *words)
    wait_for(tmp_path / "run" / "quality.csv", process)
    ranks = psutil.Process(process.pid).children()
    for rank in ranks:
        rank.suspend()
    kill(process, ranks=False)
    folder = RunDir(tmp_path / "run", 1)
    assert folder.in_use()
    with pytest.raises(RunDirLocked), folder.locked():
        pass
    for rank in ranks:
        rank.resume()
    psutil.wait_procs(ranks, timeout=60)
    assert not folder.in_use()
    assert record(tmp_path / "run").exit_code == Exit.STOPPED  # they have saved
    for process in [start("run", *words), start("whole", *words)]:
        finished(process)
    assert qualities(tmp_path / "run") == qualities(tmp_path / "whole")


def test_a_folder_whose_owner_was_killed_in_its_first_moment_is_taken_over(launch, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "status.json").touch()
    with pytest.raises(ConfigurationError, match="already holds a run"):
        launch(f"run_dir={tmp_path}/run")
    assert launch(f"run_dir={tmp_path}/run", "resume=true")[0] == Exit.TARGET_REACHED


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_a_limit_is_raised_by_a_resume(start, tmp_path, launcher):
    words = ["recipe.max_epochs=60", f"launcher={launcher}"]
    process = start("run", *words, "time_limit_seconds=0.5")
    assert process.wait(timeout=60) == Exit.TIME_LIMIT
    finished(start("run", *words, "time_limit_seconds=100", "system=elsewhere"))
    config = OmegaConf.load(tmp_path / "run" / "config.yaml")
    assert (config.time_limit_seconds, config.system != "elsewhere") == (100.0, True)


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_many_stop_signals_are_one(start, tmp_path, launcher):
    """Batch systems signal the launcher, each rank, and all of them again."""
    process = start("run", "recipe.max_epochs=100000", f"launcher={launcher}")
    wait_for(tmp_path / "run" / "quality.csv", process)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]
    while process.poll() is None:
        for member in family:
            if member.is_running():
                member.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    assert process.returncode == Exit.STOPPED
    final = record(tmp_path / "run")
    assert (final.state, final.exit_code, final.training.reached) == ("stopped", 12, False)
    assert final.verdict is not None

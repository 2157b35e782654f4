"""Tests of the batch scripts on a real Slurm: every study completes, whatever happens to its jobs."""

import csv
import os
import re
import subprocess
from pathlib import Path

import pytest

from timetrial.runner.core.errors import Exit
from timetrial.runner.record.record_file import read_record
from timetrial.runner.record.run_record import RunClass, RunState

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

TINY = [
    "accelerator=cpu",
    "recipe.data.generate={num_users: 200, num_items: 300, num_ratings: 6000, num_clusters: 4}",
    "recipe.data.eval_negatives=99",
    "recipe.global_batch_size=512",
    "recipe.target.v05.hit_rate=0.999",
    "checkpoint.every_seconds=0",
]


@pytest.fixture
def reference_run(slurm, tmp_path):
    """reference_run(*overrides) -> run directory of an uninterrupted run without Slurm."""

    def run(*overrides):
        folder = tmp_path / "-".join(["reference", *overrides])
        subprocess.run(
            ["timetrial", "run", *TINY, f"run_dir='{folder}'", *overrides],
            env=slurm.environment, cwd=tmp_path, capture_output=True, timeout=120, check=False,
        )  # fmt: skip
        return folder

    return run


@pytest.fixture
def submit(slurm, root, tmp_path, monkeypatch):
    """submit(*arguments) -> (ids of the array jobs, id of the report job); the working directory is tmp_path."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        command = [root / "scripts/slurm/submit", *arguments]
        result = subprocess.run(command, env=slurm.environment, capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stderr
        return re.findall(r"afterany:(\d+)", result.stderr), re.search(r"the report is job (\d+);", result.stdout)[1]

    return run


def has_evaluated(run_dir):
    return (run_dir / "quality.csv").exists()


def read_quality(run_dir):
    rows = csv.DictReader((run_dir / "quality.csv").read_text().splitlines())
    return [(row["epoch"], row["samples"], row["loss"], row["hit_rate"]) for row in rows]


def check_finished_run(run_dir, num_epochs):
    """Check the record of a run on one GPU that trained `num_epochs` epochs and missed its target."""
    record = read_record(run_dir)
    outcome = (record.state, record.exit_code, len(record.training.blocks))
    assert outcome == (RunState.TARGET_NOT_REACHED, Exit.TARGET_NOT_REACHED, num_epochs), run_dir
    assert len(list(run_dir.glob("result_*.txt"))) == 1
    assert record.verdict.summary == "complies, not converged", record.verdict
    assert record.environment["visible_devices"]["CUDA_VISIBLE_DEVICES"] in ("0", "1"), run_dir


def test_study_completes_after_preemption_cancellation_and_node_failure(slurm, submit, reference_run, tmp_path):
    """Of eight runs, one is preempted, one is cancelled and one loses its node; then the study is submitted again."""
    study, runs = tmp_path / "study", tmp_path / "study" / "runs"
    overrides = [*TINY, "recipe.max_epochs=60", "launcher=inline", "seed=range(1,9)"]
    (first,), report = submit("--gres=gpu:1", "study", *overrides)
    names = [line.split()[0] for line in (study / "manifest.txt").read_text().splitlines()]
    slurm.wait_until(lambda: has_evaluated(runs / names[0]), 60)
    slurm.preempt(f"{first}_0")
    slurm.wait_until(lambda: has_evaluated(runs / names[1]), 60)
    slurm.call("scancel", f"{first}_1")
    slurm.wait_until(lambda: f"{first}_4 RUNNING" in "\n".join(slurm.queue()) and has_evaluated(runs / names[4]), 120)
    node = slurm.call("squeue", "-h", "-r", "-o", "%N", "-j", f"{first}_4").strip()
    slurm.break_node(int(node[1:]))
    slurm.start_node(int(node[1:]))
    (second,), second_report = submit("--gres=gpu:1", "study")
    slurm.wait_until_idle(180)

    assert slurm.call("timetrial", "batch", "status", "study", "--pending") == ""
    assert sorted(os.listdir(runs)) == names
    for name in names:
        check_finished_run(runs / name, num_epochs=60)
    for name in (names[0], names[4]):
        record = read_record(runs / name)
        assert record.run_class == RunClass.RESUMED
        assert record.restarts >= 1
        assert 0 < record.training.active_seconds < record.training.seconds
        uninterrupted = reference_run("recipe.max_epochs=60", f"seed={int(name[0]) + 1}")
        assert read_quality(runs / name) == read_quality(uninterrupted)
    assert not (study / "attempts").exists()
    logs = {file.name: file.read_text() for file in (study / "logs").glob("*_*.txt")}
    assert "a checkpoint is written" in logs[f"{first}_0.txt"]
    second_logs = "".join(text for name, text in logs.items() if name.startswith(second))
    assert "nothing to do" in second_logs or "is in use by another process" in second_logs
    assert "8 done" in logs[f"report_{report}.txt"] + logs[f"report_{second_report}.txt"]
    page = (study / "report" / "report.html").read_text()
    assert "NCF" in page or "ncf" in page


def test_hardware_fault_moves_the_task_to_another_node(slurm, submit, tmp_path, monkeypatch):
    """A wrapper of the command simulates the fault by its exit code on one node."""
    real = next(path for path in map(Path, os.get_exec_path(slurm.environment)) if (path / "timetrial").exists())
    wrapper = tmp_path / "bin" / "timetrial"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\n[ "$SLURMD_NODENAME" = n1 ] && exit 33\nexec {real}/timetrial "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setitem(slurm.environment, "PATH", f"{wrapper.parent}:{slurm.environment['PATH']}")
    (job,), _ = submit("study", *TINY, "recipe.max_epochs=2")
    slurm.wait_until_idle(60)
    assert read_record(tmp_path / "study/runs/0").exit_code == Exit.TARGET_NOT_REACHED
    job_description = slurm.call("scontrol", "show", "job", f"{job}_0")
    assert "ExcNodeList=n1" in job_description
    assert " Restarts=1" in job_description


def test_preempted_run_on_two_nodes_equals_two_local_processes(slurm, submit, reference_run, tmp_path):
    overrides = ["recipe.max_epochs=40", "gpus=2"]
    (job,), _ = submit("--nodes=2", "study", *TINY, *overrides, "launcher=slurm")
    run_dir = tmp_path / "study/runs/0"
    slurm.wait_until(lambda: has_evaluated(run_dir), 60)
    slurm.preempt(f"{job}_0")
    slurm.wait_until_idle(120)
    record = read_record(run_dir)
    assert (record.exit_code, record.run_class, record.restarts) == (Exit.TARGET_NOT_REACHED, RunClass.RESUMED, 1)
    assert not list(run_dir.glob("error_*"))
    assert read_quality(run_dir) == read_quality(reference_run(*overrides))

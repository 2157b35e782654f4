"""The batch scripts on a real Slurm: what a person submits is complete in the end, whatever happens in between."""

import csv
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

TINY = [
    "accelerator=cpu",
    "recipe.data.generate={users: 200, items: 300, ratings: 6000, tastes: 4}",
    "recipe.data.eval_negatives=99",
    "recipe.global_batch_size=512",
    "recipe.target.v05.hit_rate=0.999",
    "checkpoint.every_seconds=0",
]


@pytest.fixture
def reference(slurm, tmp_path):
    """reference(*overrides) -> the folder of a run that nothing interrupts, here and now."""

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
    """submit(*words) -> the jobs' numbers, the report's last; all happens below tmp_path."""
    monkeypatch.chdir(tmp_path)

    def submitted(*words):
        done = subprocess.run(
            [root / "scripts/slurm/submit", *words], env=slurm.environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return re.findall(r"afterany:(\d+)", done.stderr), re.search(r"the report is job (\d+);", done.stdout)[1]

    return submitted


def begun(folder):
    return (folder / "quality.csv").exists()


def qualities(folder):
    rows = csv.DictReader((folder / "quality.csv").read_text().splitlines())
    return [(row["epoch"], row["samples"], row["loss"], row["hit_rate"]) for row in rows]


def status(folder):
    return json.loads((folder / "status.json").read_text())


def test_a_study_is_complete_in_the_end(slurm, submit, reference, tmp_path):
    """Eight runs: one is preempted, one cancelled, one loses its node, what is left then is submitted twice."""
    study, runs = tmp_path / "study", tmp_path / "study" / "runs"
    words = [*TINY, "recipe.max_epochs=60", "launcher=inline", "seed=range(1,9)"]
    (first,), report = submit("--gres=gpu:1", "study", *words)
    names = [line.split()[0] for line in (study / "manifest.txt").read_text().splitlines()]
    slurm.until(lambda: begun(runs / names[0]), 60)
    slurm.preempt(f"{first}_0")
    slurm.until(lambda: begun(runs / names[1]), 60)
    slurm.call("scancel", f"{first}_1")
    slurm.until(lambda: f"{first}_4 RUNNING" in "\n".join(slurm.queue()) and begun(runs / names[4]), 120)
    node = slurm.call("squeue", "-h", "-r", "-o", "%N", "-j", f"{first}_4").strip()
    slurm.break_node(int(node[1:]))
    slurm.start_node(int(node[1:]))
    (second,), again = submit("--gres=gpu:1", "study")
    slurm.until(lambda: not slurm.queue(), 180)

    assert slurm.call("timetrial", "batch", "status", "study", "--pending") == ""
    assert sorted(os.listdir(runs)) == names
    for name in names:
        told = status(runs / name)
        assert (told["state"], told["exit_code"], len(told["blocks"])) == ("target not reached", 10, 60), name
        assert len(list((runs / name).glob("result_*.txt"))) == 1
        assert "reaches the target" in "".join(told["verdict"]["problems"])
        assert len(told["verdict"]["problems"]) == 1, told["verdict"]
        selection = json.loads((runs / name / "system.json").read_text())["selection"]
        assert selection["CUDA_VISIBLE_DEVICES"] in ("0", "1"), name
    for name in (names[0], names[4]):
        told = status(runs / name)
        assert told["class"] == "resumed"
        assert told["restarts"] >= 1
        assert 0 < told["result"]["active_seconds"] < told["result"]["seconds"]
        assert qualities(runs / name) == qualities(reference("recipe.max_epochs=60", f"seed={int(name[0]) + 1}"))
    assert not (study / "attempts").exists()
    logs = {file.name: file.read_text() for file in (study / "logs").glob("*_*.txt")}
    assert "a checkpoint is written" in logs[f"{first}_0.txt"]
    told = "".join(text for name, text in logs.items() if name.startswith(second))
    assert "nothing to do" in told or "is being run by another process" in told
    assert "8 done" in logs[f"report_{report}.txt"] + logs[f"report_{again}.txt"]
    page = (study / "report" / "report.html").read_text()
    assert "NCF" in page or "ncf" in page


def test_a_faulty_device_sends_the_element_to_another_node(slurm, submit, tmp_path, monkeypatch):
    """No device is faulty here on demand: on one node the command is one that ends as if it were."""
    real = next(path for path in map(Path, os.get_exec_path(slurm.environment)) if (path / "timetrial").exists())
    stand_in = tmp_path / "bin" / "timetrial"
    stand_in.parent.mkdir()
    stand_in.write_text(f'#!/bin/sh\n[ "$SLURMD_NODENAME" = n1 ] && exit 33\nexec {real}/timetrial "$@"\n')
    stand_in.chmod(0o755)
    monkeypatch.setitem(slurm.environment, "PATH", f"{stand_in.parent}:{slurm.environment['PATH']}")
    (job,), _ = submit("study", *TINY, "recipe.max_epochs=2")
    slurm.until(lambda: not slurm.queue(), 60)
    assert status(tmp_path / "study/runs/0")["exit_code"] == 10
    shown = slurm.call("scontrol", "show", "job", f"{job}_0")
    assert "ExcNodeList=n1" in shown
    assert " Restarts=1" in shown


def test_a_run_over_two_nodes_is_preempted_and_equals_one_over_two_processes(slurm, submit, reference, tmp_path):
    words = ["recipe.max_epochs=40", "gpus=2"]
    (job,), _ = submit("--nodes=2", "study", *TINY, *words, "launcher=slurm")
    run = tmp_path / "study/runs/0"
    slurm.until(lambda: begun(run), 60)
    slurm.preempt(f"{job}_0")
    slurm.until(lambda: not slurm.queue(), 120)
    told = status(run)
    assert (told["exit_code"], told["class"], told["restarts"]) == (10, "resumed", 1)
    assert not list(run.glob("error_*"))
    assert qualities(run) == qualities(reference(*words))


def test_a_sweep_through_submitit(slurm, tmp_path):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    words = ["-m", "hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=5", *TINY, "recipe.max_epochs=2"]
    done = subprocess.run(
        ["timetrial", "run", *words, "seed=1,2"],
        env=slurm.environment, cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 10, done.stdout + done.stderr
    assert "sweep of 2 runs" in done.stdout
    assert len(list((tmp_path / "runs").rglob("result_*.txt"))) == 2

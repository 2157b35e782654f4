"""The recipes of deploy/: their commands parse and compose, and the wrappers of Slurm's jobs run a study."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from timetrial.runner.cli.app import app
from timetrial.runner.config.validation import validate
from timetrial.runner.core.errors import Exit
from timetrial.runner.record.record_file import read_record

IMAGE_TOOLS = {  # commands that run another one in an image: the options before it are dropped
    "apptainer": 'while [ "$1" != timetrial ]; do shift; done; exec "$@"',
    "srun": 'echo "$@" >> srun.txt; while [ "$1" != timetrial ]; do shift; done; exec "$@"',
    "enroot": 'while [ "$1" != sh ]; do shift; done; exec "$@"',
}


@pytest.fixture
def job(root):
    """The Kubernetes Job."""
    return yaml.safe_load((root / "deploy/kubernetes_job.yaml").read_text())


@pytest.fixture
def container(job):
    """The container of a pod."""
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return container


def test_commands_in_comments_parse(root):
    lines = [
        line.removeprefix("#").strip()
        for path in (root / "deploy").rglob("*")
        if path.is_file()
        for line in path.read_text().splitlines()
        if line.startswith("#     ")
    ]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("timetrial ")]
    assert commands
    for words in commands:
        typer.main.get_command(app).commands[words[0]].make_context(
            None, [word for word in words[1:] if "=" not in word]
        )
    scripts = {word for line in lines for word in re.findall(r"(?<![\w/])(?:scripts|deploy)/[\w./]+", line)}
    assert {name for name in scripts if not (root / name).exists()} == set()


def test_pod_runs_one_seed_that_can_be_resumed(container, job, compose):
    assert container["command"] == ["timetrial"]
    command, *overrides = [word.replace("$(SEED)", "3") for word in container["args"]]
    assert command == "run"
    config = validate(compose(*overrides))
    assert (config.seed, config.resume, config.run_dir, config.gpus) == (3, True, "runs/seed_3", 1)
    assert config.system == "h100-cluster"  # not the host name of the pod
    assert job["spec"]["completionMode"] == "Indexed"
    (seed,) = container["env"]
    assert seed["valueFrom"]["fieldRef"]["fieldPath"].endswith("['batch.kubernetes.io/job-completion-index']")


def test_pod_is_started_again_only_where_that_can_help(job):
    codes = {
        code: rule["action"]
        for rule in job["spec"]["podFailurePolicy"]["rules"]
        for code in rule.get("onExitCodes", {}).get("values", [])
    }
    assert codes[Exit.STOPPED] == "Ignore"
    assert set(codes) <= set(map(int, Exit))
    others = {Exit.TARGET_REACHED, Exit.STOPPED, Exit.NOT_ACCEPTED}  # the last is of no run
    again = {Exit.OUT_OF_MEMORY, Exit.LOST_RANK, Exit.HARDWARE, Exit.DISK_FULL, Exit.FAILURE, Exit.TIME_LIMIT}
    assert {Exit(code) for code, action in codes.items() if action == "FailIndex"} == set(Exit) - again - others


def test_pod_has_the_folders_of_the_image(container, root):
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    image = (root / "deploy/Dockerfile").read_text()
    assert mounts == {re.findall(r"^WORKDIR (.+)$", image, re.M)[-1], "/dev/shm"}
    assert re.search(r'^ENTRYPOINT \["timetrial"\]$', image, re.M)


def test_both_images_install_the_same(root):
    def install(name):
        text = re.sub(r"\\\n", " ", (root / "deploy" / name).read_text())
        text = text.replace('"${TORCH_BACKEND}"', "{{ TORCH_BACKEND }}")
        lines = re.findall(r"((?:pip install|apt-get install|uv pip).*?)(?:&&|$)", text, re.M)
        base, backend = re.search(r"python:\S+", text)[0], re.search(r"TORCH_BACKEND=(\w+)$", text, re.M)[1]
        return base, backend, [" ".join(line.split()) for line in lines]

    assert install("Dockerfile") == install("timetrial.def")
    assert len(install("Dockerfile")[2]) == 3


@pytest.mark.integration
@pytest.mark.parametrize("wrapper", ["apptainer", "pyxis"])
def test_study_runs_in_an_image(wrapper, root, tmp_path, tiny_ncf):
    """The image is this environment: the commands that enter one are replaced, and nothing else."""
    folders = [tmp_path / "bin", tmp_path / "tools", tmp_path / "image"]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "timetrial").symlink_to(root / "deploy/slurm" / wrapper)
    # In an image, timetrial is not the wrapper: the tools put it first.
    (folders[2] / "timetrial").symlink_to(Path(sys.executable).parent / "timetrial")
    for name, script in IMAGE_TOOLS.items():
        tool = folders[1] / name
        tool.write_text(f'#!/bin/sh\nPATH="{folders[2]}:$PATH"\n{script}\n')
        tool.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    environment |= {"PATH": ":".join(map(str, [*folders[:2], os.environ["PATH"]])), "TIMETRIAL_IMAGE": "image"}
    target = ["recipe.global_batch_size=2048", "recipe.target.v05.hit_rate=0.2", "launcher=inline"]

    def call(*command, **variables):
        return subprocess.run(command, env=environment | variables, cwd=tmp_path, capture_output=True, text=True)

    planned = call("timetrial", "batch", "plan", "study", *tiny_ncf, *target, "seed=1")
    assert planned.returncode == 0, planned.stderr
    done = call(str(root / "scripts/slurm/study.sbatch"), "study", SLURM_JOB_ID="7")
    assert done.returncode == 0, done.stdout + done.stderr
    (run_dir,) = (tmp_path / "study/runs").iterdir()
    assert read_record(run_dir).state == "target reached"
    assert (tmp_path / "srun.txt").exists() is (wrapper == "pyxis")

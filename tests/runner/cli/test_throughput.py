"""`timetrial throughput`: its defaults, its help, and what it prints."""

import json
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from timetrial.runner.cli.throughput import announce, default_overrides
from timetrial.runner.config.compose import compose

SMALL = ["throughput.steps=2", "throughput.blocks=2"]


def timetrial(folder, *arguments):
    command = [sys.executable, "-P", "-m", "timetrial", "throughput", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["throughput.steps=20", "data=synthetic"]),
        (["workload=cifar10", "data=torch"], ["throughput.steps=20"]),
        (["workload=resnet50", "engine=tensorflow"], ["throughput.steps=20"]),
        (["workload=ssd", "throughput.steps=3"], ["data=synthetic"]),
    ],
)
def test_data_are_synthetic_unless_chosen(arguments, expected):
    assert default_overrides(arguments) == expected


@pytest.mark.parametrize(
    "workload", ["cifar10", "cnn", "gnmt", "gpt", "maskrcnn", "ncf", "resnet50", "ssd", "transformer"]
)
def test_every_workload_composes_with_its_defaults_at_the_embedded_scale(workload, capsys):
    overrides = [f"workload={workload}"]
    node = compose(["accelerator=cpu", *default_overrides(overrides), *overrides]).node
    assert node.recipe.scale == "embedded"
    announce(node)
    line = capsys.readouterr().out
    assert f"scale embedded, batch {node.recipe.global_batch_size}, 1 x cpu" in line
    assert "5 blocks of 20 steps" in line


def test_expected_time_is_of_known_runs_on_such_a_device(capsys):
    node = compose(["accelerator=cpu", "throughput.steps=20", "workload=maskrcnn"]).node
    announce(node)  # three known runs took 4 epochs and 60 s
    assert capsys.readouterr().out.endswith("about 75 s by known runs on 1 CPU core\n")
    announce(OmegaConf.merge(node, {"accelerator": {"name": "h100"}}))
    assert "time is unknown until the first block" in capsys.readouterr().out


@pytest.mark.integration
def test_help_is_of_throughput(tmp_path):
    text = timetrial(tmp_path, "--help").stdout
    assert text.startswith("timetrial throughput: measure training and evaluation speed")
    assert "timetrial throughput -m workload=NAME" in text
    assert "timetrial run" not in text
    assert "train one workload" not in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.integration
def test_prints_its_size_first_and_each_block_or_json_alone(tiny_ncf, tmp_path):
    shown = timetrial(tmp_path, *tiny_ncf, *SMALL)
    assert shown.returncode == 0, shown.stderr
    lines = (shown.stdout + shown.stderr).splitlines()
    assert shown.stdout.startswith("NCF, scale embedded, batch")
    assert [line.partition(":")[0] for line in lines if line.startswith("block")] == ["block 1 of 2", "block 2 of 2"]
    printed = timetrial(tmp_path, *tiny_ncf, *SMALL, "--json", "-m", "seed=1,2")
    assert printed.returncode == 0, printed.stderr
    entries = json.loads(printed.stdout)
    assert [entry["overrides"][-1] for entry in entries] == ["seed=1", "seed=2"]
    assert all(entry["numbers"]["samples_per_second"] > 0 for entry in entries)
    assert "sweep of 2 runs" in printed.stderr


@pytest.mark.integration
@pytest.mark.parametrize("launcher", [[], ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]])
def test_each_run_of_a_sweep_has_the_workload_of_its_recipe(tmp_path, launcher):
    if launcher:
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    words = ["launcher=inline", "accelerator=cpu", "recipe=ncf/embedded,gpt/embedded", *SMALL]
    printed = timetrial(tmp_path, *words, *launcher, "--json", "-m")
    assert printed.returncode == 0, printed.stderr
    overrides = [entry["overrides"] for entry in json.loads(printed.stdout)]
    assert [{"workload=ncf", "workload=gpt"} & {*words} for words in overrides] == [{"workload=ncf"}, {"workload=gpt"}]

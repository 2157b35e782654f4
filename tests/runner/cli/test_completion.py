"""Completion in bash and zsh: the words that the shell may put in place of an incomplete override."""

import shlex
import shutil
import subprocess
import sys

import pytest

from timetrial.runner.cli.main import run_command
from timetrial.runner.launch.rank_pool import RankPool


@pytest.fixture
def complete(monkeypatch, capsys):
    def complete_last(*words):
        monkeypatch.setenv("_TIMETRIAL_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "\n".join(["timetrial", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        assert run_command([], RankPool()) == 0
        return capsys.readouterr().out.split()

    return complete_last


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "workload", "=", "c"], ["cifar10", "cnn"]),  # bash splits at "="
        (["run", "workload=c"], ["workload=cifar10", "workload=cnn"]),
        (["run", "-m", "workload", "=", "ncf,res"], ["ncf,resnet50"]),
        (["run", "seed=3", "scale="], ["scale=embedded", "scale=mini", "scale=reference"]),
        (["run", "scale", "="], ["embedded", "mini", "reference"]),
        (["run", "recipe", "=", "ncf/re"], ["ncf/reference", "ncf/reference_2048"]),
        (["throughput", "sca"], ["scale=embedded", "scale=mini", "scale=reference"]),
        (["estimate", "pre"], ["precision=bf16", "precision=fp16", "precision=fp32", "precision=tf32"]),
        (["batch", "plan", "study", "seeds.d"], ["seeds.data_order=", "seeds.dropout="]),
        (["run", "gp"], ["gpus=", "gpus=VALUE"]),  # two words keep the shell from adding a space
        (["run", "nothing=x"], []),
        (["ru"], ["run"]),
        (["compare", "--ma"], ["--margin"]),
    ],
)
def test_completes_the_last_word(words, expected, complete):
    assert complete(*words) == expected


@pytest.mark.integration
@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_script_of_show_completion_works_in_bash(tmp_path):
    command = shlex.join([sys.executable, "-P", "-m", "timetrial"])
    (tmp_path / "timetrial").write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    (tmp_path / "timetrial").chmod(0o755)
    script = (
        'PATH="$PWD:$PATH"; source <(timetrial --show-completion bash); COMP_WORDS=(timetrial run scale = m); '
        'COMP_CWORD=4; _timetrial_completion timetrial; echo "${COMPREPLY[*]}"'
    )
    completed = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert completed.stdout == "mini\n", completed.stderr

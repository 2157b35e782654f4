"""The batch script of `timetrial accept`, with a command of that name that writes its arguments."""

import os
import re
import subprocess

import pytest


@pytest.fixture
def run(root, tmp_path):
    """run(exit code of the nodes, *arguments) -> (exit code, calls of timetrial)."""
    fake = tmp_path / "bin" / "timetrial"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "$@"\ncase $2 in --out) exit "$CODE" ;; esac\n')
    fake.chmod(0o755)

    def call(code, *arguments):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        environment |= {"PATH": f"{fake.parent}:{environment['PATH']}", "CODE": str(code)}
        command = [root / "scripts/slurm/accept", *arguments]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines()

    return call


def test_measures_and_then_ranks(run):
    code, calls = run(0, "my results", "--minutes", "1")
    assert code == 0
    measured, ranked = calls
    out = re.escape(f"my results/{os.uname().nodename}/")
    assert re.fullmatch(rf"accept --out {out}\d{{8}}-\d{{6}} --minutes 1", measured)
    assert ranked == "accept --compare my results"


def test_nodes_are_ranked_after_a_failure_and_its_code_is_kept(run):
    code, calls = run(41, "results")
    assert code == 41
    assert calls[-1] == "accept --compare results"


def test_without_a_folder_it_explains_itself(run):
    assert run(0)[0] == 20
    assert run(0, "--minutes=1", "results")[0] == 20

"""`timetrial accept` on this machine, with a bit flipped in a weight; acceptances in later runs."""

import html
import json
import os
import re
import subprocess
import sys

import pytest

from timetrial.runner.benchmarks.accept import document
from timetrial.runner.benchmarks.accept.figures import Line, State
from timetrial.runner.benchmarks.accept.node import Findings
from timetrial.runner.benchmarks.accept.replay import FLIP_VARIABLE
from timetrial.runner.benchmarks.accept.workloads import read_workloads
from timetrial.runner.cli.main import run_command
from timetrial.runner.core.errors import ConfigurationError
from timetrial.runner.launch.rank_pool import RankPool
from timetrial.runner.record import environment
from timetrial.runner.record.acceptance import find_acceptance
from timetrial.runner.results.report.folder_comparison import compare_folders


@pytest.mark.e2e
def test_every_part_has_a_line_and_a_flipped_bit_fails_with_its_step_and_tensor(tmp_path):
    # A tensor that only one of the workloads has.
    tensor = "layers.0.qkv.weight"
    variables = {FLIP_VARIABLE: f"2/3/{tensor}", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-P", "-m", "timetrial", "accept", "--minutes", "0.1", "--json"]
    command += ["--out", str(tmp_path / "result"), "--data-dir", str(tmp_path)]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 41, done.stderr
    shown = json.loads(done.stdout)
    stored = json.loads((tmp_path / "result" / "accept.json").read_text())
    assert shown == stored | {"path": str(tmp_path / "result" / "accept.json")}
    assert stored["result"] == "FAIL"
    page = html.unescape((tmp_path / "result" / "accept.html").read_text())
    assert all(line["message"] in page for line in stored["lines"])
    failed = [line for line in stored["lines"] if line["state"] == "FAIL" and line["part"] == "replay"]
    assert [re.search(r"repeat 2 differs .* step 3, (.*)", line["message"])[1] for line in failed] == [tensor]
    parts = {line["part"] for line in stored["lines"]}
    assert {"doctor", "cores", "all-reduce", "memory copy", "host memory copy", "matrix product fp32"} <= parts
    assert sum(part.startswith("training ") for part in parts) == len(read_workloads())
    for line in stored["lines"]:
        assert line["message"]
        assert bool(line["remedy"]) == (line["state"] != "PASS")
    assert {"training", "replay", "host", "together"} <= stored["seconds"].keys()
    assert not list(tmp_path.glob(".timetrial_*"))  # the files that were read
    assert find_acceptance(stored["system"]) is None


def write(state, folder):
    content = document.to_document(Findings([Line(state, "part", "GPU 0", "a sentence", "a remedy")]), folder, 1.0)
    document.write_document(content, folder)
    return content


def test_a_machine_that_passed_is_named_in_later_records_until_it_fails(launch, tmp_path):
    runs = tmp_path / "runs"
    launch(f"run_dir={runs}/before", "seed=1")
    passed = write(State.WARN, tmp_path / "accept" / "20260131-1")
    _, run_dir = launch(f"run_dir={runs}/after", "seed=1")
    accepted = run_dir.record().accepted
    assert (accepted.id, accepted.date) == ("20260131-1", passed["date"])
    write(State.FAIL, tmp_path / "accept" / "20260131-2")
    assert find_acceptance(environment.describe()) is None
    compare = ["compare", str(runs / "before"), str(runs / "after"), "--json"]
    (comparison,) = compare_folders([runs / "before", runs / "after"], 0.05)
    from timetrial.runner.results.report import comparison_text

    never = [reason for reason in comparison_text.reasons(comparison) if "never accepted" in reason]
    assert [reason.startswith("1 of 1 runs of ") for reason in never] == [True]
    assert comparison.baseline.title in never[0]
    assert run_command(compare, RankPool()) == 0


def test_comparisons_do_not_ask_for_an_acceptance_that_nobody_has(launch, tmp_path, capsys):
    for name in ("a", "b"):
        launch(f"run_dir={tmp_path}/runs/{name}", "throughput.steps=2", "throughput.blocks=2", "data=synthetic")
    compare = ["compare", f"{tmp_path}/runs/a", f"{tmp_path}/runs/b", "--json"]
    assert run_command(compare, RankPool()) == 0
    assert "accepted" not in capsys.readouterr().out
    write(State.PASS, tmp_path / "accept" / "20260131-1")
    launch(f"run_dir={tmp_path}/runs/c", "throughput.steps=2", "throughput.blocks=2", "data=synthetic")
    assert run_command([*compare[:2], f"{tmp_path}/runs/c", "--json"], RankPool()) == 0
    (comparison,) = json.loads(capsys.readouterr().out)
    assert sum("1 of 1 runs of" in text and "never accepted" in text for text in comparison["differences"]) == 1


@pytest.mark.parametrize(
    ("options", "words"), [(["--minutes", "0"], "no duration"), (["--baseline", "h1000"], "no accelerator config")]
)
def test_wrong_options_are_refused_before_anything_is_measured(options, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_command(["accept", *options], RankPool()) == ConfigurationError.exit_code
    assert words in capsys.readouterr().err
    assert not list(tmp_path.glob("runs"))


def test_every_accepted_workload_composes(compose):
    for workload in read_workloads():
        for overrides in (workload.gpu, workload.cpu):
            assert compose("data=synthetic", *overrides).recipe.global_batch_size

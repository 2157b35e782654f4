"""The command as a person types it."""

import json
import os
import pty
import re
import subprocess
import sys

import pytest

from timetrial.runner.core.errors import Exit

TINY = [
    "recipe.data.generate={num_users: 200, num_items: 300, num_ratings: 6000, num_clusters: 4}",
    "recipe.data.eval_negatives=99",
    "recipe.global_batch_size=512",
    "recipe.target.v05.hit_rate=0.2",
]


def timetrial(folder, *words):
    command = [sys.executable, "-P", "-m", "timetrial", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_help_reads_like_the_readme(tmp_path):
    assert "run" in timetrial(tmp_path, "--help").stdout
    shown = timetrial(tmp_path, "run", "--help").stdout
    assert "workload: cifar10, cnn, gnmt, maskrcnn, ncf, resnet50, ssd, transformer" in shown
    assert "recipe/ncf: embedded" in shown
    assert "Examples" in shown


def test_cfg_job_prints_and_runs_nothing(tmp_path):
    shown = timetrial(tmp_path, "run", "accelerator=cpu", "seed=7", "--cfg", "job")
    assert shown.returncode == 0
    assert "seed: 7" in shown.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["run", "accelerator=cpu", "nonsense=1"], Exit.CONFIGURATION, "nonsense"),
        (["run", "accelerator=cpu", "seed=one"], Exit.CONFIGURATION, "'one'.*could not be converted to Integer"),
        (["run", "accelerator=cpu", "round=v07"], Exit.CONFIGURATION, "not part of MLPerf round v07"),
        (["run", "accelerator=cpu", "--wrong"], Exit.CONFIGURATION, "--wrong"),
        (["run", "-m", "hydra/launcher=submitit_slurm", "seed=1,2"], Exit.CONFIGURATION, "name their GPU"),
        (["rum"], Exit.CONFIGURATION, "rum"),
        (["run", "accelerator=h200", "gpus=99"], Exit.DEVICE, "use (accelerator=cpu|gpus=)"),
        (["run", "accelerator=cpu", "scale=reference"], Exit.DATA, "ml-20m/ratings.csv is missing"),
        (["check", "absent.txt"], Exit.DATA, "absent.txt is no log"),
    ],
)
def test_a_wrong_argument_is_one_sentence_and_its_code(tmp_path, words, code, said):
    import re

    done = timetrial(tmp_path, *words)
    assert done.returncode == code, done.stderr
    assert re.search(said, done.stderr), done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    if words[0] == "run" and "--wrong" not in words:
        assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("launcher", [[], ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]])
def test_a_sweep_runs_all_and_keeps_going(tmp_path, launcher):
    if launcher:
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    words = ["-m", "accelerator=cpu", "launcher=inline", *TINY, "seed=1,2", "round=v05,v07", "recipe.max_epochs=12"]
    done = timetrial(tmp_path, "run", *words, *launcher)
    assert done.returncode == Exit.CONFIGURATION, done.stdout + done.stderr
    assert "sweep of 4 runs" in done.stdout
    assert "Traceback" not in done.stderr
    (summary,) = (tmp_path / "runs").rglob("sweep.json")
    assert [run["exit_code"] for run in json.loads(summary.read_text())["runs"]] == [0, 20, 0, 20]
    assert len(list((tmp_path / "runs").rglob("result_*.txt"))) == 2


def test_check_reads_logs_and_folders(tmp_path):
    done = timetrial(
        tmp_path, "run", "accelerator=cpu", "launcher=inline", *TINY, "run_dir=one", "recipe.max_epochs=12"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    good = timetrial(tmp_path, "check", "one")
    assert (good.returncode, "complies (0.7.0 keys, own target)" in good.stdout) == (0, True)
    log = tmp_path / "one" / "result_1.txt"
    log.write_text("\n".join(line for line in log.read_text().splitlines() if "run_stop" not in line))
    bad = timetrial(tmp_path, "check", str(log))
    assert bad.returncode == Exit.NOT_COMPLIANT
    assert "The line run_stop is missing: it stops the clock" in bad.stdout


def test_a_person_at_a_terminal_sees_a_bar(tmp_path):
    checkpointer, terminal = pty.openpty()
    words = ["run", "accelerator=cpu", *TINY, "recipe.target.v05.hit_rate=0.99", "recipe.max_epochs=60"]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "timetrial", *words],
        cwd=tmp_path,
        stdout=terminal,
        stderr=terminal,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"},
    )
    os.close(terminal)
    seen = b""
    while True:
        try:
            piece = os.read(checkpointer, 65536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    os.close(checkpointer)
    assert process.wait(60) == Exit.TARGET_NOT_REACHED
    text = seen.decode()
    assert re.search(r"(epoch|evaluating) \d+/60", text)
    assert "hit_rate" in text
    assert "censored" in text

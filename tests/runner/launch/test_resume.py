"""Runs that are stopped and resumed, and run directories that cannot be."""

import csv
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from timetrial.runner.core.errors import ConfigurationError, DataError, Exit, RunError
from timetrial.runner.record import environment
from timetrial.runner.record.run_dir import RunDir
from timetrial.runner.training import checkpoint
from timetrial.workloads.ncf.data import NCFData

pytestmark = pytest.mark.integration


def quality_rows(run_dir):
    rows = csv.DictReader((run_dir / "quality.csv").read_text().splitlines())
    return [(row["epoch"], row["loss"], row["hit_rate"]) for row in rows]


def handles_signal(pid, number):
    """Return whether a process has a handler for the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return int(caught, 16) >> (number - 1) & 1


def test_rejects_second_run_in_one_directory(launch, tmp_path):
    launch(f"run_dir={tmp_path}/one")
    before = (tmp_path / "one" / "status.json").read_bytes()
    with pytest.raises(ConfigurationError, match="already holds a run"):
        launch(f"run_dir={tmp_path}/one")
    assert (tmp_path / "one" / "status.json").read_bytes() == before


def test_resuming_a_finished_run_does_nothing(launch, tmp_path):
    exit_code, run_dir = launch(f"run_dir={tmp_path}/one", "resume=true")
    log = run_dir.log.read_bytes()
    assert launch(f"run_dir={tmp_path}/one", "resume=true")[0] == exit_code
    assert run_dir.log.read_bytes() == log


def test_rejects_resume_with_another_configuration(launch, tmp_path):
    launch(f"run_dir={tmp_path}/one")
    with pytest.raises(ConfigurationError, match=r"another configuration \(precision.name\)"):
        launch(f"run_dir={tmp_path}/one", "resume=true", "precision=bf16")
    changes = [f"recipe.training.{name}=0.5" for name in ("beta_1", "beta_2", "epsilon", "learning_rate")]
    shown = "precision.name, recipe.training.beta_1, recipe.training.beta_2, recipe.training.epsilon and 1 more"
    with pytest.raises(ConfigurationError, match=shown):
        launch(f"run_dir={tmp_path}/one", "resume=true", "precision=bf16", *changes)


@pytest.mark.parametrize(("number", "gpus"), [(signal.SIGTERM, 1), (signal.SIGUSR1, 2), (signal.SIGINT, 1)])
def test_resumed_run_equals_uninterrupted_run(run_to_end, start_endless, tmp_path, number, gpus):
    run_dir = tmp_path / "run"
    process = start_endless(run_dir, f"gpus={gpus}")
    process.send_signal(number)
    output = process.communicate(timeout=600)[0]
    assert process.returncode == Exit.STOPPED, output
    assert f"run_dir={run_dir} resume=true" in output
    record = RunDir(run_dir, 1).record()
    assert (record.state, record.exit_code, record.training.reached) == ("stopped", 12, False)
    assert record.error == f"Stopped by {number.name}; a checkpoint is written."
    assert record.verdict.summary == "stopped, not judged", record.verdict
    # Two epochs beyond the checkpoint, so that the resumed run trains more than the interrupted epoch.
    epochs = checkpoint.load_checkpoint(run_dir / "checkpoint" / "checkpoint.pt")["completed_epochs"] + 2
    overrides = ["recipe.target.v05.hit_rate=0.999", f"gpus={gpus}"]
    config = run_dir / "config.yaml"
    config.write_text(config.read_text().replace("max_epochs: 2000", f"max_epochs: {epochs}"))
    resumed = run_to_end(f"run_dir={run_dir}", "resume=true", f"recipe.max_epochs={epochs}", *overrides)
    assert resumed.returncode == Exit.TARGET_NOT_REACHED, resumed.stdout + resumed.stderr
    uninterrupted = run_to_end(f"run_dir={tmp_path}/uninterrupted", f"recipe.max_epochs={epochs}", *overrides)
    assert uninterrupted.returncode == Exit.TARGET_NOT_REACHED, uninterrupted.stdout + uninterrupted.stderr
    assert quality_rows(run_dir) == quality_rows(tmp_path / "uninterrupted")  # the interrupted epoch included
    record = RunDir(run_dir, 1).record()
    assert (record.run_class, record.restarts) == ("resumed", 1)
    assert ["resume=true" in attempt.overrides for attempt in record.attempts] == [False, True]
    assert record.training.lost_seconds > 0
    assert record.training.active_seconds < record.training.seconds
    assert record.verdict.summary == "complies, not converged", record.verdict


def test_resume_inside_a_block_of_several_epochs(launch, tmp_path, monkeypatch):
    """Signals interrupt blocks of three epochs, in each of their epochs, until the run ends."""
    from timetrial.workloads.ncf.workload import NCF

    blocks = [
        "recipe.eval_every_epochs=3",
        "recipe.first_eval_epoch=3",
        "recipe.max_epochs=9",
        "recipe.target.v05.hit_rate=0.999",
        "recipe.global_batch_size=512",
    ]
    compute_loss, steps = NCF.compute_loss, []

    def stop_after_many_steps(self, *inputs):
        steps.append(0)
        if len(steps) == steps_per_attempt:
            os.kill(os.getpid(), signal.SIGTERM)
        return compute_loss(self, *inputs)

    monkeypatch.setattr(NCF, "compute_loss", stop_after_many_steps)
    steps_per_attempt = 0
    uninterrupted = launch(*blocks)[1]
    steps_per_attempt = len(steps) // 7  # a little more than an epoch
    codes = []
    while len(codes) < 10 and set(codes) <= {Exit.STOPPED}:
        steps.clear()
        code, resumed = launch(*blocks, f"run_dir={tmp_path}/resumed", "resume=true")
        codes.append(code)
    assert codes == [Exit.STOPPED] * 7 + [Exit.TARGET_NOT_REACHED]
    assert quality_rows(resumed.path) == quality_rows(uninterrupted.path)
    samples = [[block.samples for block in run_dir.record().training.blocks] for run_dir in (resumed, uninterrupted)]
    assert samples[0] == samples[1]
    assert resumed.record().verdict.summary == "complies, not converged", resumed.record().verdict


def test_stop_signal_in_the_final_evaluation_keeps_the_target_reached(launch, monkeypatch):
    from timetrial.workloads.ncf.workload import NCF

    score = NCF.score

    def score_after_stop_signal(self, parts):
        os.kill(os.getpid(), signal.SIGTERM)
        return score(self, parts)

    monkeypatch.setattr(NCF, "score", score_after_stop_signal)
    code, run_dir = launch("recipe.target.v05.hit_rate=0.01")
    assert code == Exit.TARGET_REACHED
    assert run_dir.record().verdict.compliant


@pytest.mark.parametrize(
    ("damage", "code", "message"),
    [
        (lambda run_dir: (run_dir / "checkpoint/checkpoint.pt").write_bytes(b"x"), Exit.DATA, "delete it to start"),
        (lambda run_dir: (run_dir / "result_1.txt").write_text(""), Exit.DATA, "result_1.txt"),
        (lambda run_dir: (run_dir / "status.json").write_text("{"), Exit.DATA, "status.json cannot be read"),
        (lambda run_dir: (run_dir / "config.yaml").unlink(), Exit.CONFIGURATION, "lost its config.yaml"),
    ],
)
def test_rejects_damaged_run_directory_and_leaves_it_unchanged(launch, tmp_path, damage, code, message):
    run = [f"run_dir={tmp_path}/run", "recipe.target.v05.hit_rate=0.999", "recipe.max_epochs=100000"]
    assert launch(*run, "time_limit_seconds=0.5")[0] == Exit.TIME_LIMIT
    damage(tmp_path / "run")
    names = sorted(path.name for path in (tmp_path / "run").rglob("*"))
    try:
        exit_code, run_dir = launch(*run, "resume=true")
        sentence = run_dir.record().error
    except RunError as error:
        exit_code, sentence = error.exit_code, str(error)
    assert exit_code == code
    assert message in sentence
    assert sorted(path.name for path in (tmp_path / "run").rglob("*")) == names


def test_rejects_directory_of_a_running_run(run_to_end, start_endless, tmp_path):
    process = start_endless(tmp_path / "run")
    endless = ["recipe.target.v05.hit_rate=0.999", "recipe.max_epochs=2000"]
    second = run_to_end(f"run_dir={tmp_path}/run", "resume=true", *endless)
    assert second.returncode == Exit.CONFIGURATION
    assert "is in use by another process" in second.stderr
    assert process.poll() is None
    process.terminate()
    process.communicate(timeout=600)
    assert process.returncode == Exit.STOPPED


def test_stop_signal_before_training_leaves_no_log(command, tmp_path):
    process = subprocess.Popen(command(), cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while not handles_signal(process.pid, signal.SIGTERM):
        time.sleep(0.01)
    process.terminate()
    output = process.communicate(timeout=600)[1]
    assert process.returncode == Exit.STOPPED, output
    assert "run it again" in output
    assert not list((tmp_path / "runs").rglob("result_*"))


@pytest.mark.parametrize("epoch", [1, 2])
def test_stop_within_an_evaluation_is_resumed_with_that_evaluation(launch, tmp_path, monkeypatch, epoch):
    overrides = ["recipe.target.v05.hit_rate=0.999", "recipe.max_epochs=3"]
    _, uninterrupted = launch(*overrides, f"run_dir={tmp_path}/uninterrupted")
    eval_batches, evaluations = NCFData.eval_batches, []

    def stopping_batches(self):
        evaluations.append(self)
        for batch in eval_batches(self):
            if len(evaluations) == epoch:
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch

    monkeypatch.setattr(NCFData, "eval_batches", stopping_batches)
    code, run_dir = launch(*overrides, f"run_dir={tmp_path}/run")
    assert code == Exit.STOPPED
    assert checkpoint.load_checkpoint(run_dir.checkpoint)["evaluation_pending"]
    code, run_dir = launch(*overrides, f"run_dir={tmp_path}/run", "resume=true")
    assert code == Exit.TARGET_NOT_REACHED
    blocks = run_dir.record().training.blocks
    expected = uninterrupted.record().training.blocks
    assert [(block.first_epoch, block.samples, block.loss, block.quality) for block in blocks] == [
        (block.first_epoch, block.samples, block.loss, block.quality) for block in expected
    ]
    assert run_dir.record().verdict.compliant


@pytest.mark.parametrize("content", [None, ""])
def test_resume_that_fails_before_its_first_result_keeps_the_directory(launch, tmp_path, content):
    """It was once emptied, with the user's files; an empty status.json is what a power failure leaves."""
    run = [f"run_dir={tmp_path}/run", "recipe.target.v05.hit_rate=0.999", "recipe.max_epochs=100000", "resume=true"]
    assert launch(*run, "time_limit_seconds=0.5")[0] == Exit.TIME_LIMIT
    (tmp_path / "run" / "notes.txt").write_text("mine")
    RunDir(tmp_path / "run", 1).update(lambda record: replace(record, training=None, exit_code=None))
    if content is not None:
        (tmp_path / "run" / "status.json").write_text(content)
    (tmp_path / "run" / "checkpoint" / "checkpoint.pt").write_bytes(b"x")
    names = {path.name for path in (tmp_path / "run").rglob("*")}
    with pytest.raises(RunError, match="delete it to start"):
        launch(*run)
    assert {path.name for path in (tmp_path / "run").rglob("*")} >= names
    assert RunDir(tmp_path / "run", 1).record().exit_code == Exit.DATA


def stopped_run(launch, tmp_path):
    """Return the overrides of a run that was stopped at its time limit, and its directory."""
    run = [f"run_dir={tmp_path}/run", "recipe.target.v05.hit_rate=0.999", "recipe.max_epochs=100000", "resume=true"]
    run += ["time_limit_seconds=0.5"]
    exit_code, run_dir = launch(*run)
    assert exit_code == Exit.TIME_LIMIT
    return run, run_dir


def test_rejects_resume_over_other_data(launch, tmp_path):
    """Held-out items had been trained on, and the target came two epochs early."""
    run, run_dir = stopped_run(launch, tmp_path)
    (ratings,) = (tmp_path / "data" / "embedded").rglob("ratings-*.csv")
    lines = ratings.read_text().splitlines(keepends=True)
    ratings.write_text("".join([lines[0], *sorted(lines[1:])]))
    before = run_dir.checkpoint.read_bytes()
    with pytest.raises(DataError, match=r"have changed since .*run began: restore them"):
        launch(*run)
    assert run_dir.checkpoint.read_bytes() == before
    ratings.write_text("".join(lines))
    assert launch(*run)[0] == Exit.TIME_LIMIT


def test_attempts_with_other_software_are_flagged(launch, tmp_path, monkeypatch):
    run, run_dir = stopped_run(launch, tmp_path)
    assert run_dir.record().changed == ()
    describe = environment.describe
    monkeypatch.setattr(environment, "describe", lambda **paths: describe(**paths) | {"packages": {"torch": "0.1"}})
    launch(*run)
    assert run_dir.record().flags["changed"] == "attempts differ in torch"
    monkeypatch.undo()
    launch(*run)
    assert run_dir.record().changed == ("torch",)

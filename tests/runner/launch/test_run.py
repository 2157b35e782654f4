"""Whole runs on tiny data: files of the run directory, ranks, stop signals, resumes and failures."""

import csv
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from timetrial.runner.core.errors import ConfigurationError, DataError, DeviceError, Exit, RunError
from timetrial.runner.mlperf import compliance
from timetrial.runner.record.run_dir import RunDir
from timetrial.runner.record.run_record import ComplianceVerdict
from timetrial.runner.training import checkpoint
from timetrial.workloads.ncf.data import NCFData

pytestmark = pytest.mark.integration


@pytest.fixture
def command(tiny_ncf, tmp_path):
    """Return the command of a tiny run: command(*overrides, endless=False)."""

    def make_command(*overrides, endless=False):
        tiny = [*tiny_ncf, "recipe.global_batch_size=512"]
        unreachable = ["recipe.target.v05.hit_rate=0.999", "recipe.max_epochs=2000"] if endless else []
        folders = [f"data_dir={tmp_path}/data", f"runs_dir={tmp_path}/runs"]
        return [sys.executable, "-P", "-m", "timetrial", "run", *tiny, *folders, *unreachable, *overrides]

    return make_command


@pytest.fixture
def run_to_end(command, tmp_path):
    """Run a tiny run to its end: run_to_end(*overrides) -> completed process."""

    def run(*overrides):
        return subprocess.run(command(*overrides), capture_output=True, text=True, timeout=300, cwd=tmp_path)

    return run


@pytest.fixture
def start_endless(command, tmp_path):
    """Start an endless run and wait until it has evaluated once: start_endless(run_dir, *overrides) -> process."""

    def start(run_dir, *overrides):
        process = subprocess.Popen(
            command(f"run_dir={run_dir}", *overrides, endless=True),
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        deadline = time.monotonic() + 120
        while not (run_dir / "quality.csv").exists():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return process

    return start


def quality_rows(run_dir):
    rows = csv.DictReader((run_dir / "quality.csv").read_text().splitlines())
    return [(row["epoch"], row["loss"], row["hit_rate"]) for row in rows]


def find_ranks(run_dir):
    """Return the process ids of a run's workers by rank."""
    pids = {}
    for output in Path("/proc").glob("[0-9]*/fd/1"):
        try:
            path = output.readlink()
        except OSError:
            continue
        if path.parent == run_dir and path.name.startswith("stdout_"):
            pids[int(path.stem.removeprefix("stdout_"))] = int(output.parts[2])
    return pids


def handles_signal(pid, number):
    """Return whether a process has a handler for the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return int(caught, 16) >> (number - 1) & 1


def test_run_directory_holds_record_log_and_config(launch):
    code, run_dir = launch("recipe.max_epochs=12")
    assert code == Exit.TARGET_REACHED
    names = {path.name for path in run_dir.path.iterdir()}
    files = {"config.yaml", "status.json", "quality.csv", "telemetry.csv", "result_1.txt"}
    assert names == {".lock", *files}
    assert run_dir.path.parts[-6:-1] == ("ncf", "embedded", "1xcpu", "fp32", "seed_1")
    record = run_dir.record()
    assert (record.state, record.run_class, record.exit_code) == ("target reached", "clean", 0)
    assert record.verdict == ComplianceVerdict(compliant=True, rules="0.7.0 keys, own target", problems=())
    result = record.training
    assert result.reached
    assert result.epochs_to_converge == len(result.blocks) == result.epochs
    assert 0 < result.train_seconds + result.eval_seconds <= result.seconds
    assert torch.__version__.startswith(record.environment["packages"]["torch"])
    assert record.config == OmegaConf.to_container(OmegaConf.load(run_dir.config))
    lines = [json.loads(line.split(" ", 1)[1]) for line in run_dir.log.read_text().splitlines()]
    times = {line["key"]: line["time_ms"] for line in lines if line["key"] in ("run_start", "run_stop")}
    assert (times["run_stop"] - times["run_start"]) / 1000 == pytest.approx(result.seconds, abs=0.002)


def test_recipe_alone_decides_the_scale_of_a_run(launch, tmp_path):
    """Run directory, record and report agree on the scale of a recipe that was chosen without `scale=`."""
    from timetrial.runner.results.parse import sources

    _, run_dir = launch("recipe=ncf/mini_1m", f"recipe.data.path={tmp_path}/data/ratings.csv")
    assert run_dir.path.parts[-6:-3] == ("ncf", "mini", "1xcpu")
    assert run_dir.record().config["recipe"]["scale"] == "mini"
    (run,) = sources.read_runs([run_dir.path])
    assert run.scale == "mini"


def test_run_that_misses_the_target_is_censored(launch):
    code, run_dir = launch("recipe.target.v05.hit_rate=0.99")
    assert code == Exit.TARGET_NOT_REACHED
    result = run_dir.record().training
    assert not result.reached
    assert result.epochs_to_converge is None
    assert result.epochs == 2
    assert run_dir.record().verdict == ComplianceVerdict(True, "0.7.0 keys, own target", (), converged=False)


def test_epochs_past_the_target_are_not_timed(launch):
    code, run_dir = launch("recipe.max_epochs=12", "epochs_past_target=2")
    assert code == Exit.TARGET_REACHED
    result = run_dir.record().training
    assert len(result.blocks) == result.epochs + 2
    assert result.seconds < result.blocks[-1].ended_at - result.started_at
    assert compliance.check(run_dir.log).compliant
    lines = run_dir.log.read_text().splitlines(keepends=True)
    for cut in range(1, 8):  # a signal or a limit may interrupt the last block
        run_dir.log.write_text("".join(lines[:-cut]))
        assert compliance.check(run_dir.log).compliant
    stop = next(number for number, line in enumerate(lines) if '"run_stop"' in line)
    run_dir.log.write_text("".join(lines[: stop - 1] + lines[stop:]))  # on the clock it must be complete
    assert not compliance.check(run_dir.log).compliant


def test_compiled_run_announces_compilation_and_has_the_same_losses(run_to_end, tmp_path):
    plain, compiled = (run_to_end(f"run_dir=compile_{mode}", f"engine.compile={mode}") for mode in ("null", "default"))
    assert "compiling" not in plain.stderr
    assert "compiling, which can take minutes" in compiled.stderr
    eager, compiled = (quality_rows(tmp_path / f"compile_{mode}") for mode in ("null", "default"))
    assert [float(row[1]) for row in eager] == pytest.approx([float(row[1]) for row in compiled], rel=1e-3)


def test_same_seed_repeats_and_another_seed_differs(launch):
    first, second, other_seed = (quality_rows(launch(*extra)[1].path) for extra in ((), (), ("seed=2",)))
    assert first == second != other_seed


def test_each_seed_stream_can_be_set_separately(launch):
    default = quality_rows(launch()[1].path)
    for stream in ("initialization", "data_order", "sampling"):
        assert quality_rows(launch(f"seeds.{stream}=5")[1].path) != default, stream


def test_uneven_accumulation_keeps_losses_and_quality(launch):
    whole, parts = (quality_rows(launch(*extra)[1].path) for extra in ((), ("tuning.micro_batch_size=700",)))
    assert [row[2] for row in whole] == [row[2] for row in parts]
    assert [float(row[1]) for row in whole] == pytest.approx([float(row[1]) for row in parts], rel=1e-5)


def test_warm_up_does_not_change_losses_and_quality(launch):
    assert quality_rows(launch()[1].path) == quality_rows(launch("engine.warm_up=false")[1].path)


def test_time_limit_exits_with_its_code(launch):
    code, run_dir = launch("recipe.target.v05.hit_rate=0.999", "recipe.max_epochs=100000", "time_limit_seconds=1")
    assert code == Exit.TIME_LIMIT
    assert "raise time_limit_seconds" in run_dir.record().error
    assert run_dir.record().training.reached is False


def test_divergence_exits_with_its_code(launch):
    code, run_dir = launch("recipe.training.learning_rate=1e30")
    assert code == Exit.DIVERGED
    assert "lower the learning rate" in run_dir.record().error
    assert run_dir.record().training.reached is False


def test_out_of_memory_exits_with_its_code_and_remedy(launch, monkeypatch):
    from timetrial.workloads.ncf.workload import NCF

    # No machine can allocate this much.
    monkeypatch.setattr(NCF, "compute_loss", lambda *_: torch.empty(2**60))
    code, run_dir = launch()
    assert code == Exit.OUT_OF_MEMORY
    assert "tuning.micro_batch_size" in run_dir.record().error


def test_unexpected_error_is_recorded_with_file_and_line(launch, monkeypatch):
    from timetrial.workloads.ncf.workload import NCF

    monkeypatch.setattr(NCF, "score", lambda *_: {}["nothing"])
    code, run_dir = launch("engine.warm_up=false")
    assert code == Exit.FAILURE
    assert "KeyError at test_run.py" in run_dir.record().error
    assert run_dir.log.exists()


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (["recipe.data.generate=null", "recipe.data.path=absent.csv"], DataError, "absent.csv is missing"),
        (["accelerator=h200"], DeviceError, "use accelerator=cpu"),
        (["precision=tf32"], DeviceError, "does not support TF32: use precision="),
        (["round=v07"], ConfigurationError, "not part of MLPerf round v07"),
    ],
)
@pytest.mark.skipif(torch.accelerator.is_available(), reason="describes a machine without accelerator")
def test_run_that_cannot_start_leaves_no_directory(launch, tmp_path, overrides, error, message):
    with pytest.raises(RunError, match=message) as caught:
        launch(*overrides)
    assert isinstance(caught.value, error)
    assert not (tmp_path / "runs").exists()


def test_full_disk_at_the_start_leaves_no_directory(launch, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(RunError, match=r"No space left on device.*free space"):
        launch()
    assert not (tmp_path / "runs").exists()


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


def test_final_checkpoint_is_written_on_request(launch):
    _, default = launch()
    assert not default.checkpoint.exists()
    _, at_end = launch("checkpoint.at_end=true", "checkpoint.every_seconds=0")
    _, at_block_start = launch("checkpoint.every_seconds=0")
    end, before = (
        checkpoint.load_checkpoint(run_dir.checkpoint)["engine"]["model"] for run_dir in (at_end, at_block_start)
    )
    assert end.keys() == before.keys()
    assert any(not torch.equal(end[name], before[name]) for name in end)  # the last block is included


def test_two_ranks_equal_one_rank_in_quality_and_weights(run_to_end, tmp_path):
    overrides = ["recipe.max_epochs=2", "recipe.target.v05.hit_rate=0.9", "checkpoint.at_end=true"]
    for gpus in (1, 2):
        completed = run_to_end(f"gpus={gpus}", f"run_dir={tmp_path}/{gpus}", *overrides)
        assert completed.returncode == Exit.TARGET_NOT_REACHED, completed.stdout + completed.stderr
        environment = RunDir(tmp_path / str(gpus), 1).record().environment
        assert environment.get("all_reduce_gb_s", 0) > 0 if gpus == 2 else "all_reduce_gb_s" not in environment
    single, double = (quality_rows(tmp_path / gpus) for gpus in ("1", "2"))
    assert [row[2] for row in single] == [row[2] for row in double]
    assert [float(row[1]) for row in single] == pytest.approx([float(row[1]) for row in double], rel=1e-5)
    weights = [
        checkpoint.load_checkpoint(tmp_path / gpus / "checkpoint" / "checkpoint.pt")["engine"]["model"]
        for gpus in ("1", "2")
    ]
    for name in weights[0]:
        torch.testing.assert_close(weights[0][name], weights[1][name], rtol=1e-4, atol=1e-6)


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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_lost_rank_ends_the_other_ranks_within_a_minute(start_endless, tmp_path, number):
    process = start_endless(tmp_path / "run", "gpus=2", "launcher.hang_timeout_seconds=5")
    os.kill(find_ranks(tmp_path / "run")[1], number)
    killed_at = time.monotonic()
    output = process.communicate(timeout=600)[0]
    assert process.returncode == Exit.LOST_RANK, output
    assert time.monotonic() - killed_at < 60
    assert "rank" in output.lower()
    assert not find_ranks(tmp_path / "run")
    assert RunDir(tmp_path / "run", 1).record().state == "lost rank"


def test_failed_rank_ends_a_rank_that_waits_for_it(run_to_end, tmp_path, monkeypatch):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "uneven.py").write_text(
        "import os, pathlib, time\n"
        "from timetrial.runner.core.errors import OutOfMemory\n"
        "from timetrial.workloads.ncf.workload import NCF\n"
        "class Uneven(NCF):\n"
        "    def compute_loss(self, model, batch):\n"
        "        if os.environ['RANK'] == '0':\n"
        "            time.sleep(600)\n"  # as in a collective that never completes
        "        pathlib.Path(os.environ['MARK']).touch()\n"
        "        raise OutOfMemory('No room on rank 1.')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    completed = run_to_end("gpus=2", "workload.workload=uneven.Uneven", f"run_dir={tmp_path}/run")
    assert completed.returncode == Exit.OUT_OF_MEMORY, completed.stdout + completed.stderr
    assert time.time() - (tmp_path / "mark").stat().st_mtime < 25  # without the watchdog it takes 30 s
    assert not find_ranks(tmp_path / "run")


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


def test_profiled_run_leaves_a_trace_of_the_chosen_steps(launch, tmp_path):
    code, run_dir = launch("profile.steps=2-3", f"run_dir={tmp_path}/run")
    assert code == Exit.TARGET_REACHED
    with gzip.open(run_dir.path / "profile.json.gz") as file:
        names = [event.get("name", "") for event in json.load(file)["traceEvents"]]
    assert sum(name.startswith("Optimizer.step") for name in names) == 2
    assert run_dir.record().run_class == "profiled"


@pytest.mark.parametrize("steps", ["3", "0-2", "5-4", "a-b"])
def test_rejects_malformed_range_of_profiled_steps(launch, steps):
    with pytest.raises(ConfigurationError, match=r"write profile\.steps=10-12"):
        launch(f"profile.steps={steps}")


def test_json_lines_follow_a_run_and_its_resume(launch, tmp_path):
    overrides = [f"run_dir={tmp_path}/run", "observers.json_lines=true", "recipe.target.v05.hit_rate=0.999"]
    assert launch(*overrides, "time_limit_seconds=1e-9")[0] == Exit.TIME_LIMIT
    _, run_dir = launch(*overrides, "resume=true")
    lines = [json.loads(line) for line in (run_dir.path / "events.jsonl").read_text().splitlines()]
    block = ["BlockStarted", "BlockEnded", "EvalStarted", "EvalEnded"]
    stopped = ["RunStarted", "BlockStarted", "RunInterrupted", "RunStopped"]
    assert [line["event"] for line in lines] == [*stopped, "RunStarted", *block, *block, "RunStopped"]
    evaluations = [line for line in lines if line["event"] == "EvalEnded"]
    training = run_dir.record().training
    assert [line["quality"] for line in evaluations] == [block.quality for block in training.blocks]
    assert [line["time"] for line in evaluations] == [block.ended_at for block in training.blocks]

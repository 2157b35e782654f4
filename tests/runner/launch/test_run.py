"""Whole runs on tiny data: what lands in the folder, ranks, stops, resumes, and every way to fail."""

import csv
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
from timetrial.runner.record.run_record import Verdict
from timetrial.runner.training import checkpoint

TINY = [
    "accelerator=cpu",
    "recipe.data.generate={num_users: 200, num_items: 300, num_ratings: 6000, num_clusters: 4}",
    "recipe.data.eval_negatives=99",
    "recipe.global_batch_size=512",
]


def command(tmp_path, *overrides, endless=False):
    goal = ["recipe.target.v05.hit_rate=0.999", "recipe.max_epochs=2000"] if endless else []
    places = [f"data_dir={tmp_path}/data", f"runs_dir={tmp_path}/runs"]
    return [sys.executable, "-P", "-m", "timetrial", "run", *TINY, *places, *goal, *overrides]


def finish(tmp_path, *overrides):
    return subprocess.run(command(tmp_path, *overrides), capture_output=True, text=True, timeout=300, cwd=tmp_path)


def begin(tmp_path, run_dir, *overrides):
    """Starts an endless run and waits until it has evaluated once."""
    process = subprocess.Popen(
        command(tmp_path, f"run_dir={run_dir}", *overrides, endless=True),
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    until = time.monotonic() + 120
    while not (run_dir / "quality.csv").exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.05)
    return process


def qualities(folder):
    rows = csv.DictReader((folder / "quality.csv").read_text().splitlines())
    return [(row["epoch"], row["loss"], row["hit_rate"]) for row in rows]


def ranks_of(process):
    """Process ids of a run's workers, by rank."""
    found = {}
    for entry in os.listdir("/proc"):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_text().split("\0") if entry.isdigit() else []
            if "timetrial.runner.launch.worker" in words and str(process) in words[-2]:
                environment = Path(f"/proc/{entry}/environ").read_text().split("\0")
                found[int(next(word for word in environment if word.startswith("RANK="))[5:])] = int(entry)
        except OSError:
            continue
    return found


def catches(pid, number):
    """True once a process has a handler for the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return int(caught, 16) >> (number - 1) & 1


def test_a_run_folder_holds_the_whole_story(launch):
    code, folder = launch("recipe.max_epochs=12")
    assert code == Exit.TARGET_REACHED
    names = {path.name for path in folder.path.iterdir()}
    files = {"config.yaml", "status.json", "quality.csv", "telemetry.csv", "result_1.txt"}
    assert names == {".lock", *files}
    assert folder.path.parts[-6:-1] == ("ncf", "embedded", "1xcpu", "fp32", "seed_1")
    record = folder.record()
    assert (record.state, record.run_class, record.exit_code) == ("target reached", "clean", 0)
    assert record.verdict == Verdict(compliant=True, rules="0.7.0 keys, own target", problems=())
    result = record.training
    assert result.reached
    assert result.epochs_to_converge == len(result.blocks) == result.epochs
    assert 0 < result.train_seconds + result.eval_seconds <= result.seconds
    assert torch.__version__.startswith(record.environment["packages"]["torch"])
    assert record.config == OmegaConf.to_container(OmegaConf.load(folder.config))
    lines = [json.loads(line.split(" ", 1)[1]) for line in folder.log.read_text().splitlines()]
    times = {line["key"]: line["time_ms"] for line in lines if line["key"] in ("run_start", "run_stop")}
    assert (times["run_stop"] - times["run_start"]) / 1000 == pytest.approx(result.seconds, abs=0.002)


def test_a_missed_target_is_a_censored_result(launch):
    code, folder = launch("recipe.target.v05.hit_rate=0.99")
    assert code == Exit.TARGET_NOT_REACHED
    result = folder.record().training
    assert not result.reached
    assert result.epochs_to_converge is None
    assert result.epochs == 2
    assert not folder.record().verdict.compliant


def test_epochs_past_the_target_do_not_count_as_time(launch):
    code, folder = launch("recipe.max_epochs=12", "epochs_past_target=2")
    assert code == Exit.TARGET_REACHED
    result = folder.record().training
    assert len(result.blocks) == result.epochs + 2
    assert result.seconds < result.blocks[-1].ended_at - result.started_at
    assert compliance.check(folder.log).compliant
    lines = folder.log.read_text().splitlines(keepends=True)
    for cut in range(1, 8):  # the last block is cut short by a signal or a limit
        folder.log.write_text("".join(lines[:-cut]))
        assert compliance.check(folder.log).compliant
    stop = next(number for number, line in enumerate(lines) if '"run_stop"' in line)
    folder.log.write_text("".join(lines[: stop - 1] + lines[stop:]))  # on the clock it must be whole
    assert not compliance.check(folder.log).compliant


def test_a_compiled_run_says_why_it_waits_and_learns_the_same(tmp_path):
    plain, compiled = (finish(tmp_path, f"run_dir=as_{mode}", f"engine.compile={mode}") for mode in ("null", "default"))
    assert "compiling" not in plain.stderr
    assert "compiling, which can take minutes" in compiled.stderr
    one, two = (qualities(tmp_path / f"as_{mode}") for mode in ("null", "default"))
    assert [float(row[1]) for row in one] == pytest.approx([float(row[1]) for row in two], rel=1e-3)


def test_same_seed_same_numbers_another_seed_others(launch):
    one, two, three = (qualities(launch(*extra)[1].path) for extra in ((), (), ("seed=2",)))
    assert one == two != three


def test_each_seed_can_be_set_apart(launch):
    base = qualities(launch()[1].path)
    for stream in ("initialization", "data_order", "sampling"):
        assert qualities(launch(f"seeds.{stream}=5")[1].path) != base, stream


def test_uneven_accumulation_keeps_the_numbers(launch):
    whole, parts = (qualities(launch(*extra)[1].path) for extra in ((), ("tuning.micro_batch_size=700",)))
    assert [row[2] for row in whole] == [row[2] for row in parts]
    assert [float(row[1]) for row in whole] == pytest.approx([float(row[1]) for row in parts], rel=1e-5)


def test_warm_up_does_not_move_the_numbers(launch):
    assert qualities(launch()[1].path) == qualities(launch("engine.warm_up=false")[1].path)


def test_the_time_limit_has_its_code(launch):
    code, folder = launch("recipe.target.v05.hit_rate=0.999", "recipe.max_epochs=100000", "time_limit_seconds=1")
    assert code == Exit.TIME_LIMIT
    assert "raise time_limit_seconds" in folder.record().error
    assert folder.record().training.reached is False


def test_divergence_has_its_code(launch):
    code, folder = launch("recipe.training.learning_rate=1e30")
    assert code == Exit.DIVERGED
    assert "lower the learning rate" in folder.record().error
    assert folder.record().training.reached is False


def test_out_of_memory_has_its_code_and_remedy(launch, monkeypatch):
    from timetrial.workloads.ncf.workload import NCF

    # A real refusal of the allocator: no machine has room for this.
    monkeypatch.setattr(NCF, "compute_loss", lambda *_: torch.empty(2**60))
    code, folder = launch()
    assert code == Exit.OUT_OF_MEMORY
    assert "tuning.micro_batch_size" in folder.record().error


def test_a_defect_is_kept_with_its_place(launch, monkeypatch):
    from timetrial.workloads.ncf.workload import NCF

    monkeypatch.setattr(NCF, "score", lambda *_: {}["nothing"])
    code, folder = launch("engine.warm_up=false")
    assert code == Exit.FAILURE
    assert "KeyError at test_run.py" in folder.record().error
    assert folder.log.exists()


@pytest.mark.parametrize(
    ("overrides", "kind", "words"),
    [
        (["recipe.data.generate=null", "recipe.data.path=absent.csv"], DataError, "absent.csv is missing"),
        (["accelerator=h200"], DeviceError, "use accelerator=cpu"),
        (["precision=tf32"], DeviceError, "no TF32 units"),
        (["round=v07"], ConfigurationError, "not part of MLPerf round v07"),
    ],
)
@pytest.mark.skipif(torch.accelerator.is_available(), reason="speaks of a machine without accelerator")
def test_what_never_began_leaves_nothing(launch, tmp_path, overrides, kind, words):
    with pytest.raises(RunError, match=words) as caught:
        launch(*overrides)
    assert isinstance(caught.value, kind)
    assert not (tmp_path / "runs").exists()


def test_a_full_disk_at_the_start_leaves_nothing(launch, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunError, match=r"No space left on device.*free space"):
        launch()
    assert not (tmp_path / "runs").exists()


def test_two_runs_into_one_folder_are_refused(launch, tmp_path):
    launch(f"run_dir={tmp_path}/one")
    before = (tmp_path / "one" / "status.json").read_bytes()
    with pytest.raises(ConfigurationError, match="already holds a run"):
        launch(f"run_dir={tmp_path}/one")
    assert (tmp_path / "one" / "status.json").read_bytes() == before


def test_a_finished_run_is_not_run_again(launch, tmp_path):
    first, folder = launch(f"run_dir={tmp_path}/one", "resume=true")
    log = folder.log.read_bytes()
    assert launch(f"run_dir={tmp_path}/one", "resume=true")[0] == first
    assert folder.log.read_bytes() == log


def test_resuming_with_another_configuration_is_refused(launch, tmp_path):
    launch(f"run_dir={tmp_path}/one")
    with pytest.raises(ConfigurationError, match=r"another configuration \(precision.name\)"):
        launch(f"run_dir={tmp_path}/one", "resume=true", "precision=bf16")


def test_the_weights_of_the_end_are_kept_if_asked_for(launch):
    _, plain = launch()
    assert not plain.checkpoint.exists()
    _, kept = launch("checkpoint.at_end=true", "checkpoint.every_seconds=0")
    _, block = launch("checkpoint.every_seconds=0")
    end, before = (checkpoint.load_checkpoint(folder.checkpoint)["engine"]["model"] for folder in (kept, block))
    assert end.keys() == before.keys()
    assert any(not torch.equal(end[name], before[name]) for name in end)  # the last block's work is in it


def test_two_ranks_equal_one_in_quality_and_weights(tmp_path):
    overrides = ["recipe.max_epochs=2", "recipe.target.v05.hit_rate=0.9", "checkpoint.at_end=true"]
    for gpus in (1, 2):
        done = finish(tmp_path, f"gpus={gpus}", f"run_dir={tmp_path}/{gpus}", *overrides)
        assert done.returncode == Exit.TARGET_NOT_REACHED, done.stdout + done.stderr
        environment = RunDir(tmp_path / str(gpus), 1).record().environment
        assert environment.get("all_reduce_gb_s", 0) > 0 if gpus == 2 else "all_reduce_gb_s" not in environment
    one, two = (qualities(tmp_path / gpus) for gpus in ("1", "2"))
    assert [row[2] for row in one] == [row[2] for row in two]
    assert [float(row[1]) for row in one] == pytest.approx([float(row[1]) for row in two], rel=1e-5)
    weights = [
        checkpoint.load_checkpoint(tmp_path / gpus / "checkpoint" / "checkpoint.pt")["engine"]["model"]
        for gpus in ("1", "2")
    ]
    for name in weights[0]:
        torch.testing.assert_close(weights[0][name], weights[1][name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("number", "gpus"), [(signal.SIGTERM, 1), (signal.SIGUSR1, 2), (signal.SIGINT, 1)])
def test_a_stop_signal_saves_and_a_resume_equals_the_uninterrupted_run(tmp_path, number, gpus):
    folder = tmp_path / "run"
    process = begin(tmp_path, folder, f"gpus={gpus}")
    process.send_signal(number)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == Exit.STOPPED, output
    assert f"run_dir={folder} resume=true" in output
    record = RunDir(folder, 1).record()
    assert (record.state, record.exit_code, record.training.reached) == ("stopped", 12, False)
    # The checkpoint's epoch is done twice as often as needed; the end is what an uninterrupted run reaches.
    epochs = checkpoint.load_checkpoint(folder / "checkpoint" / "checkpoint.pt")["completed_epochs"] + 2
    goal = ["recipe.target.v05.hit_rate=0.999", f"gpus={gpus}"]
    for file in ("config.yaml",):
        (folder / file).write_text((folder / file).read_text().replace("max_epochs: 2000", f"max_epochs: {epochs}"))
    resumed = finish(tmp_path, f"run_dir={folder}", "resume=true", f"recipe.max_epochs={epochs}", *goal)
    assert resumed.returncode == Exit.TARGET_NOT_REACHED, resumed.stdout + resumed.stderr
    whole = finish(tmp_path, f"run_dir={tmp_path}/whole", f"recipe.max_epochs={epochs}", *goal)
    assert whole.returncode == Exit.TARGET_NOT_REACHED, whole.stdout + whole.stderr
    assert qualities(folder) == qualities(tmp_path / "whole")  # the epoch that the signal cut in two included
    record = RunDir(folder, 1).record()
    assert (record.run_class, record.restarts) == ("resumed", 1)
    assert record.training.lost_seconds > 0
    assert record.training.active_seconds < record.training.seconds
    problems = record.verdict.problems
    assert len(problems) == 1, problems
    assert "reaches the target" in problems[0]


def test_a_resume_in_the_middle_of_a_block_of_several_epochs(launch, tmp_path):
    """A time limit cuts blocks of three epochs wherever it falls, until the run is through."""
    blocks = [
        "recipe.eval_every_epochs=3",
        "recipe.first_eval_epoch=3",
        "recipe.max_epochs=9",
        "recipe.target.v05.hit_rate=0.999",
    ]
    blocks += ["recipe.global_batch_size=512"]
    whole = launch(*blocks)[1]
    limit = whole.record().training.seconds / 5
    code, attempts = Exit.TIME_LIMIT, 0
    while code == Exit.TIME_LIMIT:
        code, cut = launch(*blocks, f"run_dir={tmp_path}/cut", "resume=true", f"time_limit_seconds={limit}")
        attempts += 1
    assert code == Exit.TARGET_NOT_REACHED
    assert attempts > 2
    assert qualities(cut.path) == qualities(whole.path)
    samples = [[block.samples for block in folder.record().training.blocks] for folder in (cut, whole)]
    assert samples[0] == samples[1]
    assert len(cut.record().verdict.problems) == 1, cut.record().verdict


def test_a_stop_in_the_evaluation_that_reaches_the_target_loses_nothing(launch, monkeypatch):
    from timetrial.workloads.ncf.workload import NCF

    score = NCF.score

    def stopped_meanwhile(self, parts):
        os.kill(os.getpid(), signal.SIGTERM)
        return score(self, parts)

    monkeypatch.setattr(NCF, "score", stopped_meanwhile)
    code, folder = launch("recipe.target.v05.hit_rate=0.01")
    assert code == Exit.TARGET_REACHED
    assert folder.record().verdict.compliant


@pytest.mark.parametrize(
    ("damage", "code", "words"),
    [
        (lambda folder: (folder / "checkpoint/checkpoint.pt").write_bytes(b"x"), Exit.DATA, "delete it to start"),
        (lambda folder: (folder / "result_1.txt").write_text(""), Exit.DATA, "result_1.txt"),
        (lambda folder: (folder / "status.json").write_text("{"), Exit.CONFIGURATION, "status.json is damaged"),
        (lambda folder: (folder / "config.yaml").unlink(), Exit.CONFIGURATION, "lost its config.yaml"),
    ],
)
def test_a_damaged_folder_is_refused_and_left(launch, tmp_path, damage, code, words):
    run = [f"run_dir={tmp_path}/run", "recipe.target.v05.hit_rate=0.999", "recipe.max_epochs=100000"]
    assert launch(*run, "time_limit_seconds=0.5")[0] == Exit.TIME_LIMIT
    damage(tmp_path / "run")
    names = sorted(path.name for path in (tmp_path / "run").rglob("*"))
    try:
        ended, folder = launch(*run, "resume=true")
        sentence = folder.record().error
    except RunError as error:
        ended, sentence = error.exit_code, str(error)
    assert ended == code
    assert words in sentence
    assert sorted(path.name for path in (tmp_path / "run").rglob("*")) == names


def test_a_folder_in_which_a_run_is_going_is_refused(tmp_path):
    process = begin(tmp_path, tmp_path / "run")
    goal = ["recipe.target.v05.hit_rate=0.999", "recipe.max_epochs=2000"]
    second = finish(tmp_path, f"run_dir={tmp_path}/run", "resume=true", *goal)
    assert second.returncode == Exit.CONFIGURATION
    assert "is in use by another process" in second.stderr
    assert process.poll() is None
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == Exit.STOPPED


def test_a_stop_before_anything_began_leaves_nothing(tmp_path):
    process = subprocess.Popen(command(tmp_path), cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while not catches(process.pid, signal.SIGTERM):
        time.sleep(0.01)
    process.terminate()
    output = process.communicate(timeout=60)[1]
    assert process.returncode == Exit.STOPPED, output
    assert "run it again" in output
    assert not list((tmp_path / "runs").rglob("result_*"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_ends_the_others_within_a_minute(tmp_path, number):
    process = begin(tmp_path, tmp_path / "run", "gpus=2", "launcher.hang_timeout_seconds=5")
    ranks = ranks_of(tmp_path / "run")
    os.kill(ranks[1], number)
    since = time.monotonic()
    output = process.communicate(timeout=90)[0]
    assert process.returncode == Exit.LOST_RANK, output
    assert time.monotonic() - since < 60
    assert "rank" in output.lower()
    assert not ranks_of(tmp_path / "run")
    assert RunDir(tmp_path / "run", 1).record().state == "lost rank"


def test_a_rank_that_fails_takes_along_one_that_waits_for_it(tmp_path, monkeypatch):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "uneven.py").write_text(
        "import os, pathlib, time\n"
        "from timetrial.runner.core.errors import OutOfMemory\n"
        "from timetrial.workloads.ncf.workload import NCF\n"
        "class Uneven(NCF):\n"
        "    def compute_loss(self, model, batch):\n"
        "        if os.environ['RANK'] == '0':\n"
        "            time.sleep(600)\n"  # deaf, as one that waits inside a collective
        "        pathlib.Path(os.environ['MARK']).touch()\n"
        "        raise OutOfMemory('No room on rank 1.')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    done = finish(tmp_path, "gpus=2", "workload.workload=uneven.Uneven", f"run_dir={tmp_path}/run")
    assert done.returncode == Exit.OUT_OF_MEMORY, done.stdout + done.stderr
    assert time.time() - (tmp_path / "mark").stat().st_mtime < 25  # the others would be given 30
    assert not ranks_of(tmp_path / "run")

"""Whole runs on tiny data: files of the run directory, results, seeds, ranks and failures."""

import csv
import gzip
import json

import pytest
import torch
from omegaconf import OmegaConf

from timetrial.runner.core.errors import ConfigurationError, DataError, DeviceError, Exit, RunError
from timetrial.runner.mlperf import compliance
from timetrial.runner.record.run_dir import RunDir
from timetrial.runner.record.run_record import ComplianceVerdict
from timetrial.runner.training import checkpoint

pytestmark = pytest.mark.integration


def quality_rows(run_dir):
    rows = csv.DictReader((run_dir / "quality.csv").read_text().splitlines())
    return [(row["epoch"], row["loss"], row["hit_rate"]) for row in rows]


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
        record = RunDir(tmp_path / str(gpus), 1).record()
        environment = record.environment
        assert record.execution_paths.get("collectives") == ("gloo" if gpus == 2 else None)
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


@pytest.mark.parametrize("variable", ["SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "WORLD_SIZE"])
def test_command_that_was_started_several_times_is_refused(launch, tmp_path, monkeypatch, variable):
    """As by srun or torchrun for two tasks: each trained a whole run, without a word."""
    monkeypatch.setenv(variable, "2")
    with pytest.raises(ConfigurationError, match=r"has started this command 2 times.*: start it once, with gpus="):
        launch()
    assert not (tmp_path / "runs").exists()
    monkeypatch.setenv(variable, "1")
    assert launch()[0] in (Exit.TARGET_REACHED, Exit.TARGET_NOT_REACHED)

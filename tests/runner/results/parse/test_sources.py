"""Finding logs in published trees, single files and own run directories, and the CSV rows made of them."""

import csv
import json
import os
from dataclasses import replace

import pytest

from timetrial.runner.core.errors import DataError
from timetrial.runner.record.record_file import encode_record
from timetrial.runner.record.run_record import RunRecord, RunState
from timetrial.runner.results.analysis.groups import group_runs
from timetrial.runner.results.parse import sources
from timetrial.runner.results.report import csv_tables


def test_reads_round_submitter_system_and_benchmark_from_path(log, tmp_path):
    path = "training_results_v0.7/Maker/results/box_v2.8/resnet/result_3.txt"
    log(path)("run_start").evaluate(4, 0.76).stop().write()
    systems = tmp_path / "training_results_v0.7/Maker/systems"
    systems.mkdir()
    description = {
        "accelerator_model_name": "T4",
        "accelerators_per_node": "4",
        "number of nodes": "2",
        "framework": "F",
    }
    (systems / "box_v2.8.json").write_text(json.dumps(description))
    (run,) = sources.read_runs([tmp_path / "training_results_v0.7"])
    assert (run.round, run.submitter, run.system, run.benchmark) == ("v0.7", "Maker", "box_v2.8", "resnet")
    assert (run.accelerator, run.num_accelerators, run.software) == ("T4", 8, "F")
    assert run.path.as_posix() == "Maker/results/box_v2.8/resnet/result_3.txt"


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"framework": "F", "nodes": [{"accelerator": "T4", "num_accelerators": 8, "num_nodes": 1}]}),
        "org: {\"value\": \"N\"}\nentry: {\"value\": \"{'framework': 'F', 'nodes': \\\"{'num_nodes': '1', "
        "'accelerator': 'T4', 'num_accelerators': '8'}\\\"}\"}\n",
    ],
)
def test_reads_system_descriptions_of_v05_and_v06(log, tmp_path, text):
    log("v0.5/maker/box/resnet/result_0.txt", dialect="v0.5")("run_start").evaluate(4, 0.76).stop().write()
    folder = tmp_path / "systems/v0.5/maker"
    folder.mkdir(parents=True)
    (folder / "box.entry.json").write_text(text)
    (run,) = sources.read_runs([tmp_path / "v0.5"])
    assert (run.accelerator, run.num_accelerators, run.software) == ("T4", 8, "F")


def test_other_logs_count_only_without_result_files(log, tmp_path):
    log("a/result_0.txt")("run_start").evaluate(4, 0.76).stop().write()
    log("a/raw.log-rank0")("run_start").evaluate(4, 0.76).stop().write()
    log("b/slurm-17.out")("run_start").evaluate(4, 0.76).stop().write()
    log("b/train.py").write('print(":::MLLOG")\n')
    assert sorted(run.path.name for run in sources.read_runs([tmp_path])) == ["result_0.txt", "slurm-17.out"]
    assert len(sources.read_runs([tmp_path, tmp_path / "a"])) == 2


def test_sorts_results_by_number(log, tmp_path):
    for number in (10, 9, 1):
        log(f"result_{number}.txt")("run_start").evaluate(4, 0.76).stop().write()
    assert [run.path.name for run in sources.read_runs([tmp_path])] == ["result_1.txt", "result_9.txt", "result_10.txt"]


def test_unfinished_run_is_in_no_group(launch):
    _, folder = launch("recipe.max_epochs=12")
    folder.update(lambda record: replace(record, state=RunState.RUNNING))
    runs = sources.read_runs([folder.path])
    assert runs[0].is_unfinished
    assert group_runs(runs) == []


def test_damaged_run_record_leaves_the_log(launch):
    _, folder = launch("recipe.max_epochs=12")
    for text in ("[", "[3]", '{"state": 7}', '{"schema_version": 1, "config": {}}'):
        (folder.path / "status.json").write_text(text)
        (run,) = sources.read_runs([folder.path])
        assert run.success
        assert run.run_record is None
        assert any("run record" in sentence for sentence in run.inferred)


def test_run_directory_without_its_log_is_passed_over(launch):
    _, folder = launch("recipe.max_epochs=12")
    folder.log.unlink()
    passed_over = []
    assert sources.read_runs([folder.path], needed=False, pass_over=passed_over.append) == []
    (error,) = passed_over
    assert "its result_*.txt is missing" in str(error)


def test_file_with_several_runs_is_passed_over(log, tmp_path):
    """The first start and the last end were once taken for one run."""
    writer = log("two/result_0.txt")("run_start").evaluate(4, 0.76).stop()
    writer("run_start").evaluate(4, 0.76).stop().write()
    log("dead/result_0.txt")("run_start")("run_start", after=3600.0).evaluate(4, 0.76).stop().write()
    log("ranks/result_0.txt")("run_start")("run_start", after=2.0).evaluate(4, 0.76).stop().write()
    passed_over = []
    runs = sources.read_runs([tmp_path], pass_over=passed_over.append)
    assert [run.path.as_posix() for run in runs] == ["ranks/result_0.txt"]
    message = "cannot be compared (it holds 2 runs): write each run to a file of its own."
    assert all(str(error).endswith(message) for error in passed_over)
    assert len(passed_over) == 2


def test_skips_pipes_and_link_loops(log, tmp_path):
    os.mkfifo(tmp_path / "result_1.txt")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "gone.log").symlink_to(tmp_path / "nowhere")
    log("result_0.txt")("run_start").evaluate(4, 0.76).stop().write()
    assert len(sources.read_runs([tmp_path])) == 1


def test_rejects_paths_without_logs(tmp_path):
    with pytest.raises(DataError, match=r"absent does not exist"):
        sources.read_runs([tmp_path / "absent"])
    (tmp_path / "notes.txt").write_text("nothing\n")
    with pytest.raises(DataError, match="No MLPerf log was found"):
        sources.read_runs([tmp_path])


def test_writes_rows_of_runs_and_scores(published, tmp_path):
    tree = published("box", [3, 4, 4, 5], 60.0, failed=1)
    runs = sources.read_runs([tree])
    groups = group_runs(runs)
    csv_tables.write_runs(tmp_path / "out/runs.csv", runs)
    csv_tables.write_scores(tmp_path / "out/scores.csv", groups)
    rows = list(csv.DictReader((tmp_path / "out/runs.csv").read_text().splitlines()))
    assert [row["epochs_to_converge"] for row in rows] == ["3", "4", "4", "5", ""]
    assert [row["success"] for row in rows] == ["True"] * 4 + ["False"]
    assert (rows[0]["path"], rows[0]["duration_s"]) == ("v0.7/Maker/box/gnmt/result_0.txt", "180.0")
    assert (rows[0]["target"], rows[0]["last_quality"], rows[0]["num_accelerators"]) == ("0.24", "0.245", "8")
    (score,) = csv.DictReader((tmp_path / "out/scores.csv").read_text().splitlines())
    # One failed run counts as the slowest; of the four others the fastest is dropped.
    assert float(score["minutes_olympic"]) == pytest.approx((4 * 60.01 + 4 * 60.02 + 5 * 60.03) / 3 / 60)
    assert (score["runs"], score["converged"], score["epochs_olympic"]) == ("5", "4", str(round(13 / 3, 9)))


def test_two_failures_give_no_score_and_scaling_factor_applies(published, tmp_path):
    tree = published("box", [3, 4, 4], 60.0, failed=2)
    published("other", [3, 4, 4], 60.0)
    (tree / "v0.7/Maker/other/gnmt/scaling.json").write_text('{"scaling_factor": 1.05}')
    box, other = group_runs(sources.read_runs([tree]))
    assert (box.minutes_olympic, box.minutes_scaled, box.num_failed) == (None, None, 2)
    assert other.minutes_scaled == pytest.approx(1.05 * 4 * 60.01 / 60)


def test_reads_own_run_directory(launch):
    code, folder = launch("recipe.max_epochs=12", "seed=4")
    assert code == 0
    (run,) = sources.read_runs([folder.path.parents[3]])
    assert (run.benchmark, run.round, run.scale, run.precision, run.num_accelerators) == (
        "ncf",
        "v0.5",
        "embedded",
        "fp32",
        1,
    )
    assert (run.seed, run.success, run.target) == (4, True, {"hit_rate": 0.2})
    assert run.duration == pytest.approx(folder.record().training.seconds, abs=0.002)
    assert 0 < run.eval_seconds < run.duration
    (group,) = group_runs([run])
    assert "embedded, 1 x cpu, fp32" in group.title


@pytest.mark.parametrize("state", [RunState.TARGET_REACHED, RunState.RUNNING])
def test_log_that_was_cut_off_is_no_failed_run(log, tmp_path, state):
    """The run record beside it tells a copy that lost its end from a run that was killed."""
    writer = log("run/result_0.txt")("run_start").evaluate(4, 0.76).stop()
    writer.write()
    path = tmp_path / "run/result_0.txt"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "run_stop" not in line))
    record = RunRecord(state=state)
    (tmp_path / "run/status.json").write_text(encode_record(record))
    passed_over = []
    read = sources.read_runs([tmp_path], needed=False, pass_over=passed_over.append)
    if state is RunState.RUNNING:
        assert ([run.success for run in read], passed_over) == ([False], [])
    else:
        assert read == []
        assert 'it has no run_stop, but its run record says "target reached"): copy it again.' in str(passed_over[0])

"""Finding logs: published trees, loose files, our own folders; and the CSV rows that come of them."""

import csv
import json
import os

import pytest

from timetrial.runner.core.errors import DataError
from timetrial.runner.results.analysis.groups import cells_of
from timetrial.runner.results.parse import sources
from timetrial.runner.results.report import csv_tables


def test_a_published_tree_names_round_submitter_system_and_benchmark(log, tmp_path):
    path = "training_results_v0.7/Maker/results/box_v2.8/resnet/result_3.txt"
    log(path)("run_start").evaluate(4, 0.76).stop().write()
    systems = tmp_path / "training_results_v0.7/Maker/systems"
    systems.mkdir()
    facts = {"accelerator_model_name": "T4", "accelerators_per_node": "4", "number of nodes": "2", "framework": "F"}
    (systems / "box_v2.8.json").write_text(json.dumps(facts))
    (run,) = sources.gather([tmp_path / "training_results_v0.7"])
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
def test_system_files_of_v05_and_v06(log, tmp_path, text):
    log("v0.5/maker/box/resnet/result_0.txt", dialect="v0.5")("run_start").evaluate(4, 0.76).stop().write()
    folder = tmp_path / "systems/v0.5/maker"
    folder.mkdir(parents=True)
    (folder / "box.entry.json").write_text(text)
    (run,) = sources.gather([tmp_path / "v0.5"])
    assert (run.accelerator, run.num_accelerators, run.software) == ("T4", 8, "F")


def test_beside_result_files_other_logs_do_not_count_but_alone_they_do(log, tmp_path):
    log("a/result_0.txt")("run_start").evaluate(4, 0.76).stop().write()
    log("a/raw.log-rank0")("run_start").evaluate(4, 0.76).stop().write()
    log("b/slurm-17.out")("run_start").evaluate(4, 0.76).stop().write()
    log("b/train.py").write('print(":::MLLOG")\n')
    assert sorted(run.path.name for run in sources.gather([tmp_path])) == ["result_0.txt", "slurm-17.out"]
    assert len(sources.gather([tmp_path, tmp_path / "a"])) == 2


def test_results_come_in_the_order_of_their_numbers(log, tmp_path):
    for number in (10, 9, 1):
        log(f"result_{number}.txt")("run_start").evaluate(4, 0.76).stop().write()
    assert [run.path.name for run in sources.gather([tmp_path])] == ["result_1.txt", "result_9.txt", "result_10.txt"]


def test_a_run_that_goes_on_is_no_result_yet(launch):
    _, folder = launch("recipe.max_epochs=12")
    folder.update_status(state="running")
    runs = sources.gather([folder.path])
    assert runs[0].unfinished
    assert cells_of(runs) == []


def test_a_damaged_run_folder_leaves_its_log(launch):
    _, folder = launch("recipe.max_epochs=12")
    for text in ("", "workload: [", "- 3"):
        folder.config.write_text(text)
        (run,) = sources.gather([folder.path])
        assert run.success
        assert any("config.yaml" in sentence for sentence in run.inferred)


def test_pipes_and_loops_are_passed_by(log, tmp_path):
    os.mkfifo(tmp_path / "result_1.txt")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "gone.log").symlink_to(tmp_path / "nowhere")
    log("result_0.txt")("run_start").evaluate(4, 0.76).stop().write()
    assert len(sources.gather([tmp_path])) == 1


def test_nothing_to_read_is_said(tmp_path):
    with pytest.raises(DataError, match=r"absent does not exist"):
        sources.gather([tmp_path / "absent"])
    (tmp_path / "notes.txt").write_text("nothing\n")
    with pytest.raises(DataError, match="No MLPerf log was found"):
        sources.gather([tmp_path])


def test_rows_of_runs_and_scores(published, tmp_path):
    tree = published("box", [3, 4, 4, 5], 60.0, failed=1)
    runs = sources.gather([tree])
    cells = cells_of(runs)
    csv_tables.write_runs(tmp_path / "out/runs.csv", runs)
    csv_tables.write_scores(tmp_path / "out/scores.csv", cells)
    rows = list(csv.DictReader((tmp_path / "out/runs.csv").read_text().splitlines()))
    assert [row["epochs_to_converge"] for row in rows] == ["3", "4", "4", "5", ""]
    assert [row["success"] for row in rows] == ["True"] * 4 + ["False"]
    assert (rows[0]["path"], rows[0]["duration_s"]) == ("v0.7/Maker/box/gnmt/result_0.txt", "180.0")
    assert (rows[0]["target"], rows[0]["last_quality"], rows[0]["num_accelerators"]) == ("0.24", "0.245", "8")
    (score,) = csv.DictReader((tmp_path / "out/scores.csv").read_text().splitlines())
    # One failed: the fastest of the four that are left is dropped, the failed one is the slowest.
    assert float(score["minutes_olympic"]) == pytest.approx((4 * 60.01 + 4 * 60.02 + 5 * 60.03) / 3 / 60)
    assert (score["runs"], score["converged"], score["epochs_olympic"]) == ("5", "4", str(round(13 / 3, 9)))


def test_two_failed_runs_give_no_score_and_a_scaling_factor_applies(published, tmp_path):
    tree = published("box", [3, 4, 4], 60.0, failed=2)
    published("other", [3, 4, 4], 60.0)
    (tree / "v0.7/Maker/other/gnmt/scaling.json").write_text('{"scaling_factor": 1.05}')
    box, other = cells_of(sources.gather([tree]))
    assert (box.minutes_olympic, box.minutes_scaled, box.failed) == (None, None, 2)
    assert other.minutes_scaled == pytest.approx(1.05 * 4 * 60.01 / 60)


def test_a_run_folder_of_ours(launch):
    code, folder = launch("recipe.max_epochs=12", "seed=4")
    assert code == 0
    (run,) = sources.gather([folder.path.parents[3]])
    assert (run.benchmark, run.round, run.scale, run.precision, run.num_accelerators) == (
        "ncf",
        "v0.5",
        "embedded",
        "fp32",
        1,
    )
    assert (run.seed, run.success, run.target) == (4, True, {"value": 0.2})
    assert run.duration == pytest.approx(folder.status()["result"]["seconds"], abs=0.002)
    assert 0 < run.eval_seconds < run.duration
    (cell,) = cells_of([run])
    assert "embedded, 1 x cpu, fp32" in cell.title

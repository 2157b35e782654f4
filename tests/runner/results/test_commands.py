"""`timetrial report`, `study` and `compare` as subprocesses."""

import csv
import json
import shutil
import subprocess
import sys

import pytest

from timetrial.runner.core.errors import Exit
from timetrial.runner.results.parse import external

STUDY = external.REFERENCE_DATA / "studies" / "t4_v100_2019.csv"


def timetrial(folder, *arguments):
    command = [sys.executable, "-P", "-m", "timetrial", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.fixture
def tree(published):
    published("a", [4, 5, 4, 5, 4], 60.0, failed=1)
    return published("b", [5, 4, 5, 4, 5], 30.0)


def test_study_separates_seed_variance_and_speed(tree, tmp_path):
    process = timetrial(tmp_path, "study", "tree")
    assert process.returncode == 0, process.stderr
    assert "Maker a, 8 x Tesla V100-SXM2-16GB\n  runs          6, 1 failed" in process.stdout
    assert "spread        12.4% in time-to-train, 0.0% in time per epoch" in process.stdout
    assert "expected time" in process.stdout
    assert "to a success, failed runs included" in process.stdout


def test_study_plans_further_runs(tree, tmp_path):
    process = timetrial(tmp_path, "study", "--plan", "tree")
    assert process.returncode == 0, process.stderr
    assert "runs a group find 5%" in process.stdout
    assert "smallest difference found" in process.stdout
    assert "Maker b (gnmt v0.7) against Maker a (gnmt v0.7): " in process.stdout


def test_json_is_all_of_the_output(tree, tmp_path):
    process = timetrial(tmp_path, "compare", "tree/v0.7/Maker/a", "tree/v0.7/Maker/b", "--json")
    (entry,) = json.loads(process.stdout)
    assert entry["verdict"] in ("faster", "slower", "equal", "cannot tell", "not comparable")
    assert entry["failures"] == {"baseline": 1, "other": 0}
    groups = json.loads(timetrial(tmp_path, "study", "--json", "tree").stdout)
    assert [(group["system"], group["runs"], group["failures"]) for group in groups] == [("a", 6, 1), ("b", 5, 0)]


def test_compare_prints_verdict(tree, tmp_path):
    process = timetrial(tmp_path, "compare", "tree/v0.7/Maker/a", "tree/v0.7/Maker/b")
    assert process.returncode == 0, process.stderr
    assert "cannot tell which is faster by expected time to a success, between these two machines" in process.stdout
    assert "time-to-train of converged runs" in process.stdout
    assert "1 of 6 runs of Maker a (gnmt v0.7) failed" in process.stdout


def test_t4_against_v100_is_one_command(tmp_path):
    process = timetrial(tmp_path, "compare", STUDY)
    assert process.returncode == 0, process.stderr
    verdict = "V100-PCIe against T4: faster, 2.99 times as fast (95% CI: 2.46 to 3.63) over 5 networks"
    assert verdict in process.stdout
    assert "epochs to converge differ" in process.stdout
    (entry,) = json.loads(timetrial(tmp_path, "compare", STUDY, "V100", "T4", "--json").stdout)
    assert (entry["baseline"], entry["other"], entry["verdict"]) == ("V100-PCIe", "T4", "slower")


def test_study_shows_external_measurements(tmp_path):
    process = timetrial(tmp_path, "study", STUDY)
    assert process.returncode == 0, process.stderr
    rows = [line.split() for line in process.stdout.splitlines() if line.startswith(("gnmt ", "maskrcnn "))]
    assert ["gnmt", "train", "2", "x", "T4", "fp16", "epochs", "7"] in rows
    assert ["maskrcnn", "train", "1", "x", "V100-PCIe", "fp16", "speedup", "over", "T4", "2.7"] in rows
    entries = json.loads(timetrial(tmp_path, "study", STUDY, "--json").stdout)
    assert sum(entry["metric"] == "epochs" for entry in entries) == 14


@pytest.fixture
def tables(tmp_path):
    """Return a folder of two wide tables: the V100 is twice as fast as the T4 in fp32, and four times in fp16."""
    folder = tmp_path / "tables"
    (folder / "older").mkdir(parents=True)
    rows = "gpu,watt,resnet50,gnmt\nT4,70,100.5,1000.5\nV100,250,201,2001\n"
    (folder / "throughput-fp32-train.csv").write_text(rows)
    rows = "gpu;resnet50 (images/s);gnmt (sentences/s)\nT4;200,5;2000,5\nV100;802;8002\n"
    (folder / "older/fp16-train.csv").write_bytes(rows.encode("utf-16"))
    return folder


def test_a_folder_of_others_tables_is_read(tables, tmp_path):
    process = timetrial(tmp_path, "compare", tables, "V100", "T4")
    assert process.returncode == 0, process.stderr
    rows = [line.split() for line in process.stdout.splitlines() if " train " in line]
    assert [(row[0], row[4], row[-1]) for row in rows] == [
        (network, precision, ratio)
        for precision, ratio in (("fp32", "0.5"), ("fp16", "0.25"))
        for network in ("resnet50", "gnmt")
    ]
    skipped = (
        "throughput-fp32-train.csv cannot be read completely (1 of 3 columns name no workload or have no known unit"
    )
    assert process.stdout.count(skipped) == 1
    process = timetrial(tmp_path, "compare", tables, "--json")
    (entry,) = json.loads(process.stdout)
    assert (entry["baseline"], entry["other"]) == ("T4", "V100")
    assert skipped in process.stderr
    process = timetrial(tmp_path, "study", tables, "--json")
    assert len(json.loads(process.stdout)) == 8
    assert skipped in process.stderr
    process = timetrial(tmp_path, "report", tables)
    assert process.returncode == 0, process.stderr
    assert f"passed over: {tables}/{skipped}" in process.stdout
    assert "external measurements: 8; wrote report/report.html" in process.stdout


def test_a_named_table_must_be_readable_and_one_in_a_folder_is_passed_over(tables, tmp_path):
    bad = tables / "batch.csv"
    bad.write_text("gpu,resnet50\nT4,64\n")
    sentence = "batch.csv cannot be read (1 of 1 columns name no workload or have no known unit: resnet50): write"
    process = timetrial(tmp_path, "compare", bad)
    assert (process.returncode, process.stdout) == (Exit.DATA, "")
    assert sentence in process.stderr
    process = timetrial(tmp_path, "compare", tables)
    assert process.returncode == 0, process.stderr
    assert f"Passed over: {bad}".removesuffix("batch.csv") + sentence in process.stdout
    process = timetrial(tmp_path, "compare", tables / "older/fp16-train.csv", bad)
    assert process.returncode == Exit.DATA


def test_tables_beside_runs_need_a_name_to_be_compared(tree, tables, tmp_path):
    shutil.copy(STUDY, tree / "v0.7/Maker/a/table.csv")
    process = timetrial(tmp_path, "compare", "tree/v0.7/Maker/a", "tree/v0.7/Maker/b")
    assert process.returncode == 0, process.stderr
    assert "Maker b (gnmt v0.7) against Maker a (gnmt v0.7)" in process.stdout
    assert "table.csv cannot be compared (the runs beside it are compared): name the table itself" in process.stdout
    process = timetrial(tmp_path, "compare", "tree/v0.7/Maker/a", "T4", "V100-PCIe")
    assert "V100-PCIe against T4: faster, 2.99 times as fast" in process.stdout
    process = timetrial(tmp_path, "compare", tables, "tree/v0.7/Maker/b", "T4", "SXM2")
    assert "Tesla V100-SXM2-16GB against T4: cannot tell, nothing was measured on both" in process.stdout


def test_copies_of_one_folder_are_named_by_folder_and_never_faster(tree, tmp_path):
    shutil.copytree(tree, tmp_path / "copied")
    process = timetrial(tmp_path, "compare", "tree/v0.7/Maker/a", "copied/v0.7/Maker/a")
    assert process.returncode == 0, process.stderr
    (summary,) = [line for line in process.stdout.splitlines() if " against " in line]
    assert summary.startswith("copied/v0.7/Maker/a (gnmt v0.7) against tree/v0.7/Maker/a (gnmt v0.7): ")
    assert "1 times" not in process.stdout
    assert "cannot tell which is faster" in summary or "equal within 5%" in summary


def test_report_writes_page_and_tables(tree, tmp_path):
    tables = ["--runs-csv", "out/runs.csv", "--scores-csv", "out/scores.csv"]
    process = timetrial(tmp_path, "report", "tree", *tables)
    assert process.returncode == 0, process.stderr
    assert not (tmp_path / "report").exists()
    assert len(list(csv.DictReader((tmp_path / "out/runs.csv").read_text().splitlines()))) == 11
    study = next(iter(sorted((external.REFERENCE_DATA / "studies").glob("*.csv"))))
    process = timetrial(tmp_path, "report", "tree", study, "--out", "page")
    assert process.returncode == 0, process.stderr
    assert "wrote page/report.html" in process.stdout
    assert "runs: 11, run groups: 2, throughput groups: 0, external measurements: 40" in process.stdout
    assert (tmp_path / "page/report.html").read_text().lstrip().lower().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["report"], Exit.CONFIGURATION, "Missing argument"),
        (["report", "absent"], Exit.DATA, "absent does not exist"),
        (["study", "empty"], Exit.DATA, "No MLPerf log was found in empty"),
        (["compare", "tree/v0.7/Maker/a", "other"], Exit.DATA, "have no benchmark in common"),
        (["report", "tree", "--export-mlperf", "tree"], Exit.CONFIGURATION, "tree is not empty"),
        (["compare", "tree", "tree"], Exit.CONFIGURATION, "tree and tree hold the same runs"),
        (["compare", "tree", "tree/v0.7/Maker/a"], Exit.CONFIGURATION, "tree and tree/v0.7/Maker/a hold the same runs"),
        (["compare", "tree"], Exit.CONFIGURATION, "name two folders or logs"),
        (["compare", "tree", "absent"], Exit.DATA, "absent does not exist"),
        (["compare", STUDY, "H100"], Exit.CONFIGURATION, "H100 is no path, and not the name of one system"),
        (["compare", "tree", "tree", "--margin", "5"], Exit.CONFIGURATION, "A margin of 5 is no fraction"),
        (["report", "tree", "--colour", "red"], Exit.CONFIGURATION, "--colour"),
    ],
)
def test_wrong_argument_prints_one_sentence(tree, tmp_path, log, arguments, exit_code, message):
    (tmp_path / "empty").mkdir()
    log("other/result_0.txt", benchmark="ssd")("run_start").evaluate(4, 0.3).stop().write()
    process = timetrial(tmp_path, *arguments)
    assert process.returncode == exit_code, process.stderr
    assert message in process.stderr
    assert "Traceback" not in process.stderr
    assert not (tmp_path / "report").exists()

"""Published logs against facts that were computed independently of timetrial.

The environment variable `TIMETRIAL_PUBLISHED_LOGS` names a folder with `mlperf_logs/` (740 logs of rounds v0.5 to v2.0)
and `mlperf_logs_v50/` (1,717 logs of v5.0), each an archive and its tables of truth.
"""

import csv
import json
import os
import random
import shutil
import tarfile
from pathlib import Path

import pytest

from timetrial.runner.results.analysis.groups import group_runs
from timetrial.runner.results.parse import sources
from timetrial.runner.results.report import build, csv_tables, page

FOLDER = os.environ.get("TIMETRIAL_PUBLISHED_LOGS", "")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not FOLDER, reason="TIMETRIAL_PUBLISHED_LOGS is not set"),
]


def unpack(archive, folder):
    with tarfile.open(Path(FOLDER, archive)) as file:
        file.extractall(folder, filter="data")
    return folder


def read_table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def number(text):
    return float(text) if text else None


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    return unpack("mlperf_logs/mlperf_logs.tar.xz", tmp_path_factory.mktemp("logs")) / "mlperf_logs"


@pytest.fixture(scope="module")
def tables(logs):
    """The rows that `timetrial report` writes, of runs by path and of scores by round, benchmark, submitter, system."""
    runs = sources.read_runs([logs])
    csv_tables.write_runs(logs / "runs.csv", runs)
    csv_tables.write_scores(logs / "scores.csv", group_runs(runs))
    keys = ("round", "benchmark", "submitter", "system")
    return (
        {row["path"]: row for row in read_table(logs / "runs.csv")},
        {tuple(row[key] for key in keys): row for row in read_table(logs / "scores.csv")},
    )


def test_740_runs_of_v05_to_v20(logs, tables):
    runs, _ = tables
    truth = read_table(logs / "truth_runs.csv")
    assert len(truth) == len(runs) == 740
    for row in truth:
        path = "/".join(row[key] for key in ("round", "submitter", "system", "benchmark", "file"))
        run = runs[path]
        assert number(run["duration_s"]) == pytest.approx(number(row["duration_s"]), abs=0.0011), path
        assert run["success"] == row["success"], path
        assert number(run["epochs_to_converge"]) == number(row["epochs_to_converge"]), path
        assert run["epoch_offset"] == row["epoch_offset"], path
        assert run["samples_to_converge"] == "", path
        assert (run["seed"], run["global_batch_size"]) == (row["seed"], row["global_batch_size"]), path


def test_96_scores_of_v05_to_v20(logs, tables):
    _, scores = tables
    truth = read_table(logs / "truth_scores.csv")
    assert len(truth) == 96
    for row in truth:
        key = tuple(row[key] for key in ("round", "benchmark", "submitter", "system"))
        score = scores[key]
        assert (score["runs"], score["converged"]) == (row["n_logs"], row["n_success"]), key
        assert number(score["minutes_olympic"]) == pytest.approx(number(row["minutes_olympic"]), abs=1e-5), key
        assert number(score["epochs_olympic"]) == pytest.approx(number(row["epochs_olympic"]), abs=1e-4), key


def _replace_by_pipe(path):
    path.unlink()
    os.mkfifo(path)


def _replace_by_device(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def _rewrite(change):
    return lambda path: path.write_bytes(change(path.read_bytes()))


DAMAGES = [
    _replace_by_pipe,
    _replace_by_device,
    _rewrite(lambda text: b""),
    _rewrite(lambda text: text[: len(text) // 2]),
    _rewrite(lambda text: random.Random(7).randbytes(100_000)),
    _rewrite(lambda text: text.replace(b"\n", b" ")),
    _rewrite(lambda text: text.replace(b"value", b"\x00\xff\x1b[31m")),
    _rewrite(lambda text: text.replace(b"0", b"1e308").replace(b"1", b"9" * 40)),
    _rewrite(lambda text: text.replace(b'": ', b'": ' + b"[" * 5000)),
    _rewrite(lambda text: b":::MLLOG {'key': &a [*a], 'b': " + b"-" * 9000 + b"\nSEED=" + b" " * 10**6 + b"\n" + text),
]


def test_every_tenth_log_damaged_leaves_the_other_numbers(logs, tables, tmp_path):
    runs, scores = tables
    tree = Path(shutil.copytree(logs, tmp_path / "logs", ignore=shutil.ignore_patterns("*.csv")))
    damaged = sorted(runs)[::10]
    assert len(damaged) == 74
    for number, path in enumerate(damaged):
        DAMAGES[number % len(DAMAGES)](tree / path)
    report = build.build_report([tree])
    page.write_page(report, tmp_path / "page")
    csv_tables.write_scores(tmp_path / "scores.csv", report.groups)
    after = {row["path"]: row for row in read_table(tmp_path / "page/csv/runs.csv")}
    sound = runs.keys() - set(damaged)
    assert {path: after.get(path) for path in sound} == {path: runs[path] for path in sound}
    touched = {tuple(runs[path][key] for key in ("round", "benchmark", "submitter", "system")) for path in damaged}
    keys = ("round", "benchmark", "submitter", "system")
    scores_after = {tuple(row[key] for key in keys): row for row in read_table(tmp_path / "scores.csv")}
    untouched = scores.keys() - touched
    assert len(untouched) > 20
    assert {key: scores_after.get(key) for key in untouched} == {key: scores[key] for key in untouched}


@pytest.fixture(scope="module")
def runs_v50(tmp_path_factory):
    tree = unpack("mlperf_logs_v50/mlperf_logs_v5.0.tar.xz", tmp_path_factory.mktemp("logs_v50"))
    return sources.read_runs([tree])


def test_1717_runs_of_v50(runs_v50):
    runs = {run.path.as_posix(): run for run in runs_v50}
    truth = read_table(Path(FOLDER, "mlperf_logs_v50/truth_runs_v5.0.csv"))
    assert len(truth) == len(runs) == 1717
    num_labels = 0
    for row in truth:
        path = "/".join(row[key] for key in ("round", "submitter", "system", "benchmark", "file"))
        run = runs[path]
        assert run.duration == pytest.approx(number(row["duration_s"]), abs=0.001), path
        assert run.success == (row["status"] == "success"), path
        assert run.benchmark == row["benchmark"], path
        assert (run.seed, run.global_batch_size) == (number(row["seed"]), number(row["global_batch_size"])), path
        labels = json.loads(row["last_eval"])
        label = labels.get("samples_count", labels.get("epoch_num"))
        if label is None:
            continue
        num_labels += 1
        assert run.evaluations[-1].progress == label, path
        assert run.progress_to_converge == (label if run.success else None), path
        assert list(run.last_quality.values())[-1] == pytest.approx(number(row["last_quality"]), rel=1e-7), path
        in_samples = row["benchmark"] in ("bert", "llama2_70b_lora", "llama31_405b", "stable_diffusion")
        assert run.progress_unit == ("samples" if in_samples else "epochs"), path
    assert num_labels == 1418


def test_stable_diffusion_of_v50_converges_at_run_stop(runs_v50):
    """All runs that succeed reach both targets at the samples of run_stop's step."""
    runs = [run for run in runs_v50 if run.benchmark == "stable_diffusion" and run.success]
    assert len(runs) == 307
    for run in runs:
        stop = next(line for line in run.source.read_text(errors="replace").splitlines() if '"run_stop"' in line)
        fields = json.loads(stop[stop.index("{") :])["metadata"]
        assert run.samples_to_converge == fields["step_num"] * run.global_batch_size

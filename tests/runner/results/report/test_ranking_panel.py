"""The ranking of a published round on the page, in the terminal and as JSON."""

import csv
import importlib.util
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from timetrial.runner.cli.app import app
from timetrial.runner.results.report import build, page

spec = importlib.util.spec_from_file_location("pages", Path(__file__).with_name("pages.py"))
pages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pages)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a round of three systems: the fastest has four times the GPUs, two differ by less than their noise."""
    root = tmp_path_factory.mktemp("round")
    for system, seconds, gpus in (("slow", 600, 8), ("alike", 603, 8), ("fast", 300, 32)):
        for number in range(10):
            qualities = [0.2, 0.22, 0.241]
            pages.write_log(
                root, system, number, qualities=qualities, seconds=seconds + 7 * number, num_accelerators=gpus
            )
    return root


def study(*arguments):
    outcome = CliRunner().invoke(app, ["study", *map(str, arguments)], env={"COLUMNS": "300"})
    assert outcome.exit_code == 0, repr(outcome.exception)
    return outcome.stdout


def test_first_screen_names_the_fastest_and_says_whether_it_is_luck(root, tmp_path):
    report = build.build_report([root])
    assert not report.comparisons
    found = pages.Page(page.write_page(report, tmp_path).read_text())
    assert found.row("Benchmark")[1:] == ["Fastest", "Lead", "Next", "Fastest per accelerator"]
    fastest, lead, following, efficient = found.row("gnmt3 entries")[1:]
    assert fastest == "5.525 min 32 × GPU $1$ <b>, Maker"  # 300 s to 363 s, without the ends 331.5 s
    assert lead.startswith("1.9")
    assert lead.endswith("beyond luck")
    assert following.startswith("10.53 min 8 × GPU $1$ <b>, Maker, slow")
    assert efficient.startswith("84.2 accelerator-minutes fastest system: 48% per accelerator")  # 84.2 / (32 x 5.525)
    rows = [row for row in found.rows if row[0].startswith(("8 × GPU", "32 × GPU")) and len(row) == 9]
    assert [row[3] for row in rows] == ["32", "8", "8"]
    assert [row[2].rpartition(", ")[2] for row in rows] == ["beyond luck", "cannot tell", "–"]
    (table,) = (tmp_path / "csv").glob("*-ranking.csv")
    data = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["rank"] for row in data] == ["1", "2", "3"]
    assert float(data[0]["score_minutes"]) == pytest.approx(331.5 / 60)


def test_published_results_of_the_benchmark_are_listed_on_request(root, tmp_path):
    outcome = CliRunner().invoke(app, ["report", str(root), "--published", "--out", str(tmp_path)])
    assert outcome.exit_code == 0, repr(outcome.exception)
    found = pages.Page((tmp_path / "report.html").read_text())
    rows = [[" ".join(cell.split()) for cell in row] for row in found.rows]
    (entry,) = (row for row in rows if row[1:4] == ["closed", "8 x NVIDIA A100-SXM4-40GB (400W)", "NVIDIA"])
    assert (entry[0], entry[4:6]) == ("v0.7", ["7.809", "10/10"])
    data = list(csv.DictReader((tmp_path / "csv" / "published-gnmt.csv").read_text().splitlines()))
    assert {row["benchmark"] for row in data} == {"gnmt"}
    page.write_page(build.build_report([root]), tmp_path)
    assert not (tmp_path / "csv" / "published-gnmt.csv").exists()


def test_named_baseline_is_compared_instead(root, tmp_path):
    report = build.build_report([root], "slow")
    assert len(report.comparisons) == 2
    assert not report.rankings


def test_study_prints_the_ranking(root):
    printed = study(root)
    assert "gnmt v0.7, ranked" in printed
    lines = [line for line in printed.splitlines() if line.startswith(("8 × GPU", "32 × GPU"))]
    assert [line.split("×")[0].strip() for line in lines] == ["32", "8", "8"]
    groups = {group["system"]: group["ranking"] for group in json.loads(study("--json", root))}
    assert {system: ranking["rank"] for system, ranking in groups.items()} == {"fast": 1, "slow": 2, "alike": 3}
    assert groups["fast"]["lead_verdict"] == "beyond luck"
    assert groups["fast"]["relative_per_accelerator"] == pytest.approx(0.476, abs=0.001)
    assert groups["alike"]["lead"] is None


def test_two_rounds_have_a_table_of_their_best_scores(root, tmp_path):
    shutil.copytree(root, tmp_path / "logs")
    shutil.copytree(root / "v0.7", tmp_path / "logs/v0.6")
    found = pages.Page(page.write_page(build.build_report([tmp_path / "logs"]), tmp_path / "out").read_text())
    assert found.row("Model") == ["Model", "v0.6", "v0.7"]
    first, second = found.row("gnmt, 8 accelerators")[1:]
    assert first.startswith("10.53 min")  # 600 s to 663 s
    assert "1.00× the first" in second

"""Tests of the report page: completeness, escaping of hostile names, and rendering in a browser."""

import base64
import csv
import hashlib
import html
import importlib.util
import itertools
import re
from collections import Counter
from pathlib import Path

import pytest

from timetrial.runner.core.errors import ConfigurationError
from timetrial.runner.results.analysis.external_comparison import compare_systems
from timetrial.runner.results.parse import external
from timetrial.runner.results.report import build, comparison_text, page
from timetrial.runner.results.report.page_text import format_number
from timetrial.runner.results.report.panels import format_bounds
from timetrial.runner.results.report.systems import gpu_name

spec = importlib.util.spec_from_file_location("pages", Path(__file__).with_name("pages.py"))
pages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pages)


def test_first_table_compares_gpus_by_name_with_the_baseline(text):
    found = pages.Page(text)
    assert found.row("GPUs")[1:] == ["All", "gnmt"]
    assert found.row("8 × GPU $1$ <b>Maker, box_a")[1] == "1× baseline"
    other = found.row("16 × GPU $1$ <b>Maker")
    # Batches and epochs differ, so only the time per epoch compares: 607.5 / 3 s against 401.5 / 5 s.
    assert re.fullmatch(r"\(2\.52×\) 2\.\d\d–2\.\d\d not comparable", other[2])
    assert other[1] == other[2]
    failed = found.row("8 × GPU $1$ <b>Maker, box_c")
    assert failed[2].endswith("cannot tell1,2,3")  # marks: runs failed, too few converged, and a check warns
    assert "Runs failed" in found.text[".legend"]
    assert "1 ratio in parentheses leaves out the epochs, because" in text  # box_c's is of its times


def test_every_chart_has_a_name_and_ids_are_unique(text):
    found = pages.Page(text)
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    charts = [svg for svg in found.of("svg") if "aria-hidden" not in svg]
    assert len(charts) == len(found.of("figure")) > 20
    for svg in charts:
        assert set(svg["aria-labelledby"].split()) <= set(ids)
    targets = {link["href"][1:] for link in found.of("a") if link["href"].startswith("#")}
    assert targets <= set(ids)


def test_benchmark_has_its_charts(text):
    titles = re.findall(r"<figure>\s*<b>(.*?)</b>", text)
    for title in ("Time to the target", "Epochs to the target", "Time per epoch", "Scaling", "BLEU over epochs"):
        assert titles.count(title) == 1
    assert titles.count("BLEU over time") == 2  # of the groups, and of any two runs
    assert sum(title.startswith("Speed by FP32 peak") for title in titles) == 6


def test_censored_runs_are_crosses_and_never_zero(text, report):
    assert 'class="cross' in text
    assert "no result: 2 of 4 failed" in text
    assert text.count("out of memory") > 4
    assert page.DISCLAIMER in text


def test_every_finding_is_in_the_details(text, report):
    for finding in report.findings:
        assert html.escape(finding.message, quote=False) in html.escape(html.unescape(text), quote=False)


def test_every_table_has_a_csv_file(text, report_path):
    links = [link["href"] for link in pages.Page(text).of("a") if link["href"].startswith("csv/")]
    for link in links:
        rows = list(csv.reader((report_path.parent / link).read_text().splitlines()))
        assert len(rows) > 1, link
        assert len({len(row) for row in rows}) == 1, link
    files = {f"csv/{path.name}" for path in (report_path.parent / "csv").iterdir()}
    assert files == set(links)
    assert {"csv/runs.csv", "csv/evaluations.csv", "csv/findings.csv", "csv/scaling.csv"} <= files


def test_markdown_has_the_same_content(report_path, report):
    markdown = (report_path.parent / "report.md").read_text()
    assert "no result: 2 of 4 failed" in markdown
    for line in markdown.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) > 2, line
    for comparison in report.comparisons:
        assert comparison_text.phrase(comparison).replace("<", "\\<") in markdown


def test_hostile_name_is_escaped(text, report_path):
    assert text.count("<script") == 1
    assert "<b>V" not in text
    assert "&lt;script&gt;alert(1)&lt;" in text
    assert re.search(r"(?<!\\)<", (report_path.parent / "report.md").read_text()) is None


def test_only_the_script_of_the_page_may_run(text):
    policy = next(meta["content"] for meta in pages.Page(text).of("meta") if meta.get("http-equiv"))
    script = re.search(r"<script>(.*)</script>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def test_page_loads_nothing_from_elsewhere(text):
    assert not re.findall(r"https?:|//[a-z]|@import|url\((?!#)", text)


def test_headings_tables_and_landmarks_are_semantic(text):
    levels = [int(level) for level in re.findall(r"<h(\d)", text)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    found = pages.Page(text)
    assert len(found.of("table")) == len(found.of("caption")) == len(found.of("thead"))
    assert all("scope" in th for th in found.of("th"))
    assert found.of("html") == [{"lang": "en"}]
    names = [meta.get("name") for meta in found.of("meta")]
    assert {"viewport", "color-scheme"} <= set(names)
    assert next(link["href"] for link in found.of("a") if link.get("class") == "skip") == "#answer"


def test_same_report_gives_identical_files(report, report_path, tmp_path):
    again = page.write_page(report, tmp_path / "new" / "folder")
    for path in [report_path, report_path.parent / "report.md", *(report_path.parent / "csv").iterdir()]:
        assert (again.parent / path.relative_to(report_path.parent)).read_bytes() == path.read_bytes(), path
    assert not list(again.parent.rglob("*.tmp"))


@pytest.mark.parametrize("qualities", [[0.2, 0.25], [0.2, 0.21]])
def test_single_run(tmp_path, qualities):
    pages.write_log(tmp_path / "logs", "box", 0, qualities=qualities)
    text = page.write_page(build.build_report([tmp_path / "logs"]), tmp_path / "page").read_text()
    assert "1 run in 1 run group." in text
    row = pages.Page(text).row("gnmt v0.7")
    reached = qualities[-1] >= pages.TARGET
    assert row[1] == f"1 {'all' if reached else '1 not'} reached{'1' if reached else '1,2'}"
    assert row[2].endswith("min" if reached else "unknown")
    assert ("no result: 1 of 1 failed" in text) == (not reached)


def test_study_of_one_system_tells_luck_from_speed(tmp_path):
    """Epochs vary by a factor of two, the time per epoch by nothing but the clock."""
    for number, epochs in enumerate([3, 4, 5, 6, 4, 5], start=1):
        curve = [0.1] * (epochs - 1) + [0.25]
        pages.write_log(tmp_path / "logs", "box", number, qualities=curve, seconds=100.0 * epochs + number / 100)
    text = page.write_page(build.build_report([tmp_path / "logs"]), tmp_path / "page").read_text()
    row = pages.Page(text).row("gnmt v0.7")
    assert row[1] == "6 all reached"
    assert row[3].startswith("4.39 ")  # geometric mean of the epochs
    assert row[5] == "100% 100% to 100%" or row[5].startswith("100% 100%")
    assert "of the variance is luck of the seeds" in text


@pytest.mark.parametrize("name", ["rtx2080ti_tpuv2_2019", "rtx3060_2022", "rtx8000_nvlink_2020", "titan_v_2018"])
def test_page_and_comparison_give_the_same_answer(name, tmp_path):
    study = external.REFERENCE_DATA / "studies" / f"{name}.csv"
    found = pages.Page(page.write_page(build.build_report([study]), tmp_path).read_text())
    for pair in compare_systems(external.read_measurements(study), []):
        answer = found.row(gpu_name(pair.other.title))[1]
        if pair.rows:
            ratio = pair.interval
            assert answer.startswith(f"{format_number(ratio.estimate, 3)}× {format_bounds(ratio)}".strip())
            assert (pair.verdict.value if ratio.is_bounded else "measured once") in answer
        else:
            assert answer == "– no equal setting"


def test_external_measurements_without_runs(tmp_path):
    study = external.REFERENCE_DATA / "studies" / "t4_v100_2019.csv"
    text = page.write_page(build.build_report([study]), tmp_path).read_text()
    row = pages.Page(text).row("V100 PCIe")
    assert row[1].startswith("2.99× ")
    assert row[1].endswith(" faster")
    assert row[2] == "3.60× measured once1"
    assert "What the logs do not state" not in text


def test_clear_answers_on_gpus_come_first(tmp_path):
    """Of five studies two have a clear answer; that of NVLink compares settings of one GPU."""
    studies = sorted((external.REFERENCE_DATA / "studies").glob("*.csv"))
    text = page.write_page(build.build_report(studies), tmp_path).read_text()
    titles = [title.partition(" ")[0] for title in re.findall("<h2[^>]*>([^<]*)</h2>", text)]
    assert titles[:2] == ["T4", "Quadro"]


def test_baseline_is_chosen_by_name(tmp_path):
    for number in range(3):
        for box, devices in (("left", 4), ("middle", 8), ("right", 16)):
            pages.write_log(
                tmp_path, box, number, qualities=[0.25], seconds=4000 / devices + number, num_accelerators=devices
            )
    for baseline, devices in (("16 x GPU", 16), ("4 × gpu", 4), ("Middle", 8)):  # part of a name, or a whole `system`
        built = build.build_report([tmp_path], baseline)
        assert {pair.baseline.runs[0].num_accelerators for pair in built.comparisons} == {devices}
    with pytest.raises(ConfigurationError, match="No system is called --baseline 'T4': choose part of one of: "):
        build.build_report([tmp_path], "T4")
    table = external.REFERENCE_DATA / "studies" / "t4_v100_2019.csv"
    assert build.build_report([tmp_path, table], "T4").lineups  # a system of the table alone
    with pytest.raises(ConfigurationError, match=r"'A1000': choose part of one of: .*T4"):
        build.build_report([table], "A1000")


def test_many_runs_are_drawn_as_bands_and_each_has_a_line_that_can_be_picked(tmp_path):
    for box in range(9):
        for number in range(30):
            pages.write_log(
                tmp_path / "logs", f"box_{box}", number, qualities=[0.2, 0.25], seconds=900 - 31 * box + number
            )
    path = page.write_page(build.build_report([tmp_path / "logs"]), tmp_path / "page")
    text = path.read_text()
    rows = list(csv.DictReader((path.parent / "csv/evaluations.csv").read_text().splitlines()))
    assert len({row["run"] for row in rows}) == 9 * 30
    names = re.findall(r'<path data-run="(run-\d+)"', text)
    assert Counter(names) == {f"run-{number}": 2 for number in range(1, 9 * 30 + 1)}  # over time and over epochs
    assert "1 more rows" in text


@pytest.mark.filterwarnings("error")
def test_missing_glyphs_and_math_markup_stay_text(tmp_path):
    name = '\u7cfb\u7edf$\\frac$ a|b *c* [d](e) & "f" ]]>'
    pages.write_log(tmp_path / "logs", name, 0, qualities=[0.25])
    path = page.write_page(build.build_report([tmp_path / "logs"]), tmp_path / "page")
    assert html.escape(name, quote=False) in html.escape(html.unescape(path.read_text()), quote=False)
    assert "[d](e)" not in (path.parent / "report.md").read_text()


def test_side_that_never_reached_the_target_has_no_ratio(tmp_path):
    for number in range(3):
        pages.write_log(tmp_path / "logs", "box_a", number, qualities=[0.2, 0.25], seconds=600 + number)
        pages.write_log(tmp_path / "logs", "box_b", number, qualities=[0.2, 0.21], seconds=700 + number)
    text = page.write_page(build.build_report([tmp_path / "logs"], "box_a"), tmp_path / "page").read_text()
    assert re.fullmatch(r"– cannot tell[\d,]+", pages.Page(text).row("8 × GPU $1$ <b>Maker, box_b")[2])
    assert "nan" not in "".join(re.findall("<path[^>]*>", text))
    assert "unknown×" not in text

"""Tests of the report page: completeness, escaping of hostile names, and rendering in a browser."""

import csv
import html
import itertools
import json
import re
import shutil
import subprocess

import pytest

from timetrial.runner.results.parse import external
from timetrial.runner.results.report import build, page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE_NAME = "<script>alert(1)<"  # of a folder, so it cannot contain a slash
TARGET = 0.24
# Writes sizes of plots and page into the title, because they cannot be queried from outside the browser.
MEASURE_LAYOUT = """<script>
const plots = [...document.querySelectorAll("figure svg")];
const boxes = plots.map(svg => svg.getBoundingClientRect());
const empty = boxes.filter(box => box.width < 200 || box.height < 50).length;
const overflow = document.documentElement.scrollWidth - innerWidth;
const children = plots.map(svg => svg.querySelectorAll("path, use, text").length);
document.title =
  `plots ${boxes.length} empty ${empty} width ${innerWidth} overflow ${overflow} children ${Math.min(...children)}`;
</script>"""


def write_log(root, system, number, *, qualities, seconds=600.0, num_accelerators=8, batch=1024):
    """Write a log of round v0.7 with one evaluation per epoch; the run fails if no quality reaches the target."""
    submitter = root / "v0.7" / "Maker"
    folder = submitter / system / "gnmt"
    folder.mkdir(parents=True, exist_ok=True)
    (submitter / "systems").mkdir(exist_ok=True)
    description = {"accelerator_model_name": "GPU $1$ <b>", "accelerators_per_node": num_accelerators}
    (submitter / "systems" / f"{system}.json").write_text(json.dumps(description | {"number_of_nodes": 1}))
    start = 1_600_000_000_000
    entries = [
        ("submission_benchmark", "gnmt", {}, 0.0),
        ("global_batch_size", batch, {}, 0.0),
        ("seed", number, {}, 0.0),
    ]
    entries += [("opt_base_learning_rate", 0.002, {}, 0.0), ("run_start", None, {}, 0.0)]
    for epoch, quality in enumerate(qualities, start=1):
        entries.append(("eval_accuracy", quality, {"epoch_num": epoch}, seconds * epoch / (len(qualities) + 0.1)))
    status = "success" if qualities[-1] >= TARGET else "aborted"
    entries.append(("run_stop", None, {"status": status}, seconds))
    entries += [("run_stop", None, {"status": status}, seconds + 1)] * (batch == 2048)  # one more value to infer
    events = [
        {"namespace": "", "time_ms": start + offset * 1000, "key": key, "value": value, "metadata": metadata}
        for key, value, metadata, offset in entries
    ]
    text = "".join(f":::MLLOG {json.dumps(event)}\n" for event in events)
    (folder / f"result_{number}.txt").write_text(text)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Return a report on three systems and all studies; the second has a hostile name, the third failed too often."""
    root = tmp_path_factory.mktemp("results")
    for number in range(4):
        write_log(root, "box_a", number, qualities=[0.2, 0.22, 0.241 + number / 1000], seconds=600 + 5 * number)
        slow_start = [0.1, 0.2, 0.21, 0.22, 0.245]
        write_log(
            root, HOSTILE_NAME, number, qualities=slow_start, seconds=400 + number, num_accelerators=16, batch=2048
        )
        write_log(root, "box_c", number, qualities=[0.2, 0.21] if number < 2 else [0.2, 0.25], seconds=700 + number)
    studies = external.REFERENCE_DATA / "studies"
    return build.build_report([root, *sorted(studies.glob("*.csv"))])


@pytest.fixture(scope="module")
def report_path(report, tmp_path_factory):
    return page.write_page(report, tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def text(report_path):
    return report_path.read_text()


def figures(text):
    return re.findall(r"<figure>.*?</figure>", text, re.DOTALL)


def test_every_plot_is_present_and_has_a_text_alternative(text):
    titles = [re.search(r"<h3>(.*?)</h3>", figure)[1] for figure in figures(text)]
    for start in ("Minutes to train", "Throughput", "BLEU by epoch", "Epochs to converge", "Scaling"):
        assert any(title.startswith(start) for title in titles), start
    assert sum(title.startswith("Ratios") for title in titles) == 1
    assert sum(title.startswith("Speed by FP32 peak") for title in titles) == 6
    for figure in figures(text):
        name = re.search(r'aria-labelledby="(\S+)-title \1-desc"', figure)[1]
        assert re.search(
            rf'role="img".*<title id="{name}-title">[^<]+</title><desc id="{name}-desc">[^<]+</desc>', figure
        )
        assert "<figcaption>" in figure
    ids = re.findall(r' id="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(|href=")#([^")]+)', text)) <= set(ids)


def test_every_plot_and_table_has_a_csv_file(text, report_path):
    links = re.findall(r'href="(csv/[^"]*)"', text)
    assert len(links) == text.count("<figure>") + text.count("<table>") + 3  # findings, inferred values, runs
    for link in links:
        rows = list(csv.reader((report_path.parent / link).read_text().splitlines()))
        assert len(rows) > 1, link
        assert len({len(row) for row in rows}) == 1, link
    assert sorted(path.name for path in (report_path.parent / "csv").iterdir()) == sorted(link[4:] for link in links)


def test_banners_come_first_and_failed_runs_are_not_shown_as_zero(text, report):
    banner = next(finding.message for finding in report.findings if finding.kind == "banner")
    assert html.escape(banner) in text.split('role="alert"')[1].split("</div>")[0]
    assert text.index(html.escape(banner)) < text.index("<table>")
    assert '<td class="number">no result: 2 of 4 failed</td>' in text
    assert "4 (2 failed)" in text
    assert text.count("out of memory") > 4
    assert page.DISCLAIMER in text


def test_markdown_has_the_same_content(report_path, text, report):
    markdown = (report_path.parent / "report.md").read_text()
    assert markdown.count("\n## ") == text.count("<h2")
    assert markdown.count("Figure ") == text.count("<figure>")
    assert len(re.findall(r"^\| ?-", markdown, re.MULTILINE)) == text.count("<table>")
    assert "no result: 2 of 4 failed" in markdown
    for line in markdown.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) > 4, line
    for comparison in report.comparisons:
        assert comparison.phrase.replace("<", "\\<") in markdown


def test_hostile_name_is_escaped(text, report_path):
    assert "<script" not in text
    assert "<b>V" not in text
    assert "&lt;script&gt;alert(1)&lt;" in text
    assert re.search(r"(?<!\\)<", (report_path.parent / "report.md").read_text()) is None


def test_page_loads_nothing_from_elsewhere(text):
    assert not re.findall(r"https?:|//[a-z]|@import|url\((?!#)", text)
    assert not re.findall(r"#0102|#0103|DejaVu", text)  # colors and fonts come from the style sheet


def test_headings_tables_and_landmarks_are_semantic(text):
    levels = [int(level) for level in re.findall(r"<h(\d)", text)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert text.count("<table>") == text.count("<caption") == text.count("<thead>")
    assert '<html lang="en">' in text
    assert re.search(r'<meta name="viewport" content="[^"]+">', text)
    assert re.search(r'<meta name="color-scheme" content="[^"]+">', text)
    assert 'class="skip" href="#summary"' in text
    assert not re.findall(r"<th(?![^>]*scope=)[ >]", text)


def test_same_report_gives_identical_files(report, report_path, tmp_path):
    again = page.write_page(report, tmp_path / "new" / "folder")
    for path in [report_path, report_path.parent / "report.md", *(report_path.parent / "csv").iterdir()]:
        assert (again.parent / path.relative_to(report_path.parent)).read_bytes() == path.read_bytes(), path
    assert not list(again.parent.rglob("*.tmp"))


@pytest.mark.parametrize("qualities", [[0.2, 0.25], [0.2, 0.21]])
def test_single_run(tmp_path, qualities):
    write_log(tmp_path / "logs", "box", 0, qualities=qualities)
    text = page.write_page(build.build_report([tmp_path / "logs"]), tmp_path / "page").read_text()
    assert "1 run in 1 run group." in text
    assert 'href="#measurements"' not in text
    assert ("no result: 1 of 1 failed" in text) == (qualities[-1] < TARGET)
    assert "needs at least 3 runs, has 1" in text or qualities[-1] < TARGET
    assert len(figures(text)) == (3 if qualities[-1] >= TARGET else 1)


def test_external_measurements_without_runs(tmp_path):
    study = external.REFERENCE_DATA / "studies" / "titan_v_2018.csv"
    text = page.write_page(build.build_report([study]), tmp_path).read_text()
    assert "This report covers 2 external measurements from 1 study." in text
    assert "Inferred values" not in text


def test_many_groups_are_sorted_and_their_curves_thinned_in_the_plot_only(tmp_path):
    for box in range(13):
        for number in range(8):
            write_log(
                tmp_path / "logs", f"box_{box:02}", number, qualities=[0.2, 0.25], seconds=900 - 31 * box + number
            )
    path = page.write_page(build.build_report([tmp_path / "logs"]), tmp_path / "page")
    minutes, curves = (
        list(csv.DictReader((path.parent / "csv" / f"gnmt-v0-7-{name}.csv").read_text().splitlines()))
        for name in ("minutes", "quality")
    )
    assert [float(row["minutes"]) for row in minutes] == sorted(float(row["minutes"]) for row in minutes)
    assert len({row["run"] for row in curves}) == 13 * 8
    assert "Showing 56 runs of the 8 fastest groups; the CSV file has all runs." in path.read_text()


@pytest.mark.filterwarnings("error")
def test_missing_glyphs_and_math_markup_stay_text(tmp_path):
    name = '\u7cfb\u7edf$\\frac$ a|b *c* [d](e) & "f" ]]>'
    write_log(tmp_path / "logs", name, 0, qualities=[0.25])
    path = page.write_page(build.build_report([tmp_path / "logs"]), tmp_path / "page")
    assert html.escape(name, quote=False) in html.escape(html.unescape(path.read_text()), quote=False)
    assert "[d](e)" not in (path.parent / "report.md").read_text()


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("width", [1280, 400])
def test_browser_renders_the_page_without_overflow(text, tmp_path, width):
    """The page is loaded in a frame, because a headless window has a minimum width."""
    inner = tmp_path / "inner.html"
    inner.write_text(text.replace("</body>", MEASURE_LAYOUT + "</body>"))
    outer = tmp_path / "outer.html"
    outer.write_text(
        f'<body style="margin:0"><iframe src="inner.html" style="width:{width}px;height:2000px;border:0"></iframe>'
        '<script>addEventListener("load", () => { try { document.body.append(frames[0].document.title) } '
        "catch (error) { console.error(error) } })</script>"
    )
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--virtual-time-budget=2000"]
    command += ["--enable-logging=stderr", "--v=0", "--allow-file-access-from-files", "--no-first-run"]
    result = subprocess.run(
        [*command, f"--user-data-dir={tmp_path}/profile", outer.as_uri()], capture_output=True, text=True, timeout=120
    )
    assert "CONSOLE" not in result.stderr
    layout = re.search(r"plots (\d+) empty (\d+) width (\d+) overflow (-?\d+) children (\d+)", result.stdout)
    assert layout, result.stdout[-500:] + result.stderr[-500:]
    plots, empty, inner_width, overflow, children = map(int, layout.groups())
    assert (plots, empty, inner_width) == (text.count("<figure>"), 0, width)
    assert overflow <= 0
    assert children > 5

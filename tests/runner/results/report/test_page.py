"""The report page: everything stands in it, nothing hostile gets out of it, and a browser shows it all."""

import csv
import html
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from timetrial.runner.results.report import build, page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "<script>alert(1)<"  # a folder's name: a slash cannot be part of it
TARGET = 0.24
# What a browser cannot be asked from outside: sizes of pictures, width of the page.
LOOK = """<script>
const pictures = [...document.querySelectorAll("figure svg")];
const boxes = pictures.map(svg => svg.getBoundingClientRect());
const empty = boxes.filter(box => box.width < 200 || box.height < 50).length;
const overflow = document.documentElement.scrollWidth - innerWidth;
const children = pictures.map(svg => svg.querySelectorAll("path, use, text").length);
document.title =
  `pictures ${boxes.length} empty ${empty} width ${innerWidth} overflow ${overflow} children ${Math.min(...children)}`;
</script>"""


def write_log(root, system, number, *, qualities, seconds=600.0, cards=8, batch=1024):
    """A log of round v0.7 that evaluates once an epoch; it fails where no quality reaches the target."""
    folder = root / "v0.7" / "Maker" / system / "gnmt"
    folder.mkdir(parents=True, exist_ok=True)
    (root / "v0.7" / "Maker" / "systems").mkdir(exist_ok=True)
    described = {"accelerator_model_name": "Card $1$ <b>", "accelerators_per_node": cards, "number_of_nodes": 1}
    (root / "v0.7" / "Maker" / "systems" / f"{system}.json").write_text(json.dumps(described))
    begun = 1_600_000_000_000
    lines = [
        ("submission_benchmark", "gnmt", {}, 0.0),
        ("global_batch_size", batch, {}, 0.0),
        ("seed", number, {}, 0.0),
    ]
    lines += [("opt_base_learning_rate", 0.002, {}, 0.0), ("run_start", None, {}, 0.0)]
    for epoch, quality in enumerate(qualities, start=1):
        lines.append(("eval_accuracy", quality, {"epoch_num": epoch}, seconds * epoch / (len(qualities) + 0.1)))
    status = "success" if qualities[-1] >= TARGET else "aborted"
    lines.append(("run_stop", None, {"status": status}, seconds))
    lines += [("run_stop", None, {"status": status}, seconds + 1)] * (batch == 2048)  # one more thing to infer
    events = [
        {"namespace": "", "time_ms": begun + after * 1000, "key": key, "value": value, "metadata": more}
        for key, value, more, after in lines
    ]
    text = "".join(f":::MLLOG {json.dumps(event)}\n" for event in events)
    (folder / f"result_{number}.txt").write_text(text)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Three systems: one good, one with a hostile name and other epochs, one that failed too often; and the studies."""
    root = tmp_path_factory.mktemp("results")
    for number in range(4):
        write_log(root, "box_a", number, qualities=[0.2, 0.22, 0.241 + number / 1000], seconds=600 + 5 * number)
        write_log(
            root, HOSTILE, number, qualities=[0.1, 0.2, 0.21, 0.22, 0.245], seconds=400 + number, cards=16, batch=2048
        )
        write_log(root, "box_c", number, qualities=[0.2, 0.21] if number < 2 else [0.2, 0.25], seconds=700 + number)
    studies = Path(build.__file__).parents[1] / "known" / "studies"
    return build.build([root, *sorted(studies.glob("*.csv"))])


@pytest.fixture(scope="module")
def written(found, tmp_path_factory):
    return page.write(found, tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def text(written):
    return written.read_text()


def figures(text):
    return re.findall(r"<figure>.*?</figure>", text, re.DOTALL)


def test_every_picture_is_there_and_says_what_it_shows(text):
    captions = [re.search(r"<h3>(.*?)</h3>", figure)[1] for figure in figures(text)]
    for start in ("Minutes to train", "Throughput", "BLEU by epoch", "Epochs to converge", "Scaling"):
        assert any(caption.startswith(start) for caption in captions), start
    assert sum(caption.startswith("Ratios") for caption in captions) == 1
    assert sum(caption.startswith("Speed against FP32 peak") for caption in captions) == 6
    for figure in figures(text):
        name = re.search(r'aria-labelledby="(\S+)-title \1-desc"', figure)[1]
        assert re.search(
            rf'role="img".*<title id="{name}-title">[^<]+</title><desc id="{name}-desc">[^<]+</desc>', figure
        )
        assert "<figcaption>" in figure
    ids = re.findall(r' id="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(|href=")#([^")]+)', text)) <= set(ids)


def test_behind_every_picture_and_table_lies_its_data(text, written):
    links = re.findall(r'href="(csv/[^"]*)"', text)
    assert len(links) == text.count("<figure>") + text.count("<table>") + 3  # findings, what was inferred, runs
    for link in links:
        rows = list(csv.reader((written.parent / link).read_text().splitlines()))
        assert len(rows) > 1, link
        assert len({len(row) for row in rows}) == 1, link
    assert sorted(path.name for path in (written.parent / "csv").iterdir()) == sorted(link[4:] for link in links)


def test_banners_come_first_and_failures_are_never_zero(text, found):
    banner = next(one.sentence for one in found.findings if one.kind == "banner")
    assert html.escape(banner) in text.split('role="alert"')[1].split("</div>")[0]
    assert text.index(html.escape(banner)) < text.index("<table>")
    assert '<td class="number">no result: 2 of 4 failed</td>' in text
    assert "4 (2 failed)" in text
    assert text.count("out of memory") > 4
    assert page.DISCLAIMER in text


def test_markdown_says_the_same(written, text, found):
    plain = (written.parent / "report.md").read_text()
    assert plain.count("\n## ") == text.count("<h2")
    assert plain.count("Figure ") == text.count("<figure>")
    assert len(re.findall(r"^\| ?-", plain, re.MULTILINE)) == text.count("<table>")
    assert "no result: 2 of 4 failed" in plain
    for line in plain.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) > 4, line
    for comparison in found.comparisons:
        assert comparison.verdict.split(": ", 1)[1].replace("<", "\\<") in plain


def test_a_hostile_name_stays_a_name(text, written):
    assert "<script" not in text
    assert "<b>V" not in text
    assert "&lt;script&gt;alert(1)&lt;" in text
    assert re.search(r"(?<!\\)<", (written.parent / "report.md").read_text()) is None


def test_the_page_asks_nobody_for_anything(text):
    assert not re.findall(r"https?:|//[a-z]|@import|url\((?!#)", text)
    assert not re.findall(r"#0102|#0103|DejaVu", text)  # colours and fonts are the page's


def test_headings_tables_and_landmarks_are_real(text):
    levels = [int(level) for level in re.findall(r"<h(\d)", text)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert text.count("<table>") == text.count("<caption") == text.count("<thead>")
    assert '<html lang="en">' in text
    assert 'class="skip" href="#says"' in text
    assert not re.findall(r"<th(?![^>]*scope=)[ >]", text)


def test_the_same_report_gives_the_same_bytes(found, written, tmp_path):
    again = page.write(found, tmp_path / "new" / "folder")
    for path in [written, written.parent / "report.md", *(written.parent / "csv").iterdir()]:
        assert (again.parent / path.relative_to(written.parent)).read_bytes() == path.read_bytes(), path
    assert not list(again.parent.rglob("*.tmp"))


@pytest.mark.parametrize("qualities", [[0.2, 0.25], [0.2, 0.21]])
def test_a_single_run_gives_a_page(tmp_path, qualities):
    write_log(tmp_path / "logs", "box", 0, qualities=qualities)
    text = page.write(build.build([tmp_path / "logs"]), tmp_path / "page").read_text()
    assert "1 run in 1 cell." in text
    assert 'href="#borrowed"' not in text
    assert ("no result: 1 of 1 failed" in text) == (qualities[-1] < TARGET)
    assert "none: needs 3 runs, has 1" in text or qualities[-1] < TARGET
    assert len(figures(text)) == (3 if qualities[-1] >= TARGET else 1)


def test_borrowed_figures_alone_give_a_page(tmp_path):
    study = Path(build.__file__).parents[1] / "known" / "studies" / "titan_v_2018.csv"
    text = page.write(build.build([study]), tmp_path).read_text()
    assert "This page judges 2 borrowed figures of 1 study." in text
    assert "What was inferred" not in text


def test_many_cells_are_sorted_and_many_curves_thinned_out_in_the_picture_alone(tmp_path):
    for box in range(13):
        for number in range(8):
            write_log(
                tmp_path / "logs", f"box_{box:02}", number, qualities=[0.2, 0.25], seconds=900 - 31 * box + number
            )
    out = page.write(build.build([tmp_path / "logs"]), tmp_path / "page")
    minutes, curves = (
        list(csv.DictReader((out.parent / "csv" / f"gnmt-v0-7-{name}.csv").read_text().splitlines()))
        for name in ("minutes", "quality")
    )
    assert [float(row["minutes"]) for row in minutes] == sorted(float(row["minutes"]) for row in minutes)
    assert len({row["run"] for row in curves}) == 13 * 8
    assert "Drawn are 56 runs of the 8 fastest cells; all are in the data." in out.read_text()


@pytest.mark.filterwarnings("error")
def test_letters_that_no_font_knows_and_formulas_are_text(tmp_path):
    name = '\u7cfb\u7edf$\\frac$ a|b *c* [d](e) & "f" ]]>'
    write_log(tmp_path / "logs", name, 0, qualities=[0.25])
    out = page.write(build.build([tmp_path / "logs"]), tmp_path / "page")
    assert html.escape(name, quote=False) in html.escape(html.unescape(out.read_text()), quote=False)
    assert "[d](e)" not in (out.parent / "report.md").read_text()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_it_all(text, tmp_path, width):
    """In a frame of the asked width: headless windows have a least width of their own."""
    inner = tmp_path / "inner.html"
    inner.write_text(text.replace("</body>", LOOK + "</body>"))
    outer = tmp_path / "outer.html"
    outer.write_text(
        f'<body style="margin:0"><iframe src="inner.html" style="width:{width}px;height:2000px;border:0"></iframe>'
        '<script>addEventListener("load", () => { try { document.body.append(frames[0].document.title) } '
        "catch (error) { console.error(error) } })</script>"
    )
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--virtual-time-budget=2000"]
    command += ["--enable-logging=stderr", "--v=0", "--allow-file-access-from-files", "--no-first-run"]
    shown = subprocess.run(
        [*command, f"--user-data-dir={tmp_path}/profile", outer.as_uri()], capture_output=True, text=True, timeout=120
    )
    assert "CONSOLE" not in shown.stderr
    seen = re.search(r"pictures (\d+) empty (\d+) width (\d+) overflow (-?\d+) children (\d+)", shown.stdout)
    assert seen, shown.stdout[-500:] + shown.stderr[-500:]
    pictures, empty, inside, overflow, children = map(int, seen.groups())
    assert (pictures, empty, inside) == (text.count("<figure>"), 0, width)
    assert overflow <= 0
    assert children > 5

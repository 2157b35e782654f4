"""The report page in a browser: its layout, and what its menus change."""

import html
import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from timetrial.runner.results.report import build, page
from timetrial.runner.results.report.table_page import BAD, Cell, PageTable, write_table_page

spec = importlib.util.spec_from_file_location("pages", Path(__file__).with_name("pages.py"))
pages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pages)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Writes sizes of plots and page into the title, because they cannot be queried from outside the browser.
MEASURE_LAYOUT = """<script>
for (const node of document.querySelectorAll("details")) node.open = true;
for (const node of document.querySelectorAll("[data-answer]")) node.hidden = false;
const plots = [...document.querySelectorAll("figure > svg")];
const boxes = plots.map(svg => svg.getBoundingClientRect());
const empty = boxes.filter(box => box.width < 200 || box.height < 50).length;
const overflow = document.documentElement.scrollWidth - innerWidth;
const children = plots.map(svg => svg.querySelectorAll("path, use, text").length);
document.title =
  `plots ${boxes.length} empty ${empty} width ${innerWidth} overflow ${overflow} children ${Math.min(...children)}`;
</script>"""
MEASURE_TABLE = """<script>
const table = document.querySelector(".scroll");
const overflow = document.documentElement.scrollWidth - innerWidth;
document.title = `overflow ${overflow} scrolled ${table.scrollWidth - table.clientWidth}`;
</script>"""
# Picks the second baseline and the first GPU, and writes into the title what is shown then.
INTERACT = """<script>
const change = new Event("change", { bubbles: true });
const picker = document.querySelector(".baselines select");
picker.selectedIndex = 1;
picker.dispatchEvent(change);
const answers = [...document.querySelectorAll("[data-answer]")].filter(node => !node.hidden && node.querySelector("b"));
const first = answers.find(node => node.dataset.answer === picker.value);
const baseline = first.querySelector("tbody th").textContent.trim();
const wanted = picker.selectedOptions[0].textContent;
const filter = document.querySelector(".filters select[name=gpu]");
filter.selectedIndex = 1;
filter.dispatchEvent(change);
const rows = [...document.querySelectorAll("tr[data-gpu]")];
const menus = [...document.querySelectorAll("form.curves optgroup")];
const wrong = rows.filter(row => row.hidden === (row.dataset.gpu === filter.value)).length
  + menus.filter(menu => menu.hidden === menu.dataset.gpu.split("|").includes(filter.value)).length;
const hiddenMenus = menus.filter(menu => menu.hidden).length;
const marks = [...document.querySelectorAll(".benchmark .figures .line")];
const hiddenMarks = marks.filter(mark => mark.hasAttribute("hidden")).length;
document.title = `menus ${hiddenMenus} ` +
  `baseline "${baseline}" of "${wanted}" wrong ${wrong} marks ${marks.length} hidden ${hiddenMarks}`;
</script>"""


# Clicks on the second run, then picks two others and all, and writes into the title what is shown after each.
PICK_CURVES = """<script>
const change = new Event("change", { bubbles: true });
const menus = document.querySelector("form.curves").elements;
const figure = document.querySelector(".picked figure");
const isShown = node => getComputedStyle(node).display !== "none";
function describe() {
  const lines = [...figure.querySelectorAll(".curves path")].filter(isShown);
  const ends = lines.map(line => line.getBoundingClientRect().right - figure.getBoundingClientRect().left);
  return JSON.stringify({
    views: [...document.querySelectorAll(".run")].filter(isShown).map(view => view.id),
    menus: [...menus].map(menu => menu.value),
    lines: Object.fromEntries(lines.map(line => [line.dataset.run, line.getAttribute("class")])),
    ticks: [...figure.querySelectorAll(".tick")].map(tick => tick.textContent),
    width: Math.max(...ends) / figure.getBoundingClientRect().width,
  });
}
const states = [describe()];
document.querySelector('a[href="#run-2"]').click();
setTimeout(() => {
  states.push(describe());
  for (const [first, second] of [["run-4", "run-5"], ["run-5", "all"]]) {
    [menus[0].value, menus[1].value] = [first, second];
    menus[0].dispatchEvent(change);
    states.push(describe());
  }
  document.title = "[" + states + "]";
}, 200);
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_click_on_a_run_opens_its_view_and_menus_show_any_two_curves(tmp_path):
    """Three runs take 10,000 s and three 100 s: the axis is that of the runs shown."""
    for number in range(3):
        pages.write_log(tmp_path / "logs", "slow", number, qualities=[0.2, 0.25], seconds=10_000 + number)
        pages.write_log(
            tmp_path / "logs", "swift", number, qualities=[0.1, 0.25], seconds=100 + number, num_accelerators=16
        )
    text = page.write_page(build.build_report([tmp_path / "logs"]), tmp_path / "page").read_text()
    title = title_in_browser(text, PICK_CURVES, tmp_path, 1280)
    start, clicked, two, every = json.loads(re.search(r"\[\{.*\}\]", title)[0])
    assert (start["views"], start["menus"]) == ([], ["group-1", "group-2"])
    assert (clicked["views"], clicked["menus"]) == (["run-2"], ["run-2", "group-2"])
    assert clicked["lines"] == {"run-2": "s1", "group-2": "s2"}
    assert clicked["ticks"] == ["0", "0.5", "1", "1.5", "2", "2.5"]
    assert two["lines"] == {"run-4": "s1", "run-5": "s2"}
    assert two["ticks"] == ["0", "0.01", "0.02", "0.03", "0.04", "0.05"]
    assert 0.4 < two["width"] <= 1
    assert every["lines"] == {f"run-{number}": "all" for number in range(1, 7)} | {"run-5": "s1"}
    assert every["ticks"] == clicked["ticks"]


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_picked_baseline_and_filter_change_what_is_shown(text, tmp_path):
    title = title_in_browser(text, INTERACT, tmp_path, 1280)
    assert int(re.search(r"menus (\d+) ", title)[1]) > 0  # of runs on other GPUs
    found = re.search(r'baseline "(.*?)" of "(.*?)" wrong (\d+) marks (\d+) hidden (\d+)', title)
    assert found, title
    baseline, wanted = (re.sub(r"[\s,]+", "", text) for text in found.groups()[:2])
    assert baseline == wanted
    wrong, marks, hidden = map(int, found.groups()[2:])
    assert wrong == 0
    assert 0 < hidden <= marks


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("width", [1280, 400])
def test_browser_renders_the_page_without_overflow(text, tmp_path, width):
    layout = re.search(
        r"plots (\d+) empty (\d+) width (\d+) overflow (-?\d+) children (\d+)",
        title_in_browser(text, MEASURE_LAYOUT, tmp_path, width),
    )
    assert layout
    plots, empty, inner_width, overflow, children = map(int, layout.groups())
    assert (plots, empty, inner_width) == (text.count("<figure>"), 0, width)
    assert overflow <= 0
    assert children > 5


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("width", [1280, 400])
def test_browser_scrolls_a_wide_table_and_not_its_page(tmp_path, width):
    rows = [[Cell("a long name", detail="a detail"), *[Cell("9,123,456", BAD)] * 24]] * 3
    table = PageTable("Wide", ("name", *map(str, range(24))), rows, 1, "a caption")
    path = write_table_page(tmp_path / "page.html", "A title", "A lead.", rows[0][0], [table], {"CPU": "a CPU" * 99})
    title = title_in_browser(path.read_text(encoding="utf-8"), MEASURE_TABLE, tmp_path, width)
    overflow, scrolled = map(int, re.search(r"overflow (-?\d+) scrolled (\d+)", title).groups())
    assert overflow <= 0 < scrolled


def title_in_browser(text, script, tmp_path, width):
    """Return the title that a script gives the page, which is loaded in a frame: a headless window has a least width.

    The page's policy, which forbids other scripts than its own, is removed.
    """
    inner = tmp_path / "inner.html"
    inner.write_text(re.sub(r'<meta http-equiv="[^>]*>', "", text).replace("</body>", script + "</body>"))
    outer = tmp_path / "outer.html"
    outer.write_text(
        f'<body style="margin:0"><iframe src="inner.html" style="width:{width}px;height:2000px;border:0"></iframe>'
        '<script>addEventListener("load", () => setTimeout(() => { try '
        "{ document.body.append(frames[0].document.title) } catch (error) { console.error(error) } }, 500))</script>"
    )
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--virtual-time-budget=2000"]
    command += ["--enable-logging=stderr", "--v=0", "--allow-file-access-from-files", "--no-first-run"]
    result = subprocess.run(
        [*command, f"--user-data-dir={tmp_path}/profile", outer.as_uri()], capture_output=True, text=True, timeout=120
    )
    assert "CONSOLE" not in result.stderr
    return html.unescape(result.stdout)

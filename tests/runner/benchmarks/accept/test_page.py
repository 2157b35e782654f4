"""The pages of `timetrial accept`, from invented nodes: what is on them, and in which tone."""

import re
from html import unescape

import pytest

from timetrial.runner.benchmarks.accept import page
from timetrial.runner.benchmarks.accept.cluster import Node, rank_nodes
from timetrial.runner.benchmarks.accept.document import to_document
from timetrial.runner.benchmarks.accept.figures import Figure, Line, State
from timetrial.runner.benchmarks.accept.node import Findings

LINES = [
    Line(State.PASS, "memory copy", "GPU 0", "2,900 GB/s, 87% of 3,350 (data sheet)"),
    Line(State.FAIL, "memory copy", "GPU 1", "1,500 GB/s, 45% of 3,350 (data sheet)", "Have <the> GPU replaced."),
    Line(State.WARN, "disk read", "host", "900 MB/s, 14% of 6,522 (images)", "Put the data on a faster disk."),
    Line(State.NOT_TESTED, "host memory copy", "host", "410 GB/s, nothing to compare with", "Compare."),
]
FIGURES = [
    Figure("memory copy", "GPU 0", "GB/s", (2900.0,), 3350.0, "data sheet"),
    Figure("memory copy", "GPU 1", "GB/s", (1500.0,), 3350.0, "data sheet"),
    Figure("host to device", "GPU 0", "GB/s", (55.0,), 63.0, "the PCIe link"),
    Figure("host to device", "GPU 1", "GB/s", (27.0,), 31.5, "the PCIe link"),
    Figure("disk read", "host", "MB/s", (900.0,), 6522.0, "images"),
    Figure("host memory copy", "host", "GB/s", (410.0,)),
]


def rows(text, title):
    """Return the cells of each row of a table as (class, text), by the name of its first cell."""
    (body,) = re.findall(rf'aria-label="{title}">.*?<tbody>(.*?)</tbody>', text, re.DOTALL)
    found = {}
    for row in re.findall("<tr>(.*?)</tr>", body, re.DOTALL):
        name, *cells = re.findall("<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        found.setdefault(name, []).append([re.sub("<[^>]*>", " ", cell).split() + tones(cell) for cell in cells])
    return found


def tones(cell):
    return [f"({tone})" for tone in re.findall(r'class="(\w+)"', cell) if tone != "detail"]


@pytest.fixture
def text(tmp_path):
    findings = Findings(LINES, FIGURES, {"host": 8.0, "training": 112.0})
    document = to_document(findings, tmp_path / "20260131-1", 2.0)
    document["system"]["gpus"] = [{"name": "NVIDIA H100", "power_cap_watts": 700.0, "driver": "570.86"}] * 2
    path = page.write_page(document | {"node": "<node>"}, tmp_path)
    assert path == tmp_path / "accept.html"
    return path.read_text(encoding="utf-8")


def test_the_verdict_and_what_to_do_come_first(text):
    assert re.search(r'<b class="slower">FAIL</b> 1 FAIL, 1 WARN, 1 PASS, 1 not tested', text)
    urgent = rows(text, "What to do")
    assert list(urgent) == ["memory copy", "disk read"]
    assert urgent["memory copy"][0][:2] == [["GPU", "1"], ["FAIL", "(slower)"]]
    assert "Have &lt;the&gt; GPU replaced." in text
    assert text.index("What to do") < text.index("Figures of the GPUs") < text.index("1 line PASS")


def test_the_gpus_are_side_by_side_with_their_expectation(text):
    figures = rows(text, "Figures of the GPUs")
    (copy,) = figures["memory copy"]
    assert copy == [["GB/s"], ["3,350", "data", "sheet"], ["2,900", "87%", "(faster)"], ["1,500", "45%", "(slower)"]]
    (transfer,) = figures["host to device"]
    assert transfer[2:] == [["55", "87%"], ["27", "86%", "of", "31.5"]]  # a slot with half of the lanes


def test_the_host_and_the_hardware_are_there(text):
    figures = rows(text, "Figures of the host and of all GPUs together")
    assert figures["disk read"] == [[["host"], ["MB/s"], ["6,522", "images"], ["900", "14%", "(caution)"]]]
    assert figures["host memory copy"][0][2:] == [["none", "(none)"], ["410"]]
    assert "2 × NVIDIA H100, power cap 700 W, driver 570.86" in text
    assert "host 8, training 112" in text


def test_the_page_needs_no_other_file_and_escapes_names(text):
    assert "<h1>Acceptance of &lt;node&gt;</h1>" in text
    assert not re.search(r"(src|href)=\"(?!#)|url\(|@import", text)
    assert "<script" not in text


def test_of_a_node_that_passes_the_lines_are_open(tmp_path):
    document = to_document(Findings(LINES[:1], FIGURES[:1], {"host": 8.0}), tmp_path / "20260131-1", 2.0)
    text = page.write_page(document, tmp_path).read_text(encoding="utf-8")
    assert '<b class="faster">PASS</b>' in text
    assert "What to do" not in text
    assert "<details>" not in text


def write_ranking(tmp_path, second):
    """Write the page of six nodes, one of which has 80% of the speed; `second` adds its second result."""
    nodes = []
    for number, speed in enumerate([1.0, 1.001, 0.999, 1.002, 0.998, 0.8]):
        figures = tuple(Figure("memory copy", f"GPU {gpu}", "GB/s", (2900.0 * speed,)) for gpu in range(2))
        models = {"GPU 0": "H100", "GPU 1": "H100"}
        nodes.append(Node(f"node{number}", "", State.PASS, figures, models, figures if second else ()))
    return unescape(page.write_ranking(rank_nodes(nodes), tmp_path).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("second", "verdict"),
    [
        (False, '<b class="caution">Measure again</b> Run timetrial accept again on node5'),
        (True, '<b class="slower">Slow devices</b> on node5'),
    ],
)
def test_the_ranking_names_the_slow_node(tmp_path, second, verdict):
    text = write_ranking(tmp_path, second)
    assert verdict in text
    slow = rows(text, "Slow devices")
    assert list(slow) == ["node5"]
    assert len(slow["node5"]) == 2
    ranked = rows(text, "Ranking")
    assert [ranked[str(rank)][0][0] for rank in (1, 6)] == [["node3"], ["node5"]]

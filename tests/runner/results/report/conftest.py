"""A report that several modules look at."""

import importlib.util
from pathlib import Path

import pytest

from timetrial.runner.results.parse import external
from timetrial.runner.results.report import build, page

spec = importlib.util.spec_from_file_location("pages", Path(__file__).with_name("pages.py"))
pages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pages)

HOSTILE_NAME = "<script>alert(1)<"  # of a folder, so it cannot contain a slash


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Return a report on three systems and all studies; the second has a hostile name, the third failed too often."""
    root = tmp_path_factory.mktemp("results")
    for number in range(4):
        pages.write_log(root, "box_a", number, qualities=[0.2, 0.22, 0.241 + number / 1000], seconds=600 + 5 * number)
        slow_start = [0.1, 0.2, 0.21, 0.22, 0.245]
        pages.write_log(
            root, HOSTILE_NAME, number, qualities=slow_start, seconds=400 + number, num_accelerators=16, batch=2048
        )
        pages.write_log(
            root, "box_c", number, qualities=[0.2, 0.21] if number < 2 else [0.2, 0.25], seconds=700 + number
        )
    studies = external.REFERENCE_DATA / "studies"
    return build.build_report([root, *sorted(studies.glob("*.csv"))], "box_a")  # without a baseline they are ranked


@pytest.fixture(scope="module")
def report_path(report, tmp_path_factory):
    return page.write_page(report, tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def text(report_path):
    return report_path.read_text()

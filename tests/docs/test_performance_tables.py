"""The tables of performance and the floors in them; `test_configuration.py` tests that pages are current."""

import csv
from dataclasses import replace

import pytest

from timetrial.runner.record.performance import read_measurements
from timetrial.scripts.dev import performance_tables as tables


@pytest.fixture
def floors(tmp_path, monkeypatch):
    """floors(*rows): the floors of a file with these rows, on a GPU of 500 TFLOP/s and 2 TB/s."""
    rate = next(row for row in read_measurements() if row.quantity == "product rate")
    bandwidth = replace(rate, quantity="memory bandwidth", value=2.0, unit="TB/s")

    def read(*rows):
        header = ("workload", "recipe", "gpu", "batch", "part", "amount", "unit", "note")
        with open(tmp_path / "floors.csv", "w", newline="") as file:
            csv.writer(file).writerows([header, *(("gpt", "reference", rate.gpu, 8, *row, "") for row in rows)])
        monkeypatch.setattr(tables, "FLOORS_FILE", tmp_path / "floors.csv")
        return tables.read_floors([replace(rate, value=500.0), bandwidth])

    return read


def test_every_workload_has_a_reference_page_of_at_most_80_lines(root):
    pages = {path: path.read_text() for path in root.glob("workloads/*/PERFORMANCE.md")}
    assert {path.parent.name for path in pages} == {row.workload for row in read_measurements()} - {""}
    assert not [path for path, text in pages.items() if len(text.splitlines()) > 80]
    for path, text in pages.items():
        assert f"<!-- begin performance: figures {path.parent.name} -->" in text
    with_floors = {floor.workload for floor in tables.read_floors(read_measurements())}
    assert with_floors == {path.parent.name for path, text in pages.items() if "performance: floor" in text}


def test_a_floor_is_the_sum_of_its_parts(floors):
    (floor,) = floors(
        ("step", 3000, "tokens"), ("products", 10, "TFLOP"), ("norms", 20, "GB"), ("attention", 0.5, "ms")
    )
    assert [part.ms for part in floor.parts] == pytest.approx([20.0, 10.0, 0.5])
    assert floor.ms == pytest.approx(30.5)


def test_the_share_of_a_floor(floors):
    (floor,) = floors(("step", 3000, "tokens"), ("products", 10, "TFLOP"))
    rate = next(row for row in read_measurements() if row.workload == "gpt" and row.quantity == "training")
    measured = replace(rate, batch=8, value=75000.0)  # 3000 tokens in 40 ms, against 20
    assert floor.share_of(measured) == pytest.approx(0.5)
    assert floor.share_of(replace(measured, quantity="step", value=40.0, unit="ms")) == pytest.approx(0.5)
    changes = {"batch": 4, "gpus": 2, "gpu": "H200", "precision": "fp32", "variant": "eager", "quantity": "start"}
    assert {floor.share_of(replace(measured, **{key: value})) for key, value in changes.items()} == {None}


def test_figures_of_older_code_come_last_and_are_marked():
    rows = [row for row in read_measurements() if row.workload == "cnn"]
    rates = [row for row in read_measurements() if not row.workload]
    old, new = next(row for row in rows if not row.current), next(row for row in rows if row.current)
    lines = tables.figures("cnn", [*rates, old, new]).splitlines()[2:4]
    assert [f"{tables.OLD} {old.commit}" in line for line in lines] == [False, True]


@pytest.mark.parametrize(
    ("value", "text"), [(395e6, "395 M"), (1156967.0, "1,156,967"), (63.1, "63.1"), (0.139, "0.139"), (8.0, "8")]
)
def test_writes_numbers_for_readers(value, text):
    assert tables.format_value(value, exact=True) == text


def test_fills_marked_tables_only():
    page = "a\n<!-- begin performance: reference -->\nold\n<!-- end performance -->\nb\n"
    filled = tables.fill(page)
    assert filled.startswith("a\n<!-- begin performance: reference -->\n| workload |")
    assert filled.endswith("<!-- end performance -->\nb\n")
    assert "old" not in filled
    assert tables.fill(filled) == filled

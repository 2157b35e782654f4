"""CSV files: text from strangers' files is no formula."""

import csv

import pytest

from timetrial.runner.results.report.csv_tables import write_csv


def read(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b"])
def test_text_that_begins_like_a_formula_gets_an_apostrophe(tmp_path, start):
    formula = f"{start}cmd|' /C calc'!A0"
    write_csv(tmp_path / "a.csv", [{"system": formula, formula: 1.5}])
    shown = "'" + formula.replace("\r", r"\r")
    assert read(tmp_path / "a.csv") == [["system", shown], [shown, "1.5"]]


def test_cell_does_not_begin_a_row(tmp_path):
    write_csv(tmp_path / "a.csv", [{"a": "x\r=1+1", "b": "y\n=1+1"}])
    assert read(tmp_path / "a.csv") == [["a", "b"], [r"x\r=1+1", "y\n=1+1"]]


def test_numbers_and_other_text_stay(tmp_path):
    row = {"a": -1.5, "b": "-1.5e-3", "c": "1=1", "d": "", "e": None, "f": "'quoted", "g": "-0.5/0.2"}
    write_csv(tmp_path / "a.csv", [row])
    assert read(tmp_path / "a.csv")[1] == ["-1.5", "-1.5e-3", "1=1", "", "", "'quoted", "'-0.5/0.2"]

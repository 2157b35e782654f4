"""The list of recipes: each once, on 80 columns, and as JSON."""

import io
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from timetrial.runner.cli import list_recipes
from timetrial.runner.results.analysis import expectations


def test_every_recipe_is_listed_once(root, tmp_path):
    entries = list(list_recipes.find_entries(tmp_path))
    recipes = sorted(
        str(path.relative_to(root / "conf/recipe"))[:-5] for path in (root / "conf/recipe").rglob("*.yaml")
    )
    assert sorted(entry.recipe for entry in entries) == recipes
    assert all(entry.target for entry in entries)
    assert next(entry.scale for entry in entries if entry.recipe == "ncf/mini_1m") == "mini"


def test_datasets_are_those_that_the_recipe_reads(tmp_path):
    (tmp_path / "ml-1m").mkdir()
    datasets = {entry.recipe: entry.data for entry in list_recipes.find_entries(tmp_path)}
    assert datasets["ncf/mini_1m"] == {"ml-1m": "unmanaged"}  # not that of the recipe in its defaults
    assert datasets["ncf/reference_2048"] == {"ml-20m": "missing"}
    assert datasets["ssd/reference"] == {"backbones": "missing", "coco": "missing"}
    assert datasets["gnmt/embedded"] == {}


def test_table_fits_80_columns_without_truncation(tmp_path):
    out = io.StringIO()
    list_recipes._show(Console(file=out, width=80), list(list_recipes.find_entries(tmp_path)))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80 + 10  # terminals wrap the two sentences below the table
    assert max(len(line) for line in lines if not line.startswith(("Epochs", "what"))) <= 80
    assert "…" not in out.getvalue()
    assert any(line.split() == ["reference", "wmt17", "missing", "0.25", "3-4*", "35.6"] for line in lines)
    assert any(line.split() == ["mini", "multi30k", "missing", "0.36", "19-21", "5", "20s", "h100"] for line in lines)


@pytest.mark.parametrize(("width", "left_out"), [(60, "epochs, GiB, time"), (40, "state, target, epochs, GiB, time")])
def test_narrow_table_leaves_out_columns_and_shortens_nothing(tmp_path, width, left_out):
    out, entries = io.StringIO(), list(list_recipes.find_entries(tmp_path))
    list_recipes._show(Console(file=out, width=width), entries)
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    words = text.split()
    assert " ".join(words).endswith(f"Left out on {width} columns: {left_out}.")
    assert {entry.recipe.split("/")[1] for entry in entries} <= set(words)
    assert {name for entry in entries for name in entry.data} <= set(words)


@pytest.mark.integration
def test_json_output(tmp_path):
    command = [sys.executable, "-P", "-m", "timetrial", "list", "--json"]
    completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    entries = {entry["recipe"]: entry for entry in json.loads(completed.stdout)}
    assert entries["ncf/reference"]["expected"]["runs"] == 300
    assert entries["resnet50/embedded"]["frameworks"] == ["torch", "tensorflow"]


def test_expectation_is_that_of_the_latest_known_round(monkeypatch, tmp_path):
    known = {"v05": SimpleNamespace(by="others"), "v07": SimpleNamespace(by="timetrial")}
    expected_of = lambda recipe, round_name: known.get(round_name)  # noqa: E731
    monkeypatch.setattr(expectations, "find_expectation", expected_of)
    expected = {entry.recipe: entry.expected for entry in list_recipes.find_entries(tmp_path)}
    assert expected["gnmt/reference"] is known["v07"]

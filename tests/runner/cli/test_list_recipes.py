"""The list of what can be trained: every recipe once, on 80 columns, and as JSON."""

import io
import json
import subprocess
import sys

from rich.console import Console

from timetrial.runner.cli import list_recipes


def test_every_recipe_stands_there_once(root, tmp_path):
    found = list(list_recipes.entries(tmp_path))
    there = sorted(str(path.relative_to(root / "conf/recipe"))[:-5] for path in (root / "conf/recipe").rglob("*.yaml"))
    assert sorted(entry.recipe for entry in found) == there
    assert all(entry.target for entry in found)


def test_sets_are_those_that_the_recipe_reads(tmp_path):
    (tmp_path / "ml-1m").mkdir()
    read = {entry.recipe: entry.data for entry in list_recipes.entries(tmp_path)}
    assert read["ncf/mini_1m"] == {"ml-1m": "unmanaged"}  # and not that of the recipe that it is built on
    assert read["ncf/reference_2048"] == {"ml-20m": "missing"}
    assert read["ssd/reference"] == {"backbones": "missing", "coco": "missing"}
    assert read["gnmt/embedded"] == {}


def test_it_fits_80_columns_uncut(tmp_path):
    out = io.StringIO()
    list_recipes.show(Console(file=out, width=80), list_recipes.entries(tmp_path))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80 + 10  # the two sentences below the table fold where a terminal does
    assert max(len(line) for line in lines if not line.startswith(("Epochs", "what"))) <= 80
    assert "…" not in out.getvalue()
    assert any(line.split()[:2] == ["mini", "multi30k"] and "6-8" in line for line in lines)


def test_a_script_gets_json(tmp_path):
    command = [sys.executable, "-P", "-m", "timetrial", "list", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    told = {entry["recipe"]: entry for entry in json.loads(done.stdout)}
    assert told["ncf/reference"]["expected"]["runs"] == 300
    assert told["resnet50/embedded"]["frameworks"] == ["torch", "tensorflow"]


def test_the_latest_round_that_is_known_is_told(monkeypatch, tmp_path):
    known = {"v05": "five", "v07": "seven"}
    monkeypatch.setattr(list_recipes.expectations, "find_expectation", lambda recipe, round_: known.get(round_))
    told = {entry.recipe: entry.expected for entry in list_recipes.entries(tmp_path)}
    assert told["gnmt/reference"] == "seven"

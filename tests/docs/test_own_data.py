"""docs/own_data.md: `timetrial data inspect` of five kinds of data prints the commands that the page shows."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from timetrial.datasets.synthetic import detection, images
from timetrial.runner.cli.app import app
from timetrial.runner.config.compose import compose
from timetrial.runner.config.validation import validate
from timetrial.runner.core.errors import Exit

PAGE = (Path(__file__).parents[2] / "docs" / "own_data.md").read_text(encoding="utf-8")
VERDICT = re.findall(r"    timetrial (run -m .*)\n    timetrial (study .*)\n", PAGE)
EXAMPLES = re.findall(r"    (timetrial data inspect (\S+))\n    (timetrial run .*)\n", PAGE)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{user};{user + place};4,5;{place}" for user in range(9) for place in range(4)]
    Path("ratings.csv").write_text("\n".join(["user;item;rating;timestamp", *rows]) + "\n")
    images.write_images(Path("photos"), images.ClassificationSpec(num_classes=2, train_per_class=3, val_per_class=2))
    detection.write_detection_dataset(Path("cells"), detection.DetectionSpec(num_train=3, num_val=2))
    Path("sentences").mkdir()
    for name, text in (("de", "Ein Hund\n"), ("en", "A dog\n")):
        Path(f"sentences/train.{name}").write_text(text * 200)
        Path(f"sentences/test.{name}").write_text(text)
    Path("book.txt").write_text("Call me\nIshmael.\n" * 200)
    return tmp_path


def inspect(path):
    return CliRunner().invoke(app, ["data", "inspect", path])


def test_the_page_has_five_kinds():
    assert len(EXAMPLES) == 5


@pytest.mark.parametrize(("_", "path", "command"), EXAMPLES, ids=[path for _, path, _ in EXAMPLES])
def test_inspect_prints_the_command_of_the_page(folder, _, path, command):
    result = inspect(path)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1].strip() == command
    overrides = [word.strip("'") for word in command.split()[2:]]
    config = validate(compose(["accelerator=cpu", *overrides]).node)
    assert config.recipe.scale == "mini"


def timetrial(command):
    words = [sys.executable, "-P", "-m", "timetrial", *shlex.split(command)]
    return subprocess.run(words, capture_output=True, text=True, timeout=300)


@pytest.mark.integration
@pytest.mark.parametrize(("_", "path", "command"), EXAMPLES, ids=[path for _, path, _ in EXAMPLES])
def test_the_command_of_the_page_trains(folder, _, path, command):
    small = "accelerator=cpu recipe.max_epochs=1" + " recipe.data.context=32" * path.startswith("book")
    done = timetrial(f"{command.removeprefix('timetrial ')} {small}")
    assert done.returncode in (0, Exit.TARGET_NOT_REACHED), done.stdout + done.stderr
    assert re.search(r"MLPerf log +complies", done.stdout)


@pytest.mark.integration
def test_five_seeds_give_a_verdict(folder):
    ((run, study),) = VERDICT
    done = timetrial(f"{run} accelerator=cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"runs +5;", timetrial(study).stdout)


def test_oddities_are_counted_and_problems_named(folder):
    Image.new("I;16", (8, 8), 60_000).save(
        "photos/train/" + sorted(p.name for p in Path("photos/train").iterdir())[0] + "/a.png"
    )
    next(Path("photos/val").glob("*/*")).with_suffix(".heic").write_bytes(b"x")
    output = inspect("photos").output
    assert "1 of 7 sampled images have more than 8 bits a pixel: they are scaled to 8" in output
    assert "1 files with the suffix .heic are not read" in output
    Path("sentences/test.en").write_text("A dog\nA cat\n")
    result = inspect("sentences")
    assert "test.en has 2 lines but" in result.output
    assert "would not train" in str(result.exception)
    (folder / "empty").mkdir()
    assert "is no dataset that a workload reads" in str(inspect("empty").exception)


def test_single_ratings_and_odd_paths_are_in_the_command(folder):
    path = "a, b.csv"
    Path(path).write_text(Path("ratings.csv").read_text() + "77;1;3;1\n")
    output = inspect(path).output
    assert "1 users with one rating" in output
    assert """'recipe.data.path="a, b.csv"' recipe.data.min_ratings_per_user=2""" in output
    overrides = ['recipe.data.path="a, b.csv"', "recipe.data.min_ratings_per_user=2"]
    assert compose(["accelerator=cpu", "recipe=ncf/mini", *overrides]).node.recipe.data.path == path

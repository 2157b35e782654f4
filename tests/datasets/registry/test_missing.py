"""The error for missing data names the command that fetches them, and that command works."""

import shlex
from pathlib import Path

import pytest

from timetrial.datasets.formats import cifar, movielens
from timetrial.datasets.registry import catalog
from timetrial.datasets.registry.missing import fetch_command, missing_data
from timetrial.runner.core.errors import DataError, Exit


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("data/multi30k", "timetrial data fetch multi30k"),
        ("data/multi30k/train.de", "timetrial data fetch multi30k"),
        ("other/ml-20m/ratings.csv", "timetrial data fetch ml-20m --data-dir other"),
        ("/scratch/my data/coco/annotations/a.json", "timetrial data fetch coco --data-dir '/scratch/my data'"),
        ("multi30k", "timetrial data fetch multi30k --data-dir ."),
        ("data/multi30/train.de", None),
        ("data/embedded/text.txt", None),
        ("notes.txt", None),
    ],
)
def test_command_fetches_the_dataset_of_the_path_into_its_folder(path, command):
    assert fetch_command(Path(path)) == command


def test_innermost_folder_named_as_a_dataset_counts():
    """A dataset in a folder that happens to be named as another: the file belongs to the inner one."""
    assert fetch_command(Path("coco/bccd/train")) == "timetrial data fetch bccd --data-dir coco"


@pytest.mark.parametrize("name", sorted(catalog.read()))
def test_every_dataset_has_a_command_that_reads_as_written(name, tmp_path):
    folder = tmp_path / "a folder"
    *command, fetched, _, data_dir = shlex.split(fetch_command(folder / name / "file"))
    assert command == ["timetrial", "data", "fetch"]
    assert catalog.select(catalog.read(), [fetched])[0].name == name
    assert Path(data_dir) == folder


def test_error_has_the_command_and_the_alternative():
    error = missing_data(Path("data/wmt16/vocab"), "name another with recipe.data.vocabulary", "cannot be read")
    expected = "run timetrial data fetch wmt16, or name another with recipe.data.vocabulary."
    assert str(error) == f"data/wmt16/vocab cannot be read: {expected}"
    assert error.exit_code == Exit.DATA
    assert str(missing_data(Path("mine/x.csv"), "name your file")) == "mine/x.csv is missing: name your file."


def test_readers_of_files_raise_it(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    with pytest.raises(
        DataError, match=rf"run timetrial data fetch cifar-10-batches-bin --data-dir {tmp_path}, or set"
    ):
        cifar.read(folder, ["data_batch_1.bin"])
    with pytest.raises(DataError, match=r"ml-1m/ratings.dat is missing: run timetrial data fetch ml-1m --data-dir "):
        movielens.read_ratings(tmp_path / "ml-1m/ratings.dat")

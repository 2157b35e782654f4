"""Damaged data of a fetched dataset: found before a run, where that costs little."""

import random
from dataclasses import replace

import pytest

from timetrial.datasets.download import manifest
from timetrial.runner.config.validation import validate
from timetrial.runner.core.errors import DataError
from timetrial.runner.launch import data_check

NAMES = ("ml-1m/ratings.dat", "ml-1m/more/users.dat")


@pytest.fixture
def config(compose, tmp_path):
    """A run on a dataset of two files, the first of a megabyte, with its manifest."""
    folder = tmp_path / "data" / "ml-1m"
    for number, name in enumerate(NAMES):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.Random(number).randbytes(1 << 20 >> 8 * number))
    entries = manifest.hash_tree(folder, lambda count: None)
    manifest.write_text(folder / manifest.FILE_NAME, manifest.Manifest({}, entries).to_text())
    return validate(compose(f"data_dir={tmp_path}/data", f"recipe.data.path={folder}/ratings.dat"))


def flip_bit(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def test_intact_data_pass(config):
    data_check.check_datasets(config)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "zero"])
def test_damage_is_found(config, tmp_path, name, damage):
    path = tmp_path / "data" / name
    match damage:
        case "flip":
            flip_bit(path, path.stat().st_size // 3)
        case "cut":
            path.write_bytes(path.read_bytes()[:-1])
        case "remove":
            path.unlink()
        case "zero":
            path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(DataError, match=r"ml-1m.*Remove .*ml-1m and run timetrial data fetch ml-1m"):
        data_check.check_datasets(config)


def test_fingerprint_depends_on_names_sizes_and_content(config, tmp_path):
    path = tmp_path / "data" / NAMES[0]
    seen = {data_check.fingerprint_data(config)}
    assert data_check.fingerprint_data(config) in seen
    flip_bit(path, 5)
    seen.add(data_check.fingerprint_data(config))
    path.write_bytes(path.read_bytes()[:-1])
    seen.add(data_check.fingerprint_data(config))
    folder = replace(config, recipe=replace(config.recipe, data=config.recipe.data | {"path": str(path.parent)}))
    seen.add(data_check.fingerprint_data(folder))
    (path.parent / "new.dat").write_text("")
    seen.add(data_check.fingerprint_data(folder))
    assert len(seen) == 5


def test_of_large_files_blocks_are_read(tmp_path, config):
    path = tmp_path / "data" / NAMES[0]
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    before = data_check.fingerprint_data(config)
    with open(path, "r+b") as file:
        file.write(b"x")
    assert data_check.fingerprint_data(config) != before

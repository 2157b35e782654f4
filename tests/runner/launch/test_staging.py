"""Copies on a node's own disk: equal to their source, made once, and read in its place."""

import os
import threading

import pytest
from rich.console import Console

from timetrial.datasets.synthetic import images
from timetrial.runner.config.compose import load_config
from timetrial.runner.config.validation import resolve_classes
from timetrial.runner.core.errors import Exit, HardwareError, RunError
from timetrial.runner.launch import staging

QUIET = Console(quiet=True)


@pytest.fixture
def places(tmp_path):
    """(data_dir with a folder of images and a file, the node's disk, a recipe's data that names them)."""
    data, disk = tmp_path / "data", tmp_path / "disk"
    for name, text in {"set/train/a.jpg": "aa", "set/train/b.jpg": "bbb", "set/val/c.jpg": "c"}.items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(text)
    (data / "labels.json").write_text("{}")
    (data / "prepared").mkdir()
    recipe = {"folder": f"{data}/set", "labels": f"{data}/labels.json", "cache_dir": f"{data}/prepared", "padding": 4}
    return data, disk, recipe


def tree(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_folders_are_copied_once_and_take_the_place_of_their_source(places):
    data, disk, recipe = places
    assert staging.with_staged_folders(recipe, data, disk) == recipe
    assert staging.stage(recipe, data, disk, QUIET).bytes == 6
    assert tree(disk / "set") == tree(data / "set")
    assert not (disk / "prepared").exists()
    assert staging.with_staged_folders(recipe, data, disk) == recipe | {"folder": f"{disk}/set"}
    assert staging.stage(recipe, data, disk, QUIET).bytes == 0


def test_a_changed_source_is_copied_again_where_it_changed(places):
    data, disk, recipe = places
    staging.stage(recipe, data, disk, QUIET)
    (data / "set/train/a.jpg").unlink()
    (data / "set/train/d.jpg").write_text("dddd")
    assert staging.stage(recipe, data, disk, QUIET).bytes == 4
    assert tree(disk / "set") == tree(data / "set")


def test_a_copy_that_was_cut_short_is_completed(places, monkeypatch):
    data, disk, recipe = places
    copy = staging._copy_file

    def cut(source, target):
        if source.name == "c.jpg":
            raise KeyboardInterrupt
        copy(source, target)

    monkeypatch.setattr(staging, "_copy_file", cut)
    with pytest.raises(KeyboardInterrupt):
        staging.stage(recipe, data, disk, QUIET)
    assert staging.with_staged_folders(recipe, data, disk) == recipe
    monkeypatch.undo()
    assert staging.stage(recipe, data, disk, QUIET).bytes < 6
    assert tree(disk / "set") == tree(data / "set")


def test_a_disk_that_keeps_something_else_ends_the_run(places, monkeypatch):
    data, disk, recipe = places
    real = os.fsync

    def rotten(file):
        real(file)
        os.pwrite(file, b"x", 0)

    monkeypatch.setattr("os.fsync", rotten)
    with pytest.raises(HardwareError, match=r"does not hold what was written: exclude this node"):
        staging.stage(recipe, data, disk, QUIET)
    monkeypatch.undo()
    assert staging.with_staged_folders(recipe, data, disk) == recipe
    assert not [path for path in disk.rglob("*") if path.is_file() and path.suffix == ".tmp"]


def test_a_disk_without_room_is_named(places):
    data, disk, recipe = places
    with open(data / "set" / "large.tar", "wb") as file:
        file.truncate(2**43)  # takes no room where it lies
    with pytest.raises(RunError, match=r"needs .* GB and .* has .* GB free: free space there"):
        staging.stage(recipe, data, disk, QUIET)


def test_runs_on_one_node_take_turns(places):
    data, disk, recipe = places
    copied = []
    threads = [
        threading.Thread(target=lambda: copied.append(staging.stage(recipe, data, disk, QUIET).bytes)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(copied) == [0] * 7 + [6]
    assert tree(disk / "set") == tree(data / "set")


def test_a_staged_run_reads_the_copy_and_learns_the_same(compose, tmp_path, monkeypatch):
    images.write_cifar(tmp_path / "data" / "shapes", images.ClassificationSpec(3, 20, 5, 32))
    small = ["workload=cifar10", "recipe=cifar10/embedded", f"data_dir={tmp_path}/data", "recipe.data.generate=null"]
    small += [f"recipe.data.folder={tmp_path}/data/shapes", "recipe.global_batch_size=16", "recipe.max_epochs=1"]
    plain = run(compose, *small, f"run_dir={tmp_path}/plain")
    monkeypatch.setenv("TIMETRIAL_STAGING_DIR", str(tmp_path / "disk"))
    staged = run(compose, *small, f"run_dir={tmp_path}/staged")
    assert staged.record().staging.bytes > 0
    for blocks in zip(plain.record().training.blocks, staged.record().training.blocks, strict=True):
        assert blocks[0].loss == blocks[1].loss
    config = load_config(staged.config)
    data_class = resolve_classes(config)[1]
    assert staging.data_settings(config, data_class).folder == f"{tmp_path}/disk/shapes"


def run(compose, *overrides):
    from timetrial.runner.launch.run import launch

    result = launch(compose(*overrides, "launcher=inline"), QUIET)
    assert result.exit_code in (Exit.TARGET_REACHED, Exit.TARGET_NOT_REACHED)
    return result.run_dir

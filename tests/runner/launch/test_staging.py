"""Copies on a node-local disk: equal to their source, made once, and read instead of it."""

import os
import threading

import pytest
from rich.console import Console

from timetrial.datasets.synthetic import images
from timetrial.runner.config.compose import load_config
from timetrial.runner.config.validation import resolve_classes
from timetrial.runner.core.errors import ConfigurationError, Exit, HardwareError, RunError
from timetrial.runner.launch import staging

QUIET = Console(quiet=True)


@pytest.fixture
def folders(tmp_path):
    """Return the data folder, the node-local disk, and recipe.data that names an image folder and a file."""
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


def test_folders_are_copied_once_and_replace_their_source(folders):
    data, disk, recipe = folders
    assert staging.with_staged_folders(recipe, data, disk) == recipe
    assert staging.stage(recipe, data, disk, QUIET).bytes == 6
    assert tree(disk / "set") == tree(data / "set")
    assert not (disk / "prepared").exists()
    assert staging.with_staged_folders(recipe, data, disk) == recipe | {"folder": f"{disk}/set"}
    assert staging.stage(recipe, data, disk, QUIET).bytes == 0


def test_only_changed_files_are_copied_again(folders):
    data, disk, recipe = folders
    staging.stage(recipe, data, disk, QUIET)
    (data / "set/train/a.jpg").unlink()
    (data / "set/train/d.jpg").write_text("dddd")
    assert staging.stage(recipe, data, disk, QUIET).bytes == 4
    assert tree(disk / "set") == tree(data / "set")


def test_files_of_the_user_are_not_replaced(folders):
    data, disk, recipe = folders
    (disk / "set").mkdir(parents=True)
    (disk / "set" / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"set holds files that were not copied by timetrial"):
        staging.stage(recipe, data, disk, QUIET)
    assert [path.name for path in disk.rglob("*")] == ["set", "thesis.tex"]


@pytest.mark.parametrize("name", ["set", ".set.lock"])
def test_links_on_the_disk_are_not_followed(folders, tmp_path, name):
    data, disk, recipe = folders
    disk.mkdir()
    target = tmp_path / "mine"
    target.mkdir() if name == "set" else target.write_text("mine")
    (disk / name).symlink_to(target)
    with pytest.raises(RunError):
        staging.stage(recipe, data, disk, QUIET)
    assert not any(target.iterdir()) if name == "set" else target.read_text() == "mine"


def test_interrupted_copy_is_completed(folders, monkeypatch):
    data, disk, recipe = folders
    copy = staging._copy_file

    def interrupted_copy(source, target):
        if source.name == "c.jpg":
            raise KeyboardInterrupt
        copy(source, target)

    monkeypatch.setattr(staging, "_copy_file", interrupted_copy)
    with pytest.raises(KeyboardInterrupt):
        staging.stage(recipe, data, disk, QUIET)
    assert staging.with_staged_folders(recipe, data, disk) == recipe
    monkeypatch.undo()
    assert staging.stage(recipe, data, disk, QUIET).bytes < 6
    assert tree(disk / "set") == tree(data / "set")


def test_corrupted_copy_raises_a_hardware_error(folders, monkeypatch):
    data, disk, recipe = folders
    fsync = os.fsync

    def corrupt(file):
        fsync(file)
        os.pwrite(file, b"x", 0)

    monkeypatch.setattr("os.fsync", corrupt)
    with pytest.raises(HardwareError, match=r"does not hold what was written: exclude this node"):
        staging.stage(recipe, data, disk, QUIET)
    monkeypatch.undo()
    assert staging.with_staged_folders(recipe, data, disk) == recipe
    assert not [path for path in disk.rglob("*") if path.is_file() and path.suffix == ".tmp"]


def test_rejects_disk_without_enough_space(folders):
    data, disk, recipe = folders
    with open(data / "set" / "large.tar", "wb") as file:
        file.truncate(2**43)  # sparse: takes no space here
    with pytest.raises(RunError, match=r"needs .* GB and .* has .* GB free: free space there"):
        staging.stage(recipe, data, disk, QUIET)


def test_concurrent_runs_copy_once(folders):
    data, disk, recipe = folders
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


@pytest.mark.integration
def test_staged_run_reads_the_copy_and_has_the_same_losses(compose, tmp_path, monkeypatch):
    images.write_cifar(tmp_path / "data" / "shapes", images.ClassificationSpec(3, 20, 5, 32))
    small = ["workload=cifar10", "recipe=cifar10/embedded", f"data_dir={tmp_path}/data", "recipe.data.generate=null"]
    small += [f"recipe.data.folder={tmp_path}/data/shapes", "recipe.global_batch_size=16", "recipe.max_epochs=1"]
    unstaged = run_inline(compose, *small, f"run_dir={tmp_path}/unstaged")
    monkeypatch.setenv("TIMETRIAL_STAGING_DIR", str(tmp_path / "disk"))
    staged = run_inline(compose, *small, f"run_dir={tmp_path}/staged")
    assert staged.record().staging.bytes > 0
    for blocks in zip(unstaged.record().training.blocks, staged.record().training.blocks, strict=True):
        assert blocks[0].loss == blocks[1].loss
    config = load_config(staged.config)
    data_class = resolve_classes(config)[1]
    assert staging.data_settings(config, data_class).folder == f"{tmp_path}/disk/shapes"


def run_inline(compose, *overrides):
    from timetrial.runner.launch.run import launch

    result = launch(compose(*overrides, "launcher=inline"), QUIET)
    assert result.exit_code in (Exit.TARGET_REACHED, Exit.TARGET_NOT_REACHED)
    return result.run_dir

"""The page cache: eviction of real files, verified by mincore, and the refusal of what stays in memory."""

import mmap
import os
import shutil
from pathlib import Path
from tempfile import mkdtemp

import pytest

from timetrial.runner.core.errors import ConfigurationError
from timetrial.runner.launch import page_cache

PAGES = 50


def is_in_memory(folder):
    """Whether the file system of `folder` is memory, such as tmpfs."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    over = [(point, kind) for point, kind in mounts if Path(point) in (folder, *folder.parents)]
    return max(over, key=lambda mount: len(mount[0]))[1] in ("tmpfs", "ramfs")


@pytest.fixture
def disk_folder(tmp_path):
    """A folder on a disk; tests skip if there is none."""
    if not is_in_memory(tmp_path):
        yield tmp_path
        return
    if is_in_memory(Path("/var/tmp")):
        pytest.skip("the file system of temporary files keeps them in memory")
    folder = Path(mkdtemp(dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def drop_caches(tmp_path, monkeypatch):
    """Keep the page cache of this machine: what would clear it is a file."""
    path = tmp_path / "drop_caches"
    monkeypatch.setattr(page_cache, "_DROP_CACHES", path)
    return path


def write_resident(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(PAGES * mmap.PAGESIZE - 7))
    path.read_bytes()
    assert page_cache.resident_pages(path) == PAGES
    return path


def test_files_that_were_read_are_resident_until_they_are_evicted(disk_folder, drop_caches):
    folder = disk_folder / "images"
    files = [write_resident(folder / name) for name in ("a", "sub/b")]
    single, other = write_resident(disk_folder / "single"), write_resident(disk_folder / "other")
    page_cache.clear_page_cache([folder, single])
    assert [page_cache.resident_pages(path) for path in (*files, single)] == [0, 0, 0]
    assert page_cache.resident_pages(other) == PAGES
    assert drop_caches.read_text() == "1"


def test_clears_without_permission_to_drop_all_caches(disk_folder, monkeypatch):
    monkeypatch.setattr(page_cache, "_DROP_CACHES", disk_folder / "missing" / "drop_caches")
    file = write_resident(disk_folder / "file")
    page_cache.clear_page_cache([file])
    assert page_cache.resident_pages(file) == 0


def test_pages_that_a_process_maps_stay_and_are_refused(disk_folder):
    """The kernel evicts no page that a process has mapped."""
    file = write_resident(disk_folder / "file")
    with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        assert sum(mapping[index] for index in range(0, len(mapping), mmap.PAGESIZE)) >= 0  # maps each page
        with pytest.raises(ConfigurationError, match=r"1 of 1 data files stay in memory, such as .*file"):
            page_cache.clear_page_cache([file])


def test_empty_files_have_no_pages(tmp_path):
    (tmp_path / "empty").touch()
    page_cache.clear_page_cache([tmp_path / "empty"])


def test_paths_of_settings_are_found_at_any_depth(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).touch()
    settings = {"source": [str(tmp_path / "a")], "more": {"path": str(tmp_path / "b")}, "absent": str(tmp_path / "c")}
    settings |= {"size": 3, "empty": "", "none": None, "name": "bottleneck"}
    assert set(page_cache.data_paths(settings)) == {tmp_path / "a", tmp_path / "b"}

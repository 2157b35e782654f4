"""Manifests detect changes of files and of themselves."""

import pytest

from timetrial.datasets.download import manifest
from timetrial.datasets.download.manifest import Manifest
from timetrial.datasets.download.worker_pool import WorkerPool
from timetrial.runner.core.errors import DataError
from timetrial.runner.core.progress import no_progress


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "set/a b").mkdir(parents=True)
    (tmp_path / "set/one.txt").write_bytes(b"one")
    (tmp_path / "set/a b/two three.txt").write_bytes(b"two" * 1000)
    (tmp_path / "set/none.txt").touch()
    listed = Manifest({"dataset": "set"}, manifest.hash_tree(tmp_path / "set", lambda _: None))
    manifest.write_text(tmp_path / "set" / manifest.FILE_NAME, listed.to_text())
    return tmp_path / "set"


def faults(folder):
    return list(manifest.find_faults(folder, manifest.read(folder), WorkerPool(2, no_progress)))


def test_unchanged_files_have_no_faults(folder):
    listed = manifest.read(folder)
    assert [(entry.path, entry.size) for entry in listed.entries] == [
        ("a b/two three.txt", 3000), ("none.txt", 0), ("one.txt", 3),
    ]  # fmt: skip
    assert (listed.metadata, faults(folder)) == ({"dataset": "set"}, [])
    assert list(manifest.find_size_faults(folder, listed)) == []


def test_finds_changed_missing_and_added_files(folder):
    data = bytearray((folder / "a b/two three.txt").read_bytes())
    data[1234] ^= 1
    (folder / "a b/two three.txt").write_bytes(data)
    (folder / "one.txt").unlink()
    (folder / "more.txt").touch()
    sentences = faults(folder)
    assert [sentence.removeprefix(f"{folder}/").split(" ", 1)[0] for sentence in sentences] == [
        "a",
        "one.txt",
        "more.txt",
    ]
    for sentence, words in zip(sentences, ("has changed", "cannot be read", "it was added later"), strict=True):
        assert words in sentence


def test_size_check_reads_no_content(folder):
    (folder / "one.txt").write_bytes(b"eno")
    (folder / "none.txt").write_bytes(b"!")
    (folder / "a b/two three.txt").unlink()
    sentences = list(manifest.find_size_faults(folder, manifest.read(folder)))
    assert [sentence.removeprefix(f"{folder}/") for sentence in sentences] == [
        "a b/two three.txt is missing.", "none.txt has 1 bytes, not 0.",
    ]  # fmt: skip


def test_manifest_detects_its_own_changes(folder):
    path = folder / manifest.FILE_NAME
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(DataError, match=r"\.manifest (is damaged|cannot be read)"):
            manifest.read(folder)
    for cut in (0, 10, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.raises(DataError, match=r"\.manifest is damaged"):
            manifest.read(folder)

"""A receipt tells of every file whether it is still what it was, and of itself."""

import pytest

from timetrial.datasets.download import manifest
from timetrial.datasets.download.manifest import Receipt
from timetrial.datasets.download.worker_pool import Crew
from timetrial.runner.core.errors import DataError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "set/a b").mkdir(parents=True)
    (tmp_path / "set/one.txt").write_bytes(b"one")
    (tmp_path / "set/a b/two three.txt").write_bytes(b"two" * 1000)
    (tmp_path / "set/none.txt").touch()
    receipt = Receipt({"set": "set"}, manifest.entries_below(tmp_path / "set", lambda _: None))
    manifest.write_whole(tmp_path / "set" / manifest.NAME, receipt.text())
    return tmp_path / "set"


def faults(folder):
    return list(manifest.faults(folder, manifest.read(folder), Crew(2, lambda *words: None)))


def test_what_is_untouched_is_whole(folder):
    receipt = manifest.read(folder)
    assert [(entry.path, entry.bytes) for entry in receipt.entries] == [
        ("a b/two three.txt", 3000), ("none.txt", 0), ("one.txt", 3),
    ]  # fmt: skip
    assert (receipt.about, faults(folder)) == ({"set": "set"}, [])
    assert list(manifest.quick_faults(folder, receipt)) == []


def test_everything_that_is_wrong_is_said(folder):
    data = bytearray((folder / "a b/two three.txt").read_bytes())
    data[1234] ^= 1
    (folder / "a b/two three.txt").write_bytes(data)
    (folder / "one.txt").unlink()
    (folder / "more.txt").touch()
    said = faults(folder)
    assert [sentence.removeprefix(f"{folder}/").split(" ", 1)[0] for sentence in said] == ["a", "one.txt", "more.txt"]
    for sentence, words in zip(said, ("has changed", "cannot be read", "somebody has put it there"), strict=True):
        assert words in sentence


def test_a_glance_sees_sizes_alone(folder):
    (folder / "one.txt").write_bytes(b"eno")
    (folder / "none.txt").write_bytes(b"!")
    (folder / "a b/two three.txt").unlink()
    said = list(manifest.quick_faults(folder, manifest.read(folder)))
    assert [sentence.removeprefix(f"{folder}/") for sentence in said] == [
        "a b/two three.txt is missing.", "none.txt has 1 bytes, not 0.",
    ]  # fmt: skip


def test_no_byte_of_a_receipt_can_change(folder):
    path = folder / manifest.NAME
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(DataError, match=r"\.receipt (is damaged|cannot be read)"):
            manifest.read(folder)
    for cut in (0, 10, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.raises(DataError, match=r"\.receipt is damaged"):
            manifest.read(folder)

"""Bundles are reproducible plain tars, and every changed byte is found."""

import random
import tarfile
from contextlib import suppress

import pytest

from timetrial.datasets.download import bundles
from timetrial.datasets.download.manifest import hash_file
from timetrial.runner.core.errors import DataError
from timetrial.runner.core.progress import no_progress

FILES = {"b.zip": random.Random(1).randbytes(1500), "a name.tgz": b"x" * 1024, "empty.txt": b""}


@pytest.fixture
def bundle(tmp_path):
    return written(tmp_path, "one.tar", FILES)


def written(tmp_path, name, files):
    pairs = []
    for file, data in files.items():
        (tmp_path / file).write_bytes(data)
        pairs.append((hash_file(tmp_path, file, lambda _: None), tmp_path / file))
    bundles.write(tmp_path / name, {"datasets": {"toy": "a toy; CC0"}}, pairs, no_progress)
    return tmp_path / name


def test_bundle_is_a_plain_tar_that_begins_with_its_manifest(bundle):
    with tarfile.open(bundle, "r:") as tar:
        assert tar.getnames() == ["timetrial-bundle.txt", "a name.tgz", "b.zip", "empty.txt"]
        assert {name: tar.extractfile(name).read() for name in FILES} == FILES
        assert {(member.mtime, member.uid, member.uname) for member in tar} == {(0, 0, "")}
    assert bundle.stat().st_size % tarfile.RECORDSIZE == 0
    assert bundles.read_manifest(bundle).metadata == {"datasets": {"toy": "a toy; CC0"}}
    assert list(bundles.find_faults(bundle, no_progress)) == []
    assert not list(bundle.parent.glob("*.part"))


def test_equal_files_give_equal_bytes(tmp_path, bundle):
    again = written(tmp_path, "two.tar", dict(reversed(FILES.items())))
    assert again.read_bytes() == bundle.read_bytes()


def test_finds_any_flipped_bit(bundle):
    data = bundle.read_bytes()
    generator = random.Random(2)
    places = {*range(0, len(data), 97), *generator.sample(range(len(data)), 1000), len(data) - 1}
    for place in places:
        bundle.write_bytes(data[:place] + bytes([data[place] ^ 1 << generator.randrange(8)]) + data[place + 1 :])
        with suppress(DataError):  # the manifest cannot be read
            assert list(bundles.find_faults(bundle, no_progress)), place


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data[:3000], lambda data: data + b"\0"])
def test_finds_truncated_and_appended_bytes(bundle, change):
    bundle.write_bytes(change(bundle.read_bytes()))
    assert any("is truncated, or something was appended" in fault for fault in bundles.find_faults(bundle, no_progress))


def test_names_the_changed_file(bundle):
    data = bundle.read_bytes()
    place = data.index(FILES["b.zip"]) + 700
    bundle.write_bytes(data[:place] + b"?" + data[place + 1 :])
    (fault,) = bundles.find_faults(bundle, no_progress)
    assert fault == f"b.zip in {bundle} has changed: its SHA-256 differs from the manifest."
    with pytest.raises(DataError, match=r"b\.zip in .* has changed: copy the bundle again"):
        bundles.extract(bundle, "b.zip", bundle.parent / "out" / "b.zip", no_progress)
    assert not list((bundle.parent / "out").iterdir())


def test_extracts_single_files(tmp_path, bundle):
    for name, data in FILES.items():
        entry = bundles.extract(bundle, name, tmp_path / "out" / name, no_progress)
        assert (tmp_path / "out" / name).read_bytes() == data
        assert (entry.path, entry.size) == (name, len(data))
    with pytest.raises(DataError, match=r"does not contain c\.zip: use another bundle"):
        bundles.extract(bundle, "c.zip", tmp_path / "out" / "c.zip", no_progress)


def test_header_supports_files_beyond_8_gib():
    header = bundles._header("large.tar", 147_897_477_120)
    assert len(header) == tarfile.BLOCKSIZE
    assert tarfile.TarInfo.frombuf(header, "utf-8", "strict").size == 147_897_477_120


@pytest.mark.parametrize("data", [b"", b"no tar", bytes(5000)])
def test_rejects_other_files(tmp_path, data):
    (tmp_path / "other.tar").write_bytes(data)
    with pytest.raises(DataError, match=r"other\.tar is not a bundle"):
        bundles.read_manifest(tmp_path / "other.tar")
    with pytest.raises(DataError, match=r"absent\.tar cannot be read"):
        bundles.read_manifest(tmp_path / "absent.tar")


def test_rejects_files_that_changed_since_they_were_fetched(tmp_path):
    for data in (b"other", b"long", b"longest"):
        (tmp_path / "a.zip").write_bytes(b"first")
        entry = hash_file(tmp_path, "a.zip", lambda _: None)
        (tmp_path / "a.zip").write_bytes(data)
        with pytest.raises(DataError, match="has changed since it was fetched"):
            bundles.write(tmp_path / "b.tar", {}, [(entry, tmp_path / "a.zip")], no_progress)
        assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]

"""A bundle is the same bytes each time, a tar that anybody can read, and not one byte of it can change unnoticed."""

import random
import tarfile
from contextlib import suppress

import pytest

from timetrial.datasets.download import bundles
from timetrial.datasets.download.manifest import entry_of
from timetrial.runner.core.errors import DataError

FILES = {"b.zip": random.Random(1).randbytes(1500), "a name.tgz": b"x" * 1024, "empty.txt": b""}


def silent(what, done, total):
    pass


@pytest.fixture
def bundle(tmp_path):
    return written(tmp_path, "one.tar", FILES)


def written(tmp_path, name, files):
    pairs = []
    for file, data in files.items():
        (tmp_path / file).write_bytes(data)
        pairs.append((entry_of(tmp_path, file, lambda _: None), tmp_path / file))
    bundles.write(tmp_path / name, {"sets": {"toy": "a toy; CC0"}}, pairs, silent)
    return tmp_path / name


def test_it_is_a_plain_tar_behind_its_list(bundle):
    with tarfile.open(bundle, "r:") as tar:
        assert tar.getnames() == ["timetrial-bundle.txt", "a name.tgz", "b.zip", "empty.txt"]
        assert {name: tar.extractfile(name).read() for name in FILES} == FILES
        assert {(member.mtime, member.uid, member.uname) for member in tar} == {(0, 0, "")}
    assert bundle.stat().st_size % tarfile.RECORDSIZE == 0
    assert bundles.read_list(bundle).about == {"sets": {"toy": "a toy; CC0"}}
    assert list(bundles.faults(bundle, silent)) == []
    assert not list(bundle.parent.glob("*.part"))


def test_equal_files_make_equal_bytes(tmp_path, bundle):
    again = written(tmp_path, "two.tar", dict(reversed(FILES.items())))
    assert again.read_bytes() == bundle.read_bytes()


def test_one_flipped_bit_is_found_wherever_it_is(bundle):
    data = bundle.read_bytes()
    generator = random.Random(2)
    places = {*range(0, len(data), 97), *generator.sample(range(len(data)), 1000), len(data) - 1}
    for place in places:
        bundle.write_bytes(data[:place] + bytes([data[place] ^ 1 << generator.randrange(8)]) + data[place + 1 :])
        with suppress(DataError):  # of a list that cannot be read
            assert list(bundles.faults(bundle, silent)), place


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data[:3000], lambda data: data + b"\0"])
def test_what_is_cut_or_appended_is_found(bundle, change):
    bundle.write_bytes(change(bundle.read_bytes()))
    assert any("cut short, or something was appended" in fault for fault in bundles.faults(bundle, silent))


def test_a_flipped_byte_names_its_file(bundle):
    data = bundle.read_bytes()
    place = data.index(FILES["b.zip"]) + 700
    bundle.write_bytes(data[:place] + b"?" + data[place + 1 :])
    (fault,) = bundles.faults(bundle, silent)
    assert fault == f"b.zip in {bundle} has changed: its SHA-256 is not the one that is listed."
    with pytest.raises(DataError, match=r"b\.zip in .* has changed: copy the bundle again"):
        bundles.take(bundle, "b.zip", bundle.parent / "out" / "b.zip", silent)
    assert not list((bundle.parent / "out").iterdir())


def test_files_are_taken_out_one_by_one(tmp_path, bundle):
    for name, data in FILES.items():
        entry = bundles.take(bundle, name, tmp_path / "out" / name, silent)
        assert (tmp_path / "out" / name).read_bytes() == data
        assert (entry.path, entry.bytes) == (name, len(data))
    with pytest.raises(DataError, match=r"does not hold c\.zip: take another bundle"):
        bundles.take(bundle, "c.zip", tmp_path / "out" / "c.zip", silent)


def test_files_beyond_eight_gigabytes_have_headers_too():
    header = bundles._header("large.tar", 147_897_477_120)
    assert len(header) == tarfile.BLOCKSIZE
    assert tarfile.TarInfo.frombuf(header, "utf-8", "strict").size == 147_897_477_120


@pytest.mark.parametrize("data", [b"", b"no tar", bytes(5000)])
def test_what_is_no_bundle_is_refused(tmp_path, data):
    (tmp_path / "other.tar").write_bytes(data)
    with pytest.raises(DataError, match=r"other\.tar is no bundle"):
        bundles.read_list(tmp_path / "other.tar")
    with pytest.raises(DataError, match=r"absent\.tar cannot be read"):
        bundles.read_list(tmp_path / "absent.tar")


def test_a_file_that_changed_since_it_was_fetched_is_not_bundled(tmp_path):
    for data in (b"other", b"long", b"longest"):
        (tmp_path / "a.zip").write_bytes(b"first")
        entry = entry_of(tmp_path, "a.zip", lambda _: None)
        (tmp_path / "a.zip").write_bytes(data)
        with pytest.raises(DataError, match="has changed since it was fetched"):
            bundles.write(tmp_path / "b.tar", {}, [(entry, tmp_path / "a.zip")], silent)
        assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]

"""Archives of data sets come out whole; hostile and damaged ones are refused with one sentence, outside untouched."""

import gzip
import io
import random
import stat
import tarfile
import zipfile

import pytest

from timetrial.datasets.download import archives
from timetrial.datasets.download.archives import Zip, unpack
from timetrial.runner.core.errors import DataError

FILES = {"set/train/a.txt": b"one\n" * 5, "set/train/b c.txt": b"", "set/val/ü.txt": random.Random(1).randbytes(70_000)}


@pytest.fixture
def out(tmp_path):
    """Where to unpack; what lies beside it must stay as it is."""
    (tmp_path / "outside.txt").write_text("untouched")
    yield tmp_path / "out"
    assert (tmp_path / "outside.txt").read_text() == "untouched"
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} <= {"out"}


def tar_of(path, files, mode="w", member_of=tarfile.TarInfo):
    with tarfile.open(path, mode) as tar:
        for name, data in files.items():
            member = member_of(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def zip_of(path, files, method=zipfile.ZIP_DEFLATED, attributes=0):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            member = zipfile.ZipInfo(name)
            member.compress_type, member.external_attr = method, attributes << 16
            archive.writestr(member, data)
    return path


MAKERS = {
    "set.tar": tar_of,
    "set.tgz": lambda path, files: tar_of(path, files, "w:gz"),
    "set.tar.gz": lambda path, files: tar_of(path, files, "w:gz"),
    "set.zip": zip_of,
}
KINDS = pytest.mark.parametrize("name", ["set.tar", "set.tgz", "set.zip"])


def found(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(archive, out, words):
    with pytest.raises(DataError, match=words) as caught:
        unpack(archive, out)
    assert "\n" not in str(caught.value)
    assert str(archive) in str(caught.value)
    assert not out.exists() or not [path for path in out.rglob("*") if path.is_symlink()]


@pytest.mark.parametrize("name", MAKERS)
def test_all_kinds_come_out_alike_and_say_how_far_they_are(tmp_path, out, name):
    archive, steps = MAKERS[name](tmp_path / name, FILES), []
    unpack(archive, out, step=steps.append)
    assert found(out) == FILES
    assert sum(steps) == archive.stat().st_size


@pytest.mark.parametrize("name", MAKERS)
def test_only_what_is_wanted_comes_out(tmp_path, out, name):
    unpack(MAKERS[name](tmp_path / name, FILES), out, lambda member: member[4:] if "train" in member else None)
    assert found(out) == {"train/a.txt": FILES["set/train/a.txt"], "train/b c.txt": b""}


def test_single_files_come_out_under_their_names(tmp_path, out):
    (tmp_path / "text.en.gz").write_bytes(gzip.compress(b"line\n" * 1000))
    (tmp_path / "weights.pth").write_bytes(b"\x80weights")
    for name in ("text.en.gz", "weights.pth"):
        unpack(tmp_path / name, out)
    assert found(out) == {"text.en": b"line\n" * 1000, "weights.pth": b"\x80weights"}


@KINDS
@pytest.mark.parametrize(
    "member",
    ["/outside.txt", "../outside.txt", "a/../../outside.txt", "a/..", "C:/outside.txt", "..\\outside.txt", "a\nb"],
)
def test_names_that_lead_out_are_refused(tmp_path, out, name, member):
    archive = MAKERS[name](tmp_path / name, {"good.txt": b"good", member: b"bad"})
    refused(archive, out, "leads out of its folder: remove the archive")


@pytest.mark.parametrize("target", ["../outside.txt", "/etc", "good.txt"])
@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_links_in_tars_are_refused(tmp_path, out, kind, target):
    def linked(name):
        member = tarfile.TarInfo(name)
        if name == "link":
            member.type, member.linkname = kind, target
        return member

    archive = tar_of(tmp_path / "set.tar", {"good.txt": b"good", "link": b"", "link/outside.txt": b"bad"}, "w", linked)
    refused(archive, out, "'link', which is a link or a device")


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_in_tars_are_refused(tmp_path, out, kind):
    def device(name):
        member = tarfile.TarInfo(name)
        member.type, member.devmajor, member.devminor = kind, 1, 3
        return member

    refused(tar_of(tmp_path / "set.tar", {"null": b""}, "w", device), out, "'null', which is a link or a device")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO])
def test_links_and_devices_in_zips_are_refused(tmp_path, out, kind):
    archive = zip_of(tmp_path / "set.zip", {"thing": b"../outside.txt"}, attributes=kind | 0o777)
    refused(archive, out, "'thing', which is a link or a device")


@KINDS
def test_a_name_that_stands_twice_is_refused(tmp_path, out, name):
    for pair in (["a.txt", "./a.txt"], ["a", "a/b"]):
        archive = MAKERS[name](tmp_path / name, dict.fromkeys(pair, b"some"))
        refused(archive, out, "twice")
        archive.unlink()


@pytest.mark.parametrize("name", ["set.tgz", "set.zip"])
def test_bombs_are_refused_before_they_fill_the_disk(tmp_path, out, name):
    archive = MAKERS[name](tmp_path / name, {f"{number}.bin": bytes(20_000_000) for number in range(3)})
    assert archive.stat().st_size < 100_000
    refused(archive, out, "unpacks to far more than an archive of its size should")
    assert sum(map(len, found(out).values())) <= 20_000_000


def test_a_bomb_of_one_compressed_file_is_refused(tmp_path, out):
    (tmp_path / "text.gz").write_bytes(gzip.compress(bytes(60_000_000)))
    refused(tmp_path / "text.gz", out, "unpacks to far more than an archive of its size should")
    assert len(found(out)["text"]) <= 18_000_000


@pytest.mark.parametrize("name", ["set.tgz", "set.zip"])
def test_a_bomb_of_many_empty_files_is_refused(tmp_path, out, name):
    files = dict.fromkeys((f"{number}" for number in range(3000)), b"")
    archive = tar_of(tmp_path / name, files, "w:gz") if name == "set.tgz" else zip_of(tmp_path / name, files)
    if name == "set.zip":  # whose entries take their room: squeeze them as a hostile writer would
        archive.write_bytes(squeezed(files))
    refused(archive, out, "unpacks to far more")
    assert len(found(out)) < 2500


def squeezed(files):
    """A zip of many entries in its directory, all of the same bytes."""
    plain = io.BytesIO()
    with zipfile.ZipFile(plain, "w") as archive:
        archive.writestr("0000", b"")
    data = plain.getvalue()
    start, end = data.index(b"PK\x01\x02"), data.index(b"PK\x05\x06")
    entry = data[start:end]
    entries = b"".join(entry[:46] + f"{number:04d}".encode() + entry[50:] for number in range(len(files)))
    count = len(files).to_bytes(2, "little")
    return (
        data[:start] + entries + b"PK\x05\x06" + bytes(4) + count * 2
        + len(entries).to_bytes(4, "little") + start.to_bytes(4, "little") + bytes(2)
    )  # fmt: skip


def test_a_name_without_end_is_refused(tmp_path, out):
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 40_000_000
    with gzip.open(tmp_path / "set.tgz", "wb") as archive:
        archive.write(member.tobuf() + b"a" * member.size + bytes(1024))
    refused(tmp_path / "set.tgz", out, "a header of 40,000,000 bytes")


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("part", [0.0, 0.02, 0.5, 0.97])
def test_what_is_cut_short_is_refused(tmp_path, out, name, part):
    archive = MAKERS[name](tmp_path / name, FILES)
    data = archive.read_bytes()
    archive.write_bytes(data[: int(part * (len(data) - (9216 if name == "set.tar" else 0)))])
    refused(archive, out, "is damaged or no archive.*: remove it and fetch it again")


@pytest.mark.parametrize("name", ["set.tgz", "set.zip"])
def test_a_flipped_bit_is_found(tmp_path, out, name):
    archive = MAKERS[name](tmp_path / name, FILES)
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 16
    archive.write_bytes(data)
    refused(archive, out, "is damaged or no archive")


def test_a_damaged_header_amid_a_tar_is_not_taken_for_its_end(tmp_path, out):
    archive = tar_of(tmp_path / "set.tar", FILES)
    data = bytearray(archive.read_bytes())
    data[data.index(b"set/train/b c.txt")] ^= 1
    archive.write_bytes(data)
    refused(archive, out, "is damaged or no archive")


def test_a_zip_with_a_password_is_refused(tmp_path, out):
    data = bytearray(zip_of(tmp_path / "set.zip", {"a": b"secret"}).read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + offset] |= 1
    (tmp_path / "set.zip").write_bytes(data)
    refused(tmp_path / "set.zip", out, "cannot be unpacked .*password")


def test_members_are_read_at_will(tmp_path):
    with Zip(zip_of(tmp_path / "set.zip", FILES), lambda name: name.removeprefix("set/")) as archive:
        assert archive.places == ["train/a.txt", "train/b c.txt", "val/ü.txt"]
        assert archive.read("train/a.txt") == FILES["set/train/a.txt"]
        with pytest.raises(DataError, match=r"set\.zip lacks test/a\.txt"):
            archive.read("test/a.txt")


def test_a_tar_in_a_tar_is_unpacked_from_where_it_lies(tmp_path, out):
    inner = tar_of(tmp_path / "inner.tar", FILES).read_bytes()
    outer = tar_of(tmp_path / "outer.tar", {"first.tar": b"?" * 700, "inner.tar": inner})
    index = {name: (start, size) for name, start, size in archives.index(outer)}
    start, size = index["inner.tar"]
    assert (list(index), size) == (["first.tar", "inner.tar"], len(inner))
    steps = []
    with archives.Slice(outer, start, size) as part:
        archives.unpack_tar(part, outer, size, out, archives.everything, steps.append)
    assert found(out) == FILES
    assert sum(steps) == size

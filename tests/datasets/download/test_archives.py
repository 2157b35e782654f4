"""Archives are unpacked completely; hostile and damaged ones are rejected, and nothing outside the folder changes."""

import gzip
import importlib.util
import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from timetrial.datasets.download import archives
from timetrial.datasets.download.archives import ZipReader, unpack
from timetrial.runner.core.errors import DataError

spec = importlib.util.spec_from_file_location("made_archives", Path(__file__).with_name("made_archives.py"))
made_archives = importlib.util.module_from_spec(spec)
spec.loader.exec_module(made_archives)


@pytest.mark.parametrize("name", made_archives.MAKERS)
def test_unpacks_every_format_and_counts_its_bytes(tmp_path, out, name):
    archive, byte_counts = made_archives.MAKERS[name](tmp_path / name, made_archives.FILES), []
    unpack(archive, out, count=byte_counts.append)
    assert made_archives.found(out) == made_archives.FILES
    assert sum(byte_counts) == archive.stat().st_size


@pytest.mark.parametrize("name", made_archives.MAKERS)
def test_unpacks_selected_members_only(tmp_path, out, name):
    unpack(
        made_archives.MAKERS[name](tmp_path / name, made_archives.FILES),
        out,
        lambda member: member[4:] if "train" in member else None,
    )
    assert made_archives.found(out) == {"train/a.txt": made_archives.FILES["set/train/a.txt"], "train/b c.txt": b""}


def test_unpacks_single_files(tmp_path, out):
    (tmp_path / "text.en.gz").write_bytes(gzip.compress(b"line\n" * 1000))
    (tmp_path / "weights.pth").write_bytes(b"\x80weights")
    for name in ("text.en.gz", "weights.pth"):
        unpack(tmp_path / name, out)
    assert made_archives.found(out) == {"text.en": b"line\n" * 1000, "weights.pth": b"\x80weights"}


@made_archives.KINDS
@pytest.mark.parametrize(
    "member",
    ["/outside.txt", "../outside.txt", "a/../../outside.txt", "a/..", "C:/outside.txt", "..\\outside.txt", "a\nb"],
)
def test_rejects_names_outside_folder(tmp_path, out, name, member):
    archive = made_archives.MAKERS[name](tmp_path / name, {"good.txt": b"good", member: b"bad"})
    made_archives.assert_rejected(archive, out, "leaves its folder: remove the archive")


@pytest.mark.parametrize("target", ["../outside.txt", "/etc", "good.txt"])
@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_rejects_links_in_tars(tmp_path, out, kind, target):
    def linked(name):
        member = tarfile.TarInfo(name)
        if name == "link":
            member.type, member.linkname = kind, target
        return member

    archive = made_archives.tar_of(
        tmp_path / "set.tar", {"good.txt": b"good", "link": b"", "link/outside.txt": b"bad"}, "w", linked
    )
    made_archives.assert_rejected(archive, out, "'link', which is a link or a device")


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_rejects_devices_in_tars(tmp_path, out, kind):
    def device(name):
        member = tarfile.TarInfo(name)
        member.type, member.devmajor, member.devminor = kind, 1, 3
        return member

    made_archives.assert_rejected(
        made_archives.tar_of(tmp_path / "set.tar", {"null": b""}, "w", device),
        out,
        "'null', which is a link or a device",
    )


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO])
def test_rejects_links_and_devices_in_zips(tmp_path, out, kind):
    archive = made_archives.zip_of(tmp_path / "set.zip", {"thing": b"../outside.txt"}, attributes=kind | 0o777)
    made_archives.assert_rejected(archive, out, "'thing', which is a link or a device")


@made_archives.KINDS
def test_rejects_duplicate_names(tmp_path, out, name):
    for pair in (["a.txt", "./a.txt"], ["a", "a/b"]):
        archive = made_archives.MAKERS[name](tmp_path / name, dict.fromkeys(pair, b"some"))
        made_archives.assert_rejected(archive, out, "twice")
        archive.unlink()


@pytest.mark.parametrize("name", ["set.tgz", "set.zip"])
def test_rejects_decompression_bombs_early(tmp_path, out, name):
    archive = made_archives.MAKERS[name](tmp_path / name, {f"{number}.bin": bytes(20_000_000) for number in range(3)})
    assert archive.stat().st_size < 100_000
    made_archives.assert_rejected(archive, out, "expands to far more than an archive of its size should")
    assert sum(map(len, made_archives.found(out).values())) <= 20_000_000


def test_rejects_bomb_of_a_single_file(tmp_path, out):
    (tmp_path / "text.gz").write_bytes(gzip.compress(bytes(60_000_000)))
    made_archives.assert_rejected(tmp_path / "text.gz", out, "expands to far more than an archive of its size should")
    assert len(made_archives.found(out)["text"]) <= 18_000_000


@pytest.mark.parametrize("name", ["set.tgz", "set.zip"])
def test_rejects_bomb_of_many_empty_files(tmp_path, out, name):
    files = dict.fromkeys((f"{number}" for number in range(3000)), b"")
    archive = (
        made_archives.tar_of(tmp_path / name, files, "w:gz")
        if name == "set.tgz"
        else made_archives.zip_of(tmp_path / name, files)
    )
    if name == "set.zip":  # entries that share their bytes, as a hostile writer would make them
        archive.write_bytes(zip_of_empty_entries(files))
    made_archives.assert_rejected(archive, out, "expands to far more")
    assert len(made_archives.found(out)) < 2500


def zip_of_empty_entries(files):
    """Return a zip whose directory has many entries for the same bytes."""
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


def test_rejects_overlong_name(tmp_path, out):
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 40_000_000
    with gzip.open(tmp_path / "set.tgz", "wb") as archive:
        archive.write(member.tobuf() + b"a" * member.size + bytes(1024))
    made_archives.assert_rejected(tmp_path / "set.tgz", out, "a header of 40,000,000 bytes")


def test_rejects_zip_with_password(tmp_path, out):
    data = bytearray(made_archives.zip_of(tmp_path / "set.zip", {"a": b"secret"}).read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + offset] |= 1
    (tmp_path / "set.zip").write_bytes(data)
    made_archives.assert_rejected(tmp_path / "set.zip", out, "cannot be unpacked .*password")


def test_reads_single_members_of_a_zip(tmp_path):
    with ZipReader(
        made_archives.zip_of(tmp_path / "set.zip", made_archives.FILES), lambda name: name.removeprefix("set/")
    ) as archive:
        assert archive.paths == ["train/a.txt", "train/b c.txt", "val/ü.txt"]
        assert archive.read("train/a.txt") == made_archives.FILES["set/train/a.txt"]
        with pytest.raises(DataError, match=r"set\.zip does not contain test/a\.txt"):
            archive.read("test/a.txt")


def test_unpacks_a_tar_inside_a_tar(tmp_path, out):
    inner = made_archives.tar_of(tmp_path / "inner.tar", made_archives.FILES).read_bytes()
    outer = made_archives.tar_of(tmp_path / "outer.tar", {"first.tar": b"?" * 700, "inner.tar": inner})
    index = {name: (start, size) for name, start, size in archives.list_tar(outer)}
    start, size = index["inner.tar"]
    assert (list(index), size) == (["first.tar", "inner.tar"], len(inner))
    byte_counts = []
    with archives.FileSlice(outer, start, size) as part:
        archives.unpack_tar(part, outer, size, out, archives.keep_all, byte_counts.append)
    assert made_archives.found(out) == made_archives.FILES
    assert sum(byte_counts) == size

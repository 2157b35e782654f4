"""Damaged archives are unpacked or rejected in one sentence."""

import gzip
import importlib.util
import io
import random
import tarfile
import zipfile
from pathlib import Path

import pytest

from timetrial.datasets.download.archives import unpack
from timetrial.runner.core.errors import DataError

spec = importlib.util.spec_from_file_location("made_archives", Path(__file__).with_name("made_archives.py"))
made_archives = importlib.util.module_from_spec(spec)
spec.loader.exec_module(made_archives)


@pytest.mark.parametrize("name", made_archives.MAKERS)
@pytest.mark.parametrize("part", [0.0, 0.02, 0.5, 0.97])
def test_rejects_truncated_archive(tmp_path, out, name, part):
    archive = made_archives.MAKERS[name](tmp_path / name, made_archives.FILES)
    data = archive.read_bytes()
    archive.write_bytes(data[: int(part * (len(data) - (9216 if name == "set.tar" else 0)))])
    made_archives.assert_rejected(archive, out, "is damaged or not an archive.*: remove it and fetch it again")


@pytest.mark.parametrize("name", ["set.tgz", "set.zip"])
def test_finds_flipped_bit(tmp_path, out, name):
    archive = made_archives.MAKERS[name](tmp_path / name, made_archives.FILES)
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 16
    archive.write_bytes(data)
    made_archives.assert_rejected(archive, out, "is damaged or not an archive")


def test_damaged_header_is_not_taken_for_the_end_of_a_tar(tmp_path, out):
    archive = made_archives.tar_of(tmp_path / "set.tar", made_archives.FILES)
    data = bytearray(archive.read_bytes())
    data[data.index(b"set/train/b c.txt")] ^= 1
    archive.write_bytes(data)
    made_archives.assert_rejected(archive, out, "is damaged or not an archive")


def sparse_tar():
    """Return a tar whose second header, GNU's map of a sparse file, is no map."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("a.txt")
        member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "99"}
        content = b"one\n0\n3\n"
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def zip_bytes(method=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in made_archives.FILES.items():
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return out.getvalue()


def zip_with_other_encoding():
    """Return a zip that declares its names as UTF-8, which they are not."""
    return zip_bytes().replace("ü".encode(), b"\xfc\xff")


def damaged_lzma_zip():
    data = bytearray(zip_bytes(zipfile.ZIP_LZMA))
    start = data.index(b"set/train/a.txt") + len("set/train/a.txt")
    data[start + 4] = 0xFF  # the properties of LZMA, behind their version and length
    return bytes(data)


@pytest.mark.parametrize(
    ("name", "make"),
    [("set.tar", sparse_tar), ("set.zip", zip_with_other_encoding), ("set.zip", damaged_lzma_zip)],
)
def test_damage_that_the_modules_report_in_their_own_way_is_one_sentence(tmp_path, out, name, make):
    (tmp_path / name).write_bytes(make())
    made_archives.assert_rejected(tmp_path / name, out, "is damaged or not an archive.*: remove it and fetch it again")


@pytest.mark.parametrize("name", ["set.tar", "set.tgz", "pax.tar", "set.zip", "lzma.zip", "bz2.zip", "text.gz"])
def test_changed_bytes_never_crash(tmp_path, name):
    """A changed archive is unpacked or rejected in one sentence, whatever its bytes are."""
    makers = {
        "pax.tar": sparse_tar,
        "lzma.zip": lambda: zip_bytes(zipfile.ZIP_LZMA),
        "bz2.zip": lambda: zip_bytes(zipfile.ZIP_BZIP2),
        "text.gz": lambda: gzip.compress(b"line\n" * 100),
    }
    whole = (
        makers[name]()
        if name in makers
        else made_archives.MAKERS[name](tmp_path / name, made_archives.FILES).read_bytes()
    )
    generator, archive = random.Random(name), tmp_path / name
    headers = [at for at in range(len(whole)) if at < 1024 or at > len(whole) - 1024]
    for number in range(300):
        data = bytearray(whole)
        for _ in range(generator.choice([1, 1, 2, 4])):
            data[generator.choice(headers)] = generator.choice([0, 255, ord("9"), generator.randrange(256)])
        if name.endswith(".tar"):  # otherwise its checksum would reject every changed header
            data[148:156] = b"%06o\0 " % (256 + sum(data[:148]) + sum(data[156:512]))
        archive.write_bytes(data)
        try:
            unpack(archive, tmp_path / "out" / str(number))
        except DataError as error:
            assert "\n" not in str(error)  # noqa: PT017 - most archives are rejected, some unpack

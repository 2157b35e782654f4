"""Archives of every format, and the checks of what was unpacked."""

import io
import random
import tarfile
import zipfile

import pytest

from timetrial.datasets.download.archives import unpack
from timetrial.runner.core.errors import DataError

FILES = {"set/train/a.txt": b"one\n" * 5, "set/train/b c.txt": b"", "set/val/ü.txt": random.Random(1).randbytes(70_000)}


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


def assert_rejected(archive, out, message):
    with pytest.raises(DataError, match=message) as caught:
        unpack(archive, out)
    assert "\n" not in str(caught.value)
    assert str(archive) in str(caught.value)
    assert not out.exists() or not [path for path in out.rglob("*") if path.is_symlink()]

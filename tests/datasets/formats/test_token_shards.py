"""Token shards, with headers written by hand."""

import struct

import numpy as np
import pytest

from timetrial.datasets.formats import token_shards
from timetrial.runner.core.errors import DataError, Exit

IDS = [0, 1, 255, 256, 50256, 65535]


def shard(ids, *, magic=20240520, version=1, count=None):
    """Return the bytes of a shard: 256 int32 and a uint16 for each token, little endian."""
    header = struct.pack("<3i", magic, version, len(ids) if count is None else count) + bytes(4 * 253)
    return header + struct.pack(f"<{len(ids)}H", *ids)


@pytest.mark.parametrize("ids", [IDS, [7], []])
def test_writes_and_reads_the_published_format(tmp_path, ids):
    path = tmp_path / "a.bin"
    token_shards.write(path, ids)
    assert path.read_bytes() == shard(ids)
    assert token_shards.count(path) == len(ids)
    tokens = token_shards.read(path)
    assert tokens.dtype == np.uint16
    assert tokens.tolist() == ids


@pytest.mark.parametrize("dtype", [np.uint16, np.int64, ">u2"])
def test_writes_arrays_of_any_integer_type(tmp_path, dtype):
    token_shards.write(tmp_path / "a.bin", np.array(IDS, dtype))
    assert (tmp_path / "a.bin").read_bytes() == shard(IDS)


def test_reads_other_numbers_in_the_rest_of_the_header(tmp_path):
    """Only the first three numbers have a meaning."""
    path = tmp_path / "a.bin"
    path.write_bytes(shard(IDS)[:12] + b"\x07" * 1012 + shard(IDS)[1024:])
    assert token_shards.read(path).tolist() == IDS


def test_tokens_are_a_view_that_cannot_be_written(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(shard(IDS))
    tokens = token_shards.read(path)
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 1
    with open(path, "r+b") as file:
        file.seek(1024 + 2)
        file.write(struct.pack("<H", 77))
    assert tokens[1] == 77  # of the file, not of a copy in memory


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no token shard of version 1"),
        (b"To be, or not to be\n" * 100, "is no token shard of version 1"),
        (shard(IDS)[:1023], "is no token shard of version 1"),
        (shard(IDS, magic=20240801), "is no token shard of version 1"),
        (shard(IDS, version=2), "is no token shard of version 1"),
        (struct.pack(">3i", 20240520, 1, 6) + shard(IDS)[12:], "is no token shard of version 1"),  # big endian
        (shard(IDS)[:-1], "has 1035 bytes, which are not those of its 6 tokens"),
        (shard(IDS)[:-2], "has 1034 bytes, which are not those of its 6 tokens"),
        (shard(IDS)[:1024], "has 1024 bytes, which are not those of its 6 tokens"),
        (shard(IDS) + b"\0", "has 1037 bytes, which are not those of its 6 tokens"),
        (shard(IDS, count=-6), "has 1036 bytes, which are not those of its -6 tokens"),
    ],
)
@pytest.mark.parametrize("function", [token_shards.count, token_shards.read])
def test_rejects_other_files(tmp_path, function, content, message):
    path = tmp_path / "a.bin"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        function(path)
    assert caught.value.exit_code == Exit.DATA
    assert str(caught.value).startswith(str(path))
    assert "fetch it again" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("function", [token_shards.count, token_shards.read])
@pytest.mark.parametrize("name", ["nowhere.bin", "folder"])
def test_names_missing_file(tmp_path, function, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=rf"{name} is missing: name your shards in recipe\.data\.") as caught:
        function(tmp_path / name)
    assert caught.value.exit_code == Exit.DATA

"""Shards against other readers and writers: tarfile, TensorFlow, and records assembled by hand."""

import io
import struct
import tarfile

import numpy as np
import pytest

from timetrial.datasets.formats import shards
from timetrial.runner.core.errors import DataError, Exit

IMAGES = [
    (bytes(range(256)) * 5, 7),
    (b"second", 0),
    (b"", 1000),
    (b"\xff\xd8 fourth \xff\xd9", 127),
    (b"x" * 512, 128),
]
BOTH = pytest.mark.parametrize(
    ("read", "write"), [(shards.read_tar, shards.write_tar), (shards.read_tfrecord, shards.write_tfrecord)]
)
needs_tensorflow = pytest.mark.tensorflow


def pairs(path, read):
    data = path.read_bytes()
    return [(data[offset : offset + length], label) for offset, length, label in read(path)]


def assert_rejected(path, read, message="is truncated or damaged"):
    with pytest.raises(DataError, match=rf"^{path} .*{message}.*\.$") as caught:
        read(path)
    assert caught.value.exit_code == Exit.DATA
    assert "\n" not in str(caught.value)


def tar_of(path, members, **named):
    with tarfile.open(path, "w", **named) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def tensorflow():
    import torchvision  # noqa: F401 # first: Triton, which it imports, can crash where TensorFlow came before it

    from timetrial.workloads.common.imagenet import tensorflow_import

    return tensorflow_import.tensorflow


def field(number, content):
    """Return a length-delimited protocol buffer field of up to 127 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def feature(key, value):
    return field(1, field(1, key) + field(2, value))


def example(*features):
    return field(1, b"".join(features))


def write_records(path, *records):
    """Write a TFRecord file of any records, with `write_tfrecord`'s checksums."""
    out = b""
    for record in records:
        length = struct.pack("<Q", len(record))
        out += length + shards._checksum(length) + record + shards._checksum(record)
    path.write_bytes(out)
    return path


IMAGE, LABEL = feature(b"image/encoded", field(1, field(1, b"picture"))), feature(b"image/class/label", b"\x1a\2\x08\5")


@BOTH
def test_round_trip(tmp_path, read, write):
    write(tmp_path / "shard", IMAGES)
    assert pairs(tmp_path / "shard", read) == IMAGES


def test_tarfile_reads_our_tars(tmp_path):
    shards.write_tar(tmp_path / "shard.tar", IMAGES)
    with tarfile.open(tmp_path / "shard.tar") as tar:
        found = {member.name: tar.extractfile(member).read() for member in tar}
    expected = {f"{number:06d}.jpg": data for number, (data, _) in enumerate(IMAGES)}
    assert found == expected | {f"{number:06d}.cls": b"%d" % label for number, (_, label) in enumerate(IMAGES)}


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_reads_tars_of_other_writers(tmp_path, form):
    long = "n" * 120 + "/" + "m" * 90 if form != tarfile.USTAR_FORMAT else "n" * 50
    members = [
        ("./a/1.cls", b" 3\n"), ("./a/1.json", b"{}"), ("./a/1.JPEG", b"one"),
        ("b.1/1.jpg", b"two"), ("b.1/1.cls", b"4"),
        (f"{long}.png", b"three"), (f"{long}.seg.png", b"not selected"), (f"{long}.cls", b"0"),
        ("README", b"read me"),
    ]  # fmt: skip
    path = tar_of(tmp_path / "shard.tar", members, format=form)
    assert pairs(path, shards.read_tar) == [(b"one", 3), (b"two", 4), (b"three", 0)]


@needs_tensorflow
def test_tensorflow_reads_our_tfrecords(tmp_path):
    tf = tensorflow()
    shards.write_tfrecord(tmp_path / "shard", IMAGES)
    kinds = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], "int64"),
    }
    found = [
        tf.io.parse_single_example(record, kinds) for record in tf.data.TFRecordDataset(str(tmp_path / "shard"))
    ]  # also verifies the checksums
    assert [(one["image/encoded"].numpy(), int(one["image/class/label"])) for one in found] == IMAGES


@needs_tensorflow
def test_reads_tfrecords_of_tensorflow(tmp_path):
    tf = tensorflow()
    train = tf.train
    with tf.io.TFRecordWriter(str(tmp_path / "shard")) as writer:
        for data, label in IMAGES:
            features = {
                "image/class/label": train.Feature(int64_list=train.Int64List(value=[label])),
                "image/encoded": train.Feature(bytes_list=train.BytesList(value=[data])),
                "image/filename": train.Feature(bytes_list=train.BytesList(value=[b"n01440764_1.JPEG"])),
                "image/height": train.Feature(int64_list=train.Int64List(value=[375])),
                "image/object/bbox/xmin": train.Feature(float_list=train.FloatList(value=[0.1, 0.2])),
                "image/object/bbox/label": train.Feature(int64_list=train.Int64List(value=[])),
                "image/empty": train.Feature(),
            }
            writer.write(train.Example(features=train.Features(feature=features)).SerializeToString())
    assert pairs(tmp_path / "shard", shards.read_tfrecord) == IMAGES


def test_reads_packed_labels_and_skips_unknown_fields(tmp_path):
    packed = feature(b"image/class/label", field(3, field(1, b"\xac\2")))
    newer = b"\x78\1" + b"\x79" + bytes(8) + b"\x7d" + bytes(4)  # unknown fields: a varint, 64 bits and 32 bits
    path = write_records(tmp_path / "shard", example(IMAGE, LABEL), newer + example(packed, IMAGE))
    assert pairs(path, shards.read_tfrecord) == [(b"picture", 5), (b"picture", 300)]


def test_rejects_tar_truncated_anywhere(tmp_path):
    path = tmp_path / "shard.tar"
    shards.write_tar(path, IMAGES)
    complete = path.read_bytes()
    end = complete.rindex(b"128") + 512  # the last label
    cuts = {*range(0, end + 1024, 100), *range(0, end + 1024, 512), end + 1023}
    for length in sorted(cuts):
        path.write_bytes(complete[:length])
        assert_rejected(path, shards.read_tar)
    path.write_bytes(complete[: end + 1024])  # without the padding that tar adds
    assert len(shards.read_tar(path)) == len(IMAGES)


def test_rejects_tfrecord_truncated_within_a_record(tmp_path):
    path = tmp_path / "shard"
    shards.write_tfrecord(path, IMAGES)
    complete = path.read_bytes()
    ends = []
    for number in range(1, len(IMAGES)):
        shards.write_tfrecord(path, IMAGES[:number])
        ends.append(path.stat().st_size)
    for length in sorted({*range(0, len(complete), 7), *(end + 1 for end in ends), len(complete) - 1} - {*ends}):
        path.write_bytes(complete[:length])
        assert_rejected(path, shards.read_tfrecord)


@pytest.mark.parametrize("byte", range(12))
@pytest.mark.parametrize("record", [0, 1])
def test_rejects_damaged_record_header(tmp_path, record, byte):
    path = tmp_path / "shard"
    shards.write_tfrecord(path, IMAGES[:1])
    at = record * path.stat().st_size + byte
    shards.write_tfrecord(path, IMAGES)
    data = bytearray(path.read_bytes())
    data[at] ^= 16
    path.write_bytes(data)
    assert_rejected(path, shards.read_tfrecord)


@pytest.mark.parametrize("member", range(1, 6))
def test_rejects_damaged_tar_header(tmp_path, member):
    path = tar_of(tmp_path / "shard.tar", [(f"{n // 2}.{'jpg' if n % 2 else 'cls'}", b"1") for n in range(6)])
    data = bytearray(path.read_bytes())
    data[member * 1024 + 150] ^= 1  # in the header's checksum
    path.write_bytes(data)
    assert_rejected(path, shards.read_tar)


def test_rejects_concatenated_tars(tmp_path):
    shards.write_tar(tmp_path / "shard.tar", IMAGES)
    (tmp_path / "shard.tar").write_bytes((tmp_path / "shard.tar").read_bytes() * 2)
    assert_rejected(tmp_path / "shard.tar", shards.read_tar)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("1.jpg", b"one"), ("1.cls", b"1"), ("2.jpg", b"two")], r"lacks the image or the \.cls of 2"),
        ([("1.jpg", b"one"), ("1.cls", b"1"), ("2.cls", b"2")], r"lacks the image or the \.cls of 2"),
        ([("1.jpg", b"one"), ("1.cls", b"1"), ("1.jpg", b"two")], "contains 1 twice"),
        ([("1.jpg", b"one"), ("1.cls", b"1"), ("1.png", b"two")], "contains 1 twice"),
        ([("1.jpg", b"one"), ("1.cls", b"1"), ("1.cls", b"2")], "contains 1 twice"),
        ([("1.jpg", b"one"), ("1.cls", b"ape")], r"contains a \.cls that is not a whole number"),
        ([("1.jpg", b"one"), ("1.cls", b"")], r"contains a \.cls that is not a whole number"),
        ([("README", b"read me")], "contains no image"),
    ],
)
def test_rejects_inconsistent_members(tmp_path, members, message):
    assert_rejected(tar_of(tmp_path / "shard.tar", members), shards.read_tar, message)


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"no protocol buffer",
        example(IMAGE),
        example(LABEL),
        example(IMAGE, feature(b"image/class/label", field(1, field(1, b"ape")))),
        example(IMAGE, feature(b"image/class/label", field(3, b""))),
        example(feature(b"image/encoded", b"\x1a\2\x08\5"), LABEL),
        example(feature(b"image/encoded", b""), LABEL),
        example(IMAGE, LABEL)[:-3],
        example(field(1, field(1, b"image/encoded")), LABEL),
    ],
    ids=range(10),
)
def test_rejects_records_without_image_or_label(tmp_path, record):
    path = write_records(tmp_path / "shard", example(IMAGE, LABEL), record)
    assert_rejected(path, shards.read_tfrecord, "contains a record without image/encoded and image/class/label")


@pytest.mark.parametrize("read", [shards.read_tar, shards.read_tfrecord])
def test_rejects_noise(tmp_path, read):
    (tmp_path / "shard").write_bytes(np.random.default_rng(1).bytes(5000))
    assert_rejected(tmp_path / "shard", read)

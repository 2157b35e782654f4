"""ImageNet's loaders on the same images, against each other and a float64 oracle; each names a bad image."""

import io
import itertools
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from timetrial.datasets.synthetic.images import ClassificationSpec
from timetrial.runner.core.errors import ConfigurationError, DataError, Exit
from timetrial.runner.training import seeds
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.common import imagenet
from timetrial.workloads.common.imagenet.dali_loader import DaliImageNetData
from timetrial.workloads.common.imagenet.tfdata_loader import TfDataImageNetData
from timetrial.workloads.common.imagenet.torch_loader import TorchImageNetData

LOADERS = {"torch": TorchImageNetData, "dali": DaliImageNetData, "tfdata": TfDataImageNetData}
SIZE = 64
# Found in place of imported: Triton can crash where TensorFlow has been imported before it.
dali = pytest.mark.skipif(not find_spec("nvidia") or not find_spec("nvidia.dali"), reason="needs NVIDIA DALI")
tfdata = pytest.mark.tensorflow
ALL = [
    ("torch", 0),
    ("torch", 2),
    pytest.param("dali", 0, marks=dali),
    pytest.param("dali", 2, marks=dali),
    pytest.param("tfdata", 0, marks=tfdata),
]
every_loader = pytest.mark.parametrize(("loader", "workers"), ALL)


def build(folder, loader, workers=0, size=SIZE, sharding=None, **changed):
    kind = LOADERS[loader]
    cache_dir = f"{folder}-prepared"
    settings = kind.Settings(
        str(folder), cache_dir=cache_dir, image_size=size, eval_batch_size=5, workers=workers, **changed
    )
    kind.prepare_data(settings, lambda *progress: None)
    data = kind(
        settings,
        global_batch_size=6,
        sharding=sharding or BatchSharding(),
        device=torch.device("cpu"),
        seeds=seeds.derive_streams(1),
    )
    data.open()
    return data


def everything(data):
    """Pixels float64 [N, height, width, 3] and labels of two epochs and the evaluation."""
    batches = itertools.chain(*data.train_batches(1), *data.train_batches(2), data.eval_batches())
    pixels, labels = zip(*(batch.inputs for batch in batches), strict=True)
    return torch.cat(pixels).permute(0, 2, 3, 1).double().numpy(), torch.cat(labels).tolist()


def photograph(number, height, width):
    """A landscape of waves in slowly changing colours, with edges in it."""
    generator = np.random.default_rng(number)
    y, x = np.mgrid[:height, :width] / 100
    waves = generator.uniform(-9, 9, (2, 5, 1, 1, 3))
    image = 128 + 30 * np.sin(waves[0] * y[..., None] + waves[1] * x[..., None]).sum(0)
    image[(y * 5 + x * 3).astype(int) % 4 == 0] *= generator.uniform(0.5, 1, 3)
    return Image.fromarray((image + generator.normal(0, 4, image.shape)).clip(0, 255).astype(np.uint8))


def rotated_exif(image):
    """Return EXIF metadata of a rotated camera, which no loader applies."""
    exif = image.getexif()
    exif[0x0112] = 6
    return exif


@pytest.fixture
def photographs(tmp_path):
    """Two classes of JPEGs of every kind that ImageNet has, in training and validation."""
    kinds = [
        {"quality": 90}, {"quality": 75, "subsampling": 0}, {"quality": 60, "subsampling": 1}, {"progressive": True},
        {"quality": 95, "subsampling": 2}, {"exif": rotated_exif}, {"mode": "L"}, {"mode": "CMYK"}, {"kind": "PNG"},
    ]  # fmt: skip
    numbers = itertools.count()
    for split, name in itertools.product(("train", "val"), ("ape", "bee")):
        (tmp_path / split / name).mkdir(parents=True)
        for place, kind in enumerate(kinds):
            number = next(numbers)
            image = photograph(number, 90 + 17 * (number % 7), 80 + 23 * (number % 5)).convert(kind.get("mode", "RGB"))
            named = {key: value for key, value in kind.items() if key not in ("mode", "kind", "exif")}
            named |= {"exif": rotated_exif(image)} if "exif" in kind else {}
            image.save(tmp_path / split / name / f"{place}.jpg", kind.get("kind", "JPEG"), **named)
    return tmp_path


def resized(pixels, height, width):
    """Bilinear between pixel centres in float64, as TensorFlow's `align_corners=False` with half-pixel centres."""
    for axis, edge in ((0, height), (1, width)):
        at = ((np.arange(edge) + 0.5) * pixels.shape[axis] / edge - 0.5).clip(0, pixels.shape[axis] - 1)
        before = np.floor(at).astype(int)
        after = np.minimum(before + 1, pixels.shape[axis] - 1)
        share = (at - before).reshape(-1, *[1] * (2 - axis))
        pixels = pixels.take(before, axis) * (1 - share) + pixels.take(after, axis) * share
    return pixels


def oracle_pixels(data):
    """Return what `everything` should: the dataset's crops, decoded by PIL and resized in float64."""
    plans = [(True, 1, data.train_plan(1)), (True, 2, data.train_plan(2)), (False, 0, data.eval_plan())]
    out, flips = [], []
    for train, epoch, plan in plans:
        dataset = data.build_dataset(train)
        for batch in (dataset.encoded_batch(epoch, indices) for indices in plan):
            for jpeg, (top, left, tall, wide), flipped in zip(
                batch.jpegs(), batch.boxes.tolist(), batch.flipped.tolist(), strict=True
            ):
                pixels = np.asarray(Image.open(io.BytesIO(jpeg.numpy().tobytes())).convert("RGB"), dtype=float)
                small = resized(pixels[top : top + tall, left : left + wide], SIZE, SIZE)
                out.append(small[:, ::-1] if flipped else small)
                flips.append(flipped)
    return np.stack(out), np.array(flips)


@pytest.mark.parametrize(
    ("loader", "mean", "most"),
    [
        ("torch", 0.35, 1),
        pytest.param("dali", 0.3, 1, marks=dali),
        pytest.param("tfdata", 0.3, 64, marks=tfdata),
    ],
)
def test_loader_makes_the_pixels_of_the_oracle(photographs, loader, mean, most):
    expected, flipped = oracle_pixels(build(photographs, "torch"))
    pixels, _ = everything(build(photographs, loader))
    off = np.abs(pixels - expected)
    assert off.mean() < mean
    assert off.max() < most
    assert 0.2 < flipped[:36].mean() < 0.8
    assert not flipped[36:].any()
    assert np.abs(pixels[:, :, ::-1] - expected).mean((1, 2, 3)).min() > 5  # the other way round is another image


@pytest.mark.parametrize(
    ("first", "second", "bound"),
    [
        pytest.param("torch", "dali", 0.2, marks=dali),
        pytest.param("torch", "tfdata", 0.2, marks=tfdata),
        pytest.param("dali", "tfdata", 0.05, marks=[dali, tfdata]),
    ],
)
def test_loaders_make_the_same_images_in_the_same_order(photographs, first, second, bound):
    (first_pixels, labels), (second_pixels, classes) = (
        everything(build(photographs, loader)) for loader in (first, second)
    )
    assert labels == classes
    assert np.abs(first_pixels - second_pixels).mean() < bound


def test_center_crop_has_the_pixels_of_mlperfs_resize(tmp_path):
    for split, name in itertools.product(("train", "val"), ("ape", "bee")):
        (tmp_path / split / name).mkdir(parents=True)
        photograph(1, 300, 411).save(tmp_path / split / name / "1.jpg", quality=95)
    pixels = (
        next(iter(build(tmp_path, "torch", size=224).eval_batches())).inputs[0][0].permute(1, 2, 0).double().numpy()
    )
    whole = np.asarray(Image.open(tmp_path / "val/ape/1.jpg"), dtype=float)
    scaled = resized(whole, 256, round(411 * 256 / 300))
    left = (scaled.shape[1] - 224) // 2
    off = np.abs(pixels - scaled[16:240, left : left + 224]).mean()
    shifted = np.abs(pixels - scaled[14:238, left : left + 224]).mean()
    assert off < 1  # measured: 0.78, of pixels that were resized from other places
    assert shifted > 2 * off


@every_loader
def test_every_loader_splits_batches_over_ranks_alike(tmp_path, loader, workers):
    shapes = ClassificationSpec(2, 8, 4, 40)
    whole, labels = everything(build(tmp_path / "shapes", loader, workers, generate=shapes))
    shares = [
        build(tmp_path / "shapes", loader, workers, generate=shapes, sharding=BatchSharding(rank, 2))
        for rank in range(2)
    ]
    steps = zip(*(share.train_batches(1) for share in shares), strict=True)
    parts = [batch.inputs for step in steps for batches in step for batch in batches]
    pixels = torch.cat([part for part, _ in parts]).permute(0, 2, 3, 1).double().numpy()
    assert np.array_equal(pixels, whole[:18])  # 16 images, padded
    assert torch.cat([part for _, part in parts]).tolist() == labels[:18]


def damage_image(folder, damage):
    victim = sorted(folder.rglob("train/disc/*.jpg"))[3]
    victim.write_bytes(damage(victim.read_bytes()))
    return victim


def cut(data):
    return data[:400]


def invalid_tables(data):
    """Return a JPEG with valid ends, but with a Huffman table that every decoder rejects."""
    at = data.index(b"\xff\xc4") + 5
    return data[:at] + b"\xff" * 16 + data[at + 16 :]


@pytest.mark.parametrize("damage", [cut, invalid_tables, lambda _: b"no image", lambda _: b""])
@every_loader
def test_bad_image_ends_the_epoch_and_is_named(tmp_path, loader, workers, damage, capfd):
    shapes = ClassificationSpec(2, 8, 4, 40)
    data = build(tmp_path / "shapes", loader, workers, generate=shapes)
    victim = damage_image(tmp_path, damage)
    with pytest.raises(DataError, match=rf"^{victim} cannot be decoded") as caught:
        list(data.train_batches(1))
    assert caught.value.exit_code == Exit.DATA
    assert "\n" not in str(caught.value)


@every_loader
def test_batches_before_a_bad_image_are_yielded(tmp_path, loader, workers):
    data = build(tmp_path / "shapes", loader, workers, generate=ClassificationSpec(2, 8, 4, 40))
    whole = [batches[0].inputs[0] for batches in data.train_batches(1)]
    victim = Path(data.train_set.files[data.train_plan(1)[-1][0]])
    victim.write_bytes(b"no image")
    steps = iter(build(tmp_path / "shapes", loader, workers, generate=ClassificationSpec(2, 8, 4, 40)).train_batches(1))
    assert all(torch.equal(next(steps)[0].inputs[0], expected) for expected in whole[:-1])
    with pytest.raises(DataError, match=victim.name):
        next(steps)


@every_loader
def test_missing_image_is_named(tmp_path, loader, workers):
    data = build(tmp_path / "shapes", loader, workers, generate=ClassificationSpec(2, 8, 4, 40))
    victim = sorted(tmp_path.rglob("val/disc/*.jpg"))[1]
    victim.unlink()
    list(data.train_batches(1))
    with pytest.raises(DataError, match=rf"^{victim} cannot be read"):
        list(data.eval_batches())


@pytest.mark.parametrize("form", ["tfrecord", "webdataset"])
@every_loader
def test_bad_image_in_a_shard_is_named_by_its_offset(tmp_path, loader, workers, form):
    data = build(tmp_path / "shapes", loader, workers, generate=ClassificationSpec(2, 8, 4, 40, layout=form))
    shard, offset, length = Path(data.train_set.files[0]), int(data.train_set.offset[5]), int(data.train_set.length[5])
    content = bytearray(shard.read_bytes())
    content[offset + 300 : offset + length] = bytes(length - 300)
    shard.write_bytes(content)
    with pytest.raises(DataError, match=rf"^the image at byte {offset} of {shard} cannot be decoded"):
        list(data.train_batches(1))


@pytest.mark.parametrize(
    ("loader", "package", "command"),
    [
        ("dali", "nvidia.dali", r"pip install 'timetrial\[dali\]'"),
        ("tfdata", "tensorflow", r"pip install 'timetrial\[tensorflow\]'"),
    ],
)
def test_missing_extra_is_named_with_its_install_command(tmp_path, monkeypatch, loader, package, command):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"{imagenet.__name__}.tensorflow_import", raising=False)
    monkeypatch.delattr(imagenet, "tensorflow_import", raising=False)
    with pytest.raises(ConfigurationError, match=rf"data={loader} needs .*{command}") as caught:
        build(tmp_path / "shapes", loader, generate=ClassificationSpec(2, 8, 4, 40))
    assert caught.value.exit_code == Exit.CONFIGURATION

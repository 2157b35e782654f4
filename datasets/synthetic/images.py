"""Photographs of shapes: textured things on textured ground, as real JPEG files in ImageNet's layout."""

import hashlib
import io
import itertools
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...runner.core.atomic_files import atomic_directory
from ...runner.core.errors import ConfigurationError
from ..formats import cifar, shards

SHAPES = ("cross", "disc", "ring", "square", "triangle", "wedge", "bars", "corner")
_QUALITY = 90
_SHARD = 1000
_SHARDS = {
    "tfrecord": ("{split}-{shard:05d}-of-{total:05d}", shards.write_tfrecord),
    "webdataset": ("{split}-{shard:06d}.tar", shards.write_tar),
}


@dataclass
class Shapes:
    """How many images a class (`train`, `val`) of how many `classes`, at most 8, and how wide (pixels, about).

    `form` is folders (a class each), tfrecord or webdataset (shards of up to 1000 images).
    """

    classes: int = 8
    train: int = 100
    val: int = 40
    width: int = 72
    seed: int = 1
    form: str = "folders"

    def __post_init__(self) -> None:
        """Refuses what cannot be drawn."""
        if not 2 <= self.classes <= len(SHAPES) or min(self.train, self.val) < 1 or self.width < 16:
            raise ValueError(f"classes must be 2 to {len(SHAPES)}, train and val 1 or more, width 16 or more.")
        if self.form not in ("folders", *_SHARDS):
            raise ValueError(f"form must be folders, {' or '.join(_SHARDS)}, not {self.form}.")


def path_of(path: Path, shapes: Shapes) -> Path:
    """`path` with a digest of the set in its name: another set is another folder."""
    digest = hashlib.sha256(repr(sorted(asdict(shapes).items())).encode()).hexdigest()[:8]
    return path.with_name(f"{path.name}-{digest}")


def write_images(folder: Path, shapes: Shapes) -> None:
    """Writes `folder`/{train,val}/<class>/<n>.jpg or shards, whole or not at all; equal settings give equal bytes."""
    with atomic_directory(folder) as temporary:
        for number, (split, count) in enumerate((("train", shapes.train), ("val", shapes.val))):
            wanted = [(label, index) for label in range(shapes.classes) for index in range(count)]
            encoded = ((_jpeg(shapes, number, label, index), label) for label, index in wanted)
            (temporary / split).mkdir(parents=True)
            if shapes.form == "folders":
                for (label, index), (data, _) in zip(wanted, encoded, strict=True):
                    place = temporary / split / SHAPES[label] / f"{index:05d}.jpg"
                    place.parent.mkdir(exist_ok=True)
                    place.write_bytes(data)
                continue
            name, write = _SHARDS[shapes.form]
            total = -(-len(wanted) // _SHARD)
            for shard in range(total):
                path = temporary / split / name.format(split=split, shard=shard, total=total)
                write(path, itertools.islice(encoded, _SHARD))


def write_cifar(folder: Path, shapes: Shapes) -> None:
    """Writes `folder` in CIFAR-10's binary form, 32 pixels wide whatever `shapes` says, whole or not at all."""
    if shapes.classes * shapes.train < len(cifar.TRAIN):
        raise ConfigurationError(f"CIFAR-10 has {len(cifar.TRAIN)} training files: generate an image for each.")
    with atomic_directory(folder) as temporary:
        for number, (names, count) in enumerate(((cifar.TRAIN, shapes.train), (cifar.VAL, shapes.val))):
            wanted = [(label, index) for label in range(shapes.classes) for index in range(count)]
            generators = [np.random.default_rng((shapes.seed, number, *key)) for key in wanted]
            drawn = [
                draw(SHAPES[label], cifar.EDGE, generator, square=True)
                for (label, _), generator in zip(wanted, generators, strict=True)
            ]
            labels = np.array([label for label, _ in wanted])
            for part, name in enumerate(names):
                cifar.write(temporary / name, np.stack(drawn[part :: len(names)]), labels[part :: len(names)])


def _jpeg(shapes: Shapes, *key: int) -> bytes:
    """Image `key` (split, class, number), encoded."""
    generator = np.random.default_rng((shapes.seed, *key))
    out = io.BytesIO()
    image = draw(SHAPES[key[1]], shapes.width, generator).transpose(1, 2, 0)
    Image.fromarray(image).save(out, "JPEG", quality=_QUALITY)
    return out.getvalue()


def draw(name: str, width: int, generator: np.random.Generator, *, square: bool = False) -> NDArray[np.uint8]:
    """One image, uint8 [3, height, width]: the shape turned, moved, scaled and coloured at random."""
    height = width if square else int(width * generator.uniform(0.75, 1.33))
    y, x = np.mgrid[:height, :width].astype(np.float32)
    size = min(height, width) * generator.uniform(0.28, 0.42)
    y -= generator.uniform(size, height - size)
    x -= generator.uniform(size, width - size)
    angle = generator.uniform(-0.6, 0.6)
    across, down = (x * np.cos(angle) + y * np.sin(angle)) / size, (y * np.cos(angle) - x * np.sin(angle)) / size
    ground, thing = generator.uniform(0, 255, (2, 3))
    thing += np.sign(thing - ground) * 60  # never the colour of the ground
    image = np.where(inside(name, across, down), thing[:, None, None], ground[:, None, None])
    image += 18 * np.sin(x * generator.uniform(0.1, 0.8) + y * generator.uniform(0.1, 0.8))
    image += generator.normal(0, 10, image.shape)
    return image.clip(0, 255).astype(np.uint8)


def inside(name: str, x: NDArray[np.float32], y: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which points of the square from -1 to 1 belong to the shape."""
    far, box = np.hypot(x, y), np.maximum(abs(x), abs(y))
    return {
        "cross": (np.minimum(abs(x), abs(y)) < 0.25) & (box < 1),
        "disc": far < 0.9,
        "ring": (far < 1) & (far > 0.6),
        "square": box < 0.8,
        "triangle": (y < 0.8) & (y > 2 * abs(x) - 1),
        "wedge": (far < 1) & (abs(np.arctan2(y, x)) > 0.7),
        "bars": (box < 0.9) & (np.floor((x + 1) * 2.5) % 2 == 0),
        "corner": (box < 0.9) & ((x < -0.3) | (y > 0.3)),
    }[name]

"""Synthetic image classification datasets of textured shapes, as JPEG files or in CIFAR-10's binary format."""

import io
import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...runner.core.atomic_files import atomic_directory
from ...runner.core.errors import ConfigurationError
from ..formats import cifar, shards

SHAPES = ("cross", "disc", "ring", "square", "triangle", "wedge", "bars", "corner")
_JPEG_QUALITY = 90
_IMAGES_PER_SHARD = 1000
_SHARD_WRITERS = {
    "tfrecord": ("{split}-{shard:05d}-of-{total:05d}", shards.write_tfrecord),
    "webdataset": ("{split}-{shard:06d}.tar", shards.write_tar),
}


@dataclass
class ClassificationSpec:
    """Size and shape of an image classification dataset."""

    num_classes: int = 8
    """Number of classes, from 2 to 8."""
    train_per_class: int = 100
    """Training images of a class."""
    val_per_class: int = 40
    """Validation images of a class."""
    width: int = 72
    """Width in pixels; the height varies around it."""
    seed: int = 1
    """Seed of the generator."""
    layout: str = "folders"
    """folders (one for each class), tfrecord or webdataset (shards of up to 1000 images)."""

    def __post_init__(self) -> None:
        """Reject values that cannot be generated."""
        too_few = min(self.train_per_class, self.val_per_class) < 1
        if not 2 <= self.num_classes <= len(SHAPES) or too_few or self.width < 16:
            raise ValueError(
                f"num_classes must be 2 to {len(SHAPES)}, train_per_class and val_per_class 1 or more, "
                "width 16 or more."
            )
        if self.layout not in ("folders", *_SHARD_WRITERS):
            raise ValueError(f"layout must be folders, {' or '.join(_SHARD_WRITERS)}, not {self.layout}.")


def write_images(folder: Path, spec: ClassificationSpec) -> None:
    """Write `folder`/{train,val}/<class>/<n>.jpg or shards, atomically. Equal specs give equal bytes."""
    with atomic_directory(folder) as temporary:
        splits = (("train", spec.train_per_class), ("val", spec.val_per_class))
        for split_index, (split, per_class) in enumerate(splits):
            keys = [(label, index) for label in range(spec.num_classes) for index in range(per_class)]
            encoded = ((_encode_image(spec, split_index, label, index), label) for label, index in keys)
            (temporary / split).mkdir(parents=True)
            if spec.layout == "folders":
                for (label, index), (data, _) in zip(keys, encoded, strict=True):
                    path = temporary / split / SHAPES[label] / f"{index:05d}.jpg"
                    path.parent.mkdir(exist_ok=True)
                    path.write_bytes(data)
                continue
            name, write_shard = _SHARD_WRITERS[spec.layout]
            total = -(-len(keys) // _IMAGES_PER_SHARD)
            for shard in range(total):
                path = temporary / split / name.format(split=split, shard=shard, total=total)
                write_shard(path, itertools.islice(encoded, _IMAGES_PER_SHARD))


def write_cifar(folder: Path, spec: ClassificationSpec) -> None:
    """Write `folder` in CIFAR-10's binary format, atomically; images are 32 pixels wide whatever `spec` says."""
    if spec.num_classes * spec.train_per_class < len(cifar.TRAIN_FILES):
        raise ConfigurationError(f"CIFAR-10 has {len(cifar.TRAIN_FILES)} training files: generate an image for each.")
    with atomic_directory(folder) as temporary:
        splits = ((cifar.TRAIN_FILES, spec.train_per_class), (cifar.VAL_FILES, spec.val_per_class))
        for split_index, (names, per_class) in enumerate(splits):
            keys = [(label, index) for label in range(spec.num_classes) for index in range(per_class)]
            generators = [np.random.default_rng((spec.seed, split_index, *key)) for key in keys]
            images = [
                render_image(SHAPES[label], cifar.IMAGE_SIZE, generator, square=True)
                for (label, _), generator in zip(keys, generators, strict=True)
            ]
            labels = np.array([label for label, _ in keys])
            for part, name in enumerate(names):
                cifar.write(temporary / name, np.stack(images[part :: len(names)]), labels[part :: len(names)])


def _encode_image(spec: ClassificationSpec, *key: int) -> bytes:
    """Return the image with the key (split, class, index) as a JPEG."""
    generator = np.random.default_rng((spec.seed, *key))
    out = io.BytesIO()
    image = render_image(SHAPES[key[1]], spec.width, generator).transpose(1, 2, 0)
    Image.fromarray(image).save(out, "JPEG", quality=_JPEG_QUALITY)
    return out.getvalue()


def render_image(name: str, width: int, generator: np.random.Generator, *, square: bool = False) -> NDArray[np.uint8]:
    """Return an image, uint8 [3, height, width], of the shape with random angle, position, size and color."""
    height = width if square else int(width * generator.uniform(0.75, 1.33))
    y, x = np.mgrid[:height, :width].astype(np.float32)
    size = min(height, width) * generator.uniform(0.28, 0.42)
    y -= generator.uniform(size, height - size)
    x -= generator.uniform(size, width - size)
    angle = generator.uniform(-0.6, 0.6)
    across, down = (x * np.cos(angle) + y * np.sin(angle)) / size, (y * np.cos(angle) - x * np.sin(angle)) / size
    background, foreground = generator.uniform(0, 255, (2, 3))
    foreground += np.sign(foreground - background) * 60  # keeps the shape visible
    image = np.where(is_inside(name, across, down), foreground[:, None, None], background[:, None, None])
    image += 18 * np.sin(x * generator.uniform(0.1, 0.8) + y * generator.uniform(0.1, 0.8))
    image += generator.normal(0, 10, image.shape)
    return image.clip(0, 255).astype(np.uint8)


def is_inside(name: str, x: NDArray[np.float32], y: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which points of the square [-1, 1] x [-1, 1] belong to the shape."""
    radius, chebyshev = np.hypot(x, y), np.maximum(abs(x), abs(y))
    return {
        "cross": (np.minimum(abs(x), abs(y)) < 0.25) & (chebyshev < 1),
        "disc": radius < 0.9,
        "ring": (radius < 1) & (radius > 0.6),
        "square": chebyshev < 0.8,
        "triangle": (y < 0.8) & (y > 2 * abs(x) - 1),
        "wedge": (radius < 1) & (abs(np.arctan2(y, x)) > 0.7),
        "bars": (chebyshev < 0.9) & (np.floor((x + 1) * 2.5) % 2 == 0),
        "corner": (chebyshev < 0.9) & ((x < -0.3) | (y > 0.3)),
    }[name]

"""Synthetic object detection datasets in COCO format: images of several textured shapes that may occlude each other."""

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...runner.core.atomic_files import atomic_directory
from .images import SHAPES, is_inside

_JPEG_QUALITY = 90
# An object with a smaller visible fraction, or with fewer visible pixels, is left out of the image.
_MIN_VISIBLE_FRACTION, _MIN_VISIBLE_PIXELS = 0.4, 20
_EMPTY, _GRAY, _CROWD = (20, 19), (16, 7), (12, 5)  # (period, phase) of the images that are empty, gray, with a crowd
_SIZE_RANGE = (0.09, 0.38)  # half the width of an object as a fraction of the image's shorter side
_MIN_CONTRAST = 60  # of an object to the background, in at least one of the three color channels
_FULL_RANGE, _DARK, _BRIGHT = (0, 255), (10, 70), (140, 250)  # of color values
_ID_STEP = 7  # image ids have gaps, as COCO's have

Mask = NDArray[np.bool_]


@dataclass
class DetectionSpec:
    """Size and shape of a detection dataset.

    Every 20th image is empty, every 16th is gray, and every 12th has a crowd: many small objects of a class under one
    annotation.
    """

    num_train: int = 240
    """Number of training images."""
    num_val: int = 60
    """Number of validation images."""
    width_range: tuple[int, int] = (120, 160)
    """Smallest and largest width in pixels."""
    height_range: tuple[int, int] = (96, 160)
    """Smallest and largest height in pixels."""
    num_classes: int = 6
    """Number of classes, at most 8."""
    max_objects: int = 6
    """Most objects of an image."""
    high_contrast: bool = False
    """Draw bright objects on dark backgrounds, which a network learns within minutes."""
    seed: int = 1
    """Seed of the generator."""

    def __post_init__(self) -> None:
        """Reject values that cannot be generated."""
        self.width_range, self.height_range = (
            (int(low), int(high)) for low, high in (self.width_range, self.height_range)
        )
        if not 1 <= self.num_classes <= len(SHAPES) or min(self.num_train, self.num_val, self.max_objects) < 1:
            raise ValueError(f"num_classes must be 1 to {len(SHAPES)}, num_train, num_val and max_objects 1 or more.")
        if any(not 48 <= low <= high for low, high in (self.width_range, self.height_range)):
            raise ValueError("width_range and height_range must be [low, high] in pixels with 48 <= low <= high.")


def write_detection_dataset(folder: Path, spec: DetectionSpec) -> None:
    """Write `folder`/annotations/instances_{train,val}.json and `folder`/{train,val}/<id>.jpg, atomically.

    Equal specs give equal bytes. As in COCO, ids have gaps, single objects have polygons and crowds have RLE masks.
    """
    with atomic_directory(folder) as temporary:
        (temporary / "annotations").mkdir()
        for split_index, (split, num_images) in enumerate((("train", spec.num_train), ("val", spec.num_val))):
            (temporary / split).mkdir()
            images: list[dict[str, Any]] = []
            annotations: list[dict[str, Any]] = []
            for index in range(num_images):
                generator = np.random.default_rng((spec.seed, split_index, index))
                pixels, objects = render_image(spec, index, generator)
                image_id = 1 + split_index + _ID_STEP * index
                name = f"{image_id:012d}.jpg"
                height, width = pixels.shape[:2]
                (temporary / split / name).write_bytes(_encode_jpeg(pixels))
                images.append({"id": image_id, "file_name": name, "height": height, "width": width})
                annotations += [
                    _annotation(item, image_id, len(annotations) + number) for number, item in enumerate(objects, 1)
                ]
            instances = {
                "info": {"description": "timetrial's generated scenes"}, "licenses": [], "images": images,
                "annotations": annotations, "categories": [
                    {"id": _category_id(label), "name": SHAPES[label], "supercategory": "shape"}
                    for label in range(spec.num_classes)
                ],
            }  # fmt: skip
            text = json.dumps(instances, separators=(",", ":"))
            (temporary / "annotations" / f"instances_{split}.json").write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class SceneObject:
    """An object or a crowd of class `label`; `visible` is its mask, bool [height, width]."""

    label: int
    is_crowd: bool
    visible: Mask


def render_image(
    spec: DetectionSpec, index: int, generator: np.random.Generator
) -> tuple[NDArray[np.uint8], list[SceneObject]]:
    """Return image `index`, uint8 [height, width, 3] (gray: [height, width]), and its objects from back to front."""
    is_empty, is_gray, has_crowd = (index % period == phase for period, phase in (_EMPTY, _GRAY, _CROWD))
    shape = tuple(int(generator.integers(low, high + 1)) for low, high in (spec.height_range, spec.width_range))
    objects = []
    if not is_empty:
        for label in generator.integers(spec.num_classes, size=generator.integers(1, spec.max_objects + 1)).tolist():
            low, high = np.log(_SIZE_RANGE)
            size = min(shape) * np.exp(generator.uniform(low, high))
            center = generator.uniform(0.4 * size, np.array(shape) - 0.4 * size)
            objects.append(SceneObject(label, False, _object_mask(SHAPES[label], shape, size, center, generator)))
        if has_crowd:
            label = int(generator.integers(spec.num_classes))
            objects.append(SceneObject(label, True, _crowd_mask(SHAPES[label], shape, generator)))
    objects = _remove_occluded(objects)
    background = _random_color(_DARK if spec.high_contrast else _FULL_RANGE, is_gray, generator)
    image = np.empty((*shape, 3), np.float32)
    image[:] = background + _texture(np.indices(shape), generator)[..., None]
    color_range = _BRIGHT if spec.high_contrast else _FULL_RANGE
    for item in objects:
        texture = _texture(np.argwhere(item.visible).T, generator)
        while abs((color := _random_color(color_range, is_gray, generator)) - background).max() < _MIN_CONTRAST:
            continue
        image[item.visible] = color + texture[:, None]
    image += 10 * generator.standard_normal(image.shape, np.float32)
    pixels = image.clip(0, 255).astype(np.uint8)
    return pixels[..., 0] if is_gray else pixels, objects


def _random_color(value_range: tuple[int, int], is_gray: bool, generator: np.random.Generator) -> NDArray[np.float64]:
    """Return a color with values in this range, float64 [3]."""
    return np.repeat(generator.uniform(*value_range), 3) if is_gray else generator.uniform(*value_range, 3)


def _texture(points: NDArray[Any], generator: np.random.Generator) -> NDArray[np.float32]:
    """Return the values of a random plane wave at `points` (y, x)."""
    down, across = generator.uniform(0.1, 0.8, 2)
    return 18 * np.sin((points[0] * down + points[1] * across).astype(np.float32))


def _object_mask(
    name: str, shape: tuple[int, ...], size: float, center: NDArray[np.float64], generator: np.random.Generator
) -> Mask:
    """Return the mask of one object at a random angle; `size` is half its width in pixels."""
    reach = 1.42 * size  # to the corner of a rotated square
    low = np.maximum(center - reach, 0).astype(int)
    high = np.minimum(center + reach + 1, shape).astype(int)
    y, x = np.mgrid[low[0] : high[0], low[1] : high[1]].astype(np.float32)
    y, x = (y - center[0]) / size, (x - center[1]) / size
    angle = generator.uniform(-0.6, 0.6)
    mask = np.zeros(shape, bool)
    mask[low[0] : high[0], low[1] : high[1]] = is_inside(
        name, x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    )
    return mask


def _crowd_mask(name: str, shape: tuple[int, ...], generator: np.random.Generator) -> Mask:
    """Return the union of the masks of many small objects near each other."""
    size = min(shape) * 0.07
    middle = generator.uniform(0.3, 0.7, 2) * shape
    centers = middle + generator.uniform(-0.2, 0.2, (int(generator.integers(8, 15)), 2)) * shape
    return np.logical_or.reduce([_object_mask(name, shape, size, center, generator) for center in centers])


def _remove_occluded(objects: list[SceneObject]) -> list[SceneObject]:
    """Return the objects, from back to front, with their visible masks; drop those that are mostly occluded."""
    kept: list[SceneObject] = []
    covered: Mask = np.zeros((1, 1), bool)
    for item in reversed(objects):
        visible = item.visible & ~covered
        if visible.sum() >= max(_MIN_VISIBLE_PIXELS, _MIN_VISIBLE_FRACTION * item.visible.sum()):
            kept.append(SceneObject(item.label, item.is_crowd, visible))
            covered = covered | item.visible
    return kept[::-1]


def _category_id(label: int) -> int:
    """Return the id of a class. Ids have gaps, as COCO's have."""
    return label + 1 + label // 3


def _annotation(item: SceneObject, image_id: int, annotation_id: int) -> dict[str, Any]:
    rows, columns = (np.flatnonzero(item.visible.any(axis)) for axis in (1, 0))
    corner = [int(columns[0]), int(rows[0])]
    return {
        "id": annotation_id, "image_id": image_id, "category_id": _category_id(item.label),
        "iscrowd": int(item.is_crowd),
        "bbox": [*corner, int(columns[-1]) + 1 - corner[0], int(rows[-1]) + 1 - corner[1]],
        "area": int(item.visible.sum()),
        "segmentation": _encode_rle(item.visible) if item.is_crowd else mask_to_polygons(item.visible),
    }  # fmt: skip


def _encode_rle(mask: Mask) -> dict[str, list[int]]:
    """Return a mask in COCO's uncompressed RLE: lengths of runs outside, inside, outside, ... down the columns."""
    flat = np.concatenate([[False], mask.T.ravel(), [False]])  # the first run is outside, even if it is empty
    bounds = np.flatnonzero(flat[1:-1] != flat[:-2])
    return {"size": list(mask.shape), "counts": np.diff(bounds, prepend=0, append=mask.size).tolist()}


def mask_to_polygons(mask: Mask) -> list[list[int]]:
    """Return polygons x, y, x, y, ... along the edges of the pixels, which rasterize to `mask` again.

    COCO's polygons have no holes, so a mask with a hole is cut in two there.
    """
    width = mask.shape[1] + 2
    loops = _trace_borders(np.pad(mask, 1))
    for loop in loops:
        y, x = np.divmod(np.array(loop), width)
        if (x * np.roll(y, -1) - np.roll(x, -1) * y).sum() < 0:  # negative orientation (shoelace formula): a hole
            cut = (int(x.min()) + int(x.max())) // 2 - 1
            left, right = mask_to_polygons(mask[:, :cut]), mask_to_polygons(mask[:, cut:])
            return left + [[value + cut * (1 - n % 2) for n, value in enumerate(polygon)] for polygon in right]
    return [[value for point in loop for value in (point % width - 1, point // width - 1)] for loop in loops]


def _trace_borders(padded: Mask) -> list[list[int]]:
    """Return the borders of a mask with an empty margin, as corners y * width + x, with the inside to their right."""
    width, flat = padded.shape[1], padded.ravel()
    pixels = np.flatnonzero(flat)
    successors: dict[int, list[int]] = {}  # the ends of the edges that begin at a corner
    # For each edge of a pixel: the neighbor beyond it, its first corner from the pixel's top left one, its direction.
    for neighbor, start, step in ((-width, 0, 1), (1, 1, width), (width, width + 1, -1), (-1, width, -width)):
        for corner in (pixels[~flat[pixels + neighbor]] + start).tolist():
            successors.setdefault(corner, []).append(corner + step)
    right_turn = {0: 0, 1: width, width: -1, -1: -width, -width: 1}
    loops = []
    while successors:
        first = corner = next(iter(successors))
        step, loop = 0, []
        while corner != first or not step:
            ends = successors[corner]
            # Where two pixels touch at a corner, two edges begin: the one to the right belongs to the same pixel.
            end = next((end for end in ends if end - corner == right_turn[step]), ends[0])
            ends.remove(end)
            if not ends:
                del successors[corner]
            if end - corner != step:
                loop.append(corner)
            step, corner = end - corner, end
        loops.append(loop)
    return loops


def _encode_jpeg(pixels: NDArray[np.uint8]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=_JPEG_QUALITY)
    return out.getvalue()

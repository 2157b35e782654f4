"""Photographs of several textured shapes, one before the other, as a detection set in COCO's form."""

import hashlib
import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...runner.core.atomic_files import atomic_directory
from .images import SHAPES, inside

_QUALITY = 90
_SHOWN, _LEAST = 0.4, 20  # a shape of which less is seen, as a share or in pixels, is left out of the photograph
_EMPTY, _GREY, _CROWDED = (20, 19), (16, 7), (12, 5)  # every so manieth image, and where it begins
_SIZES = (0.09, 0.38)  # half the width of a shape, of the image's shorter side
_CONTRAST = 60  # of a shape to the ground, in one of the three colours
_ANY, _DARK, _BRIGHT = (0, 255), (10, 70), (140, 250)  # levels of light
_GAP = 7  # between ids of images, which COCO's have too

Mask = NDArray[np.bool_]


@dataclass
class Scenes:
    """How many images (`train`, `val`), how large, of how many `classes` (at most 8), with up to `most` shapes each.

    `width` and `height` are ranges in pixels, both ends included. Every 20th image is empty, every 16th is grey, and in
    every 12th there is a crowd: many small shapes of a class under one annotation. Shapes that are `bright`, on dark
    ground, are learned within minutes.
    """

    train: int = 240
    val: int = 60
    width: tuple[int, int] = (120, 160)
    height: tuple[int, int] = (96, 160)
    classes: int = 6
    most: int = 6
    bright: bool = False
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuses what cannot be drawn."""
        self.width, self.height = ((int(least), int(most)) for least, most in (self.width, self.height))
        if not 1 <= self.classes <= len(SHAPES) or min(self.train, self.val, self.most) < 1:
            raise ValueError(f"classes must be 1 to {len(SHAPES)}, train, val and most 1 or more.")
        if any(not 48 <= least <= most for least, most in (self.width, self.height)):
            raise ValueError("width and height must be ranges of pixels from 48 on, the smaller number first.")


def path_of(path: Path, scenes: Scenes) -> Path:
    """`path` with a digest of the set in its name: another set is another folder."""
    digest = hashlib.sha256(repr(sorted(asdict(scenes).items())).encode()).hexdigest()[:8]
    return path.with_name(f"{path.name}-{digest}")


def write_scenes(folder: Path, scenes: Scenes) -> None:
    """Writes `folder`/annotations/instances_{train,val}.json and `folder`/{train,val}/<id>.jpg, whole or not at all.

    Equal settings give equal bytes. As in COCO, ids have gaps, single shapes have polygons and crowds have runs.
    """
    with atomic_directory(folder) as temporary:
        (temporary / "annotations").mkdir()
        for number, (split, count) in enumerate((("train", scenes.train), ("val", scenes.val))):
            (temporary / split).mkdir()
            images: list[dict[str, Any]] = []
            annotations: list[dict[str, Any]] = []
            for index in range(count):
                generator = np.random.default_rng((scenes.seed, number, index))
                pixels, things = draw(scenes, index, generator)
                identity = 1 + number + _GAP * index
                name = f"{identity:012d}.jpg"
                height, width = pixels.shape[:2]
                (temporary / split / name).write_bytes(_jpeg(pixels))
                images.append({"id": identity, "file_name": name, "height": height, "width": width})
                annotations += [_annotation(thing, identity, len(annotations) + n) for n, thing in enumerate(things, 1)]
            found = {
                "info": {"description": "timetrial's generated scenes"}, "licenses": [], "images": images,
                "annotations": annotations, "categories": [
                    {"id": _category(label), "name": SHAPES[label], "supercategory": "shape"}
                    for label in range(scenes.classes)
                ],
            }  # fmt: skip
            text = json.dumps(found, separators=(",", ":"))
            (temporary / "annotations" / f"instances_{split}.json").write_text(text)


@dataclass(frozen=True)
class Thing:
    """A shape or a crowd of class `label`, and the pixels that show it, bool [height, width]."""

    label: int
    crowd: bool
    seen: Mask


def draw(scenes: Scenes, index: int, generator: np.random.Generator) -> tuple[NDArray[np.uint8], list[Thing]]:
    """Photograph `index`, uint8 [height, width, 3] (grey: [height, width]), and what is on it, the rearmost first."""
    empty, grey, crowded = (index % every == start for every, start in (_EMPTY, _GREY, _CROWDED))
    shape = tuple(int(generator.integers(least, most + 1)) for least, most in (scenes.height, scenes.width))
    things = []
    if not empty:
        for label in generator.integers(scenes.classes, size=generator.integers(1, scenes.most + 1)).tolist():
            low, high = np.log(_SIZES)
            size = min(shape) * np.exp(generator.uniform(low, high))
            centre = generator.uniform(0.4 * size, np.array(shape) - 0.4 * size)
            things.append(Thing(label, False, _stamp(SHAPES[label], shape, size, centre, generator)))
        if crowded:
            label = int(generator.integers(scenes.classes))
            things.append(Thing(label, True, _crowd(SHAPES[label], shape, generator)))
    things = _seen(things)
    ground = _colour(_DARK if scenes.bright else _ANY, grey, generator)
    image = np.empty((*shape, 3), np.float32)
    image[:] = ground + _texture(np.indices(shape), generator)[..., None]
    for thing in things:
        waves = _texture(np.argwhere(thing.seen).T, generator)
        while abs((colour := _colour(_BRIGHT if scenes.bright else _ANY, grey, generator)) - ground).max() < _CONTRAST:
            continue
        image[thing.seen] = colour + waves[:, None]
    image += 10 * generator.standard_normal(image.shape, np.float32)
    pixels = image.clip(0, 255).astype(np.uint8)
    return pixels[..., 0] if grey else pixels, things


def _colour(levels: tuple[int, int], grey: bool, generator: np.random.Generator) -> NDArray[np.float64]:
    """A colour of these levels of light, float64 [3]."""
    return np.repeat(generator.uniform(*levels), 3) if grey else generator.uniform(*levels, 3)


def _texture(place: NDArray[Any], generator: np.random.Generator) -> NDArray[np.float32]:
    """Waves across the pixels at `place`, y and x."""
    down, across = generator.uniform(0.1, 0.8, 2)
    return 18 * np.sin((place[0] * down + place[1] * across).astype(np.float32))


def _stamp(
    name: str, shape: tuple[int, ...], size: float, centre: NDArray[np.float64], generator: np.random.Generator
) -> Mask:
    """The pixels of one shape, turned at random; `size` is half its width, in pixels."""
    reach = 1.42 * size  # of the corner of a turned square
    low = np.maximum(centre - reach, 0).astype(int)
    high = np.minimum(centre + reach + 1, shape).astype(int)
    y, x = np.mgrid[low[0] : high[0], low[1] : high[1]].astype(np.float32)
    y, x = (y - centre[0]) / size, (x - centre[1]) / size
    angle = generator.uniform(-0.6, 0.6)
    mask = np.zeros(shape, bool)
    mask[low[0] : high[0], low[1] : high[1]] = inside(
        name, x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    )
    return mask


def _crowd(name: str, shape: tuple[int, ...], generator: np.random.Generator) -> Mask:
    """The pixels of many small shapes near each other."""
    size = min(shape) * 0.07
    middle = generator.uniform(0.3, 0.7, 2) * shape
    around = middle + generator.uniform(-0.2, 0.2, (int(generator.integers(8, 15)), 2)) * shape
    return np.logical_or.reduce([_stamp(name, shape, size, centre, generator) for centre in around])


def _seen(things: list[Thing]) -> list[Thing]:
    """The things, the rearmost first, with what the nearer ones leave of them; what is hidden too much is left out."""
    kept: list[Thing] = []
    taken: Mask = np.zeros((1, 1), bool)
    for thing in reversed(things):
        seen = thing.seen & ~taken
        if seen.sum() >= max(_LEAST, _SHOWN * thing.seen.sum()):
            kept.append(Thing(thing.label, thing.crowd, seen))
            taken = taken | thing.seen
    return kept[::-1]


def _category(label: int) -> int:
    """The id of a class: COCO's have gaps."""
    return label + 1 + label // 3


def _annotation(thing: Thing, image: int, identity: int) -> dict[str, Any]:
    rows, columns = (np.flatnonzero(thing.seen.any(axis)) for axis in (1, 0))
    corner = [int(columns[0]), int(rows[0])]
    return {
        "id": identity, "image_id": image, "category_id": _category(thing.label), "iscrowd": int(thing.crowd),
        "bbox": [*corner, int(columns[-1]) + 1 - corner[0], int(rows[-1]) + 1 - corner[1]],
        "area": int(thing.seen.sum()),
        "segmentation": _runs(thing.seen) if thing.crowd else outlines(thing.seen),
    }  # fmt: skip


def _runs(mask: Mask) -> dict[str, list[int]]:
    """COCO's unpacked runs: pixels outside, inside, outside, ... down the columns."""
    flat = np.concatenate([[False], mask.T.ravel(), [False]])  # begins outside, if only for 0 pixels
    bounds = np.flatnonzero(flat[1:-1] != flat[:-2])
    return {"size": list(mask.shape), "counts": np.diff(bounds, prepend=0, append=mask.size).tolist()}


def outlines(mask: Mask) -> list[list[int]]:
    """Polygons x, y, x, y, ... along the edges of the pixels, which rasterise to `mask` again.

    COCO's polygons have no holes, so a mask with a hole is cut there into two.
    """
    wide = mask.shape[1] + 2
    loops = _loops(np.pad(mask, 1))
    for loop in loops:
        y, x = np.divmod(np.array(loop), wide)
        if (x * np.roll(y, -1) - np.roll(x, -1) * y).sum() < 0:  # runs the other way round (shoelace formula): a hole
            cut = (int(x.min()) + int(x.max())) // 2 - 1
            left, right = outlines(mask[:, :cut]), outlines(mask[:, cut:])
            return left + [[place + cut * (1 - n % 2) for n, place in enumerate(polygon)] for polygon in right]
    return [[place for point in loop for place in (point % wide - 1, point // wide - 1)] for loop in loops]


def _loops(padded: Mask) -> list[list[int]]:
    """The borders of a mask without pixels at its edge, as corners y * width + x, with the inside to their right."""
    wide, flat = padded.shape[1], padded.ravel()
    pixels = np.flatnonzero(flat)
    after: dict[int, list[int]] = {}  # where the edges lead to that begin at a corner
    # The neighbour beyond an edge of a pixel, the edge's first corner from the pixel's upper left one, its direction.
    for beyond, begin, step in ((-wide, 0, 1), (1, 1, wide), (wide, wide + 1, -1), (-1, wide, -wide)):
        for corner in (pixels[~flat[pixels + beyond]] + begin).tolist():
            after.setdefault(corner, []).append(corner + step)
    turned = {0: 0, 1: wide, wide: -1, -1: -wide, -wide: 1}  # to the right
    loops = []
    while after:
        start = corner = next(iter(after))
        step, loop = 0, []
        while corner != start or not step:
            ends = after[corner]
            # Where two pixels touch at a corner, two edges begin: the one to the right is the same pixel's.
            end = next((end for end in ends if end - corner == turned[step]), ends[0])
            ends.remove(end)
            if not ends:
                del after[corner]
            if end - corner != step:
                loop.append(corner)
            step, corner = end - corner, end
        loops.append(loop)
    return loops


def _jpeg(pixels: NDArray[np.uint8]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=_QUALITY)
    return out.getvalue()

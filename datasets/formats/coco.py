"""Detection sets in COCO's form: an instances json beside a folder of images, read into arrays."""

import dataclasses
import hashlib
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...runner.core.atomic_files import atomic_write
from ...runner.core.errors import DataError
from . import coco_json, coco_masks
from .coco_masks import Segments

_FORM = 1  # of prepared files: another number makes them anew
_THREADS = 16
_OF_IMAGE = ("image_id", "file_name", "height", "width")
_OF_ANNOTATION = ("annotation_id", "image", "category", "box", "area", "crowd", "outline", "run")


@dataclass(frozen=True)
class CocoSet:
    """I images and their A annotations in order of image, in arrays, which pickle fast and are shared after a fork.

    Images: `image_id` int64, `file_name` (below `folder`), `height` and `width` int32 in pixels; image i has the
    annotations `first[i]` to `first[i + 1]`. Annotations: `annotation_id` int64, `image` int32 (an index), `category`
    int32 (an index into `category_id` and `category_name`, which are in order of id), `box` float32 [A, 4] (x, y,
    width, height in pixels, inside the image), `area` float64 (of the mask, in pixels), `crowd`. The other arrays are
    those of `coco_masks.Segments`. `dropped` annotations had a box without area.
    """

    annotations: str
    folder: str
    dropped: int
    image_id: NDArray[np.int64]
    file_name: NDArray[np.str_]
    height: NDArray[np.int32]
    width: NDArray[np.int32]
    first: NDArray[np.int64]
    annotation_id: NDArray[np.int64]
    image: NDArray[np.int32]
    category: NDArray[np.int32]
    box: NDArray[np.float32]
    area: NDArray[np.float64]
    crowd: NDArray[np.bool_]
    category_id: NDArray[np.int64]
    category_name: NDArray[np.str_]
    outline: NDArray[np.int64]
    corner: NDArray[np.int64]
    corners: NDArray[np.float32]
    run: NDArray[np.int64]
    runs: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.image_id)

    def path(self, image: int) -> Path:
        """The file of an image."""
        return Path(self.folder, str(self.file_name[image]))

    def of(self, image: int) -> slice:
        """Where the annotations of an image lie."""
        return slice(int(self.first[image]), int(self.first[image + 1]))

    def boxes(self, image: int) -> NDArray[np.float32]:
        """The boxes of an image, float32 [n, 4]: x, y, width, height in pixels."""
        return self.box[self.of(image)]

    def categories(self, image: int) -> NDArray[np.int32]:
        """The categories of an image's annotations, int32 [n], from 0."""
        return self.category[self.of(image)]

    def polygons(self, image: int) -> list[list[NDArray[np.float32]]]:
        """For each annotation of an image its polygons, float32 [points, 2]; none where it has runs."""
        places = self.of(image)
        return [self.outlines(annotation) for annotation in range(places.start, places.stop)]

    def outlines(self, annotation: int) -> list[NDArray[np.float32]]:
        """The polygons of an annotation, float32 [points, 2], x and y in pixels."""
        start, stop = self.outline[annotation].tolist()
        ends = self.corner[start : stop + 1].tolist()
        return [self.corners[here:there] for here, there in pairwise(ends)]

    def edges(self, annotation: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """An annotation's outline as `coco_masks.edges` gives it; raises `DataError` where it has no mask."""
        polygons, runs = self._segmentation(annotation)
        return coco_masks.edges(polygons, runs, int(self.height[self.image[annotation]]))

    def packed_mask(self, annotation: int) -> dict[str, Any]:
        """An annotation's mask as pycocotools takes it, {"size": [height, width], "counts": bytes}.

        Equal to that of pycocotools' `annToRLE` for coordinates of up to two decimals, which COCO's are. Raises
        `DataError` where the annotation has none, or the set was read without masks.
        """
        image = self.image[annotation]
        polygons, runs = self._segmentation(annotation)
        return coco_masks.pack(polygons, runs, int(self.height[image]), int(self.width[image]))

    def mask(self, annotation: int) -> NDArray[np.bool_]:
        """An annotation's mask, bool [height, width]; raises as `packed_mask` does."""
        return coco_masks.unpack(self.packed_mask(annotation))

    def wide(self) -> NDArray[np.bool_]:
        """Which images are wider than high: Mask R-CNN's batches hold such or others (mlperf.md 12.3), bool [I]."""
        return self.width > self.height

    def without_crowd(self) -> Self:
        """All images, with the annotations of single objects alone."""
        return self._only(~self.crowd)

    def without_small(self, smallest: float) -> Self:
        """All images, with the annotations alone whose boxes' sides are both above `smallest` pixels."""
        return self._only(self.box[:, 2:].min(1, initial=np.inf) > smallest)

    def with_boxes(self, smallest: float = 0) -> Self:
        """The images with at least one box whose sides are both above `smallest` pixels, with all annotations."""
        good = (self.box[:, 2:] > smallest).all(1)
        return self.select(np.flatnonzero(np.bincount(self.image[good], minlength=len(self))))

    def select(self, images: NDArray[np.int64]) -> Self:
        """The images of these indexes, in this order; the polygons and runs themselves are shared, not copied."""
        count = np.diff(self.first)[images]
        first = np.concatenate([[0], np.cumsum(count)])
        picked = np.repeat(self.first[images] - first[:-1], count) + np.arange(first[-1])
        changed: dict[str, Any] = {name: getattr(self, name)[images] for name in _OF_IMAGE}
        changed |= {name: getattr(self, name)[picked] for name in _OF_ANNOTATION}
        changed |= {"image": np.repeat(np.arange(len(images), dtype=np.int32), count), "first": first}
        return dataclasses.replace(self, **changed)

    def _segmentation(self, annotation: int) -> tuple[list[NDArray[np.float32]], NDArray[np.uint32]]:
        """An annotation's polygons and runs, one of which is empty; raises `DataError` where both are."""
        polygons, (start, stop) = self.outlines(annotation), self.run[annotation]
        if not polygons and start == stop:
            raise DataError(
                f"{self.annotations}: annotation {self.annotation_id[annotation]} has no mask: add its segmentation, "
                "or read the set with masks."
            )
        return polygons, self.runs[start:stop]

    def _only(self, kept: NDArray[np.bool_]) -> Self:
        """All images, with the annotations that are `kept`, bool [A]."""
        changed: dict[str, Any] = {name: getattr(self, name)[kept] for name in _OF_ANNOTATION}
        return dataclasses.replace(self, **changed, first=np.concatenate([[0], np.cumsum(kept)])[self.first])


def read(annotations: Path, images: Path, *, masks: bool, drop_empty: bool = True) -> CocoSet:
    """The set of the json `annotations` with files in the folder `images`; segmentations are read if `masks`.

    Boxes without area are left out and counted, or are an error unless `drop_empty`; boxes that leave the image by up
    to a pixel are clipped. Raises `DataError` with the first problem and how many more there are.
    """
    found, problems = coco_json.examine(annotations, images, masks=masks, demanded=masks)
    if not drop_empty:
        coco_json.say_empty(annotations, found, problems)
    problems.refuse()
    table, image_count = found.annotations, len(found.images["id"])
    order = np.argsort(found.image, kind="stable")
    order = order[~found.empty[order]]
    image = found.image[order]
    segments = {field.name: getattr(found.segments, field.name) for field in dataclasses.fields(Segments)}
    segments |= {name: segments[name][order] for name in ("outline", "run")}
    return CocoSet(
        annotations=str(annotations), folder=str(images), dropped=int(found.empty.sum()),
        image_id=found.images["id"], file_name=found.images["file_name"],
        height=found.images["height"].astype(np.int32), width=found.images["width"].astype(np.int32),
        first=np.searchsorted(image, np.arange(image_count + 1)),
        annotation_id=table["id"][order], image=image.astype(np.int32), category=found.category[order].astype(np.int32),
        box=found.box[order].astype(np.float32), area=table["area"][order], crowd=table["iscrowd"][order] != 0,
        category_id=found.categories["id"], category_name=found.categories["name"],
        **segments,
    )  # fmt: skip


def check(annotations: Path, images: Path, *, masks: bool = False, files: bool = False) -> list[str]:
    """A sentence for every problem of a set; of many of a kind the first ones, and how many more there are.

    Segmentations are checked where there are any; with `masks`, every annotation must have one. With `files`, the
    images that are there are looked at too, as `check_images` does, whatever else is wrong.
    """
    try:
        found, problems = coco_json.examine(annotations, images, masks=True, demanded=masks)
    except DataError as error:
        return [str(error)]
    coco_json.say_empty(annotations, found, problems)
    there = {key: column[found.there] for key, column in found.images.items()}
    return problems.sentences + (_check_files(annotations, images, there) if files else [])


def check_images(coco: CocoSet) -> list[str]:
    """A sentence for every image that is unreadable, cut short, or not of the size that the json says.

    Reads the beginnings of the files and the ends of JPEGs, many at once, and decodes where an end looks strange, and
    what is no JPEG.
    """
    table = {"id": coco.image_id, "file_name": coco.file_name, "height": coco.height, "width": coco.width}
    return _check_files(Path(coco.annotations), Path(coco.folder), table)


def _check_files(annotations: Path, folder: Path, images: coco_json.Table) -> list[str]:
    def fault(name: str, number: int, height: int, width: int) -> str | None:
        path = folder / name
        try:
            with Image.open(path) as opened:
                size = opened.size
                if opened.format != "JPEG" or not _ends(path):
                    opened.load()
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            return f"{path} cannot be decoded: it is cut short or no image; replace it or remove it."
        if size == (width, height):
            return None
        return (
            f"{path} is {size[0]}x{size[1]} pixels, not {width}x{height} as {annotations} says of image {number}: "
            "put the right image there or mend the json."
        )

    columns = (images[key].tolist() for key in ("file_name", "id", "height", "width"))
    with ThreadPoolExecutor(_THREADS) as pool:
        return [sentence for sentence in pool.map(fault, *columns) if sentence]


def prepare(annotations: Path, images: Path, folder: Path, *, masks: bool, drop_empty: bool = True) -> Path:
    """What `read` gives, as an .npz file in `folder`, made once and found again while the json is unchanged.

    The images are looked at too before it is made. Raises `DataError` for what is wrong with either.
    """
    try:
        stat = annotations.stat()
    except OSError:
        read(annotations, images, masks=masks, drop_empty=drop_empty)  # says what is wrong
        raise
    key = f"{annotations.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{images.resolve()}|{masks}|{drop_empty}|{_FORM}"
    prepared = folder / f"{annotations.stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"
    if prepared.exists():
        return prepared
    coco = read(annotations, images, masks=masks, drop_empty=drop_empty)
    faults = check_images(coco)
    coco_json.Problems(faults, len(faults)).refuse()
    columns = {field.name: getattr(coco, field.name) for field in dataclasses.fields(CocoSet)}
    with atomic_write(prepared) as temporary, open(temporary, "wb") as file:
        np.savez(file, **columns)
    return prepared


def open_set(prepared: Path) -> CocoSet:
    """A prepared set, whole; raises `DataError` where the file is gone or damaged."""
    try:
        with open(prepared, "rb") as opened, np.load(opened) as file:
            columns: dict[str, Any] = {field.name: file[field.name] for field in dataclasses.fields(CocoSet)}
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{prepared} cannot be read ({error}): remove it, it is made anew.") from error
    columns |= {"annotations": str(columns["annotations"]), "folder": str(columns["folder"])}
    return CocoSet(**columns | {"dropped": int(columns["dropped"])})


def _ends(path: Path) -> bool:
    """Whether a JPEG has its end marker, give or take what editors append."""
    with open(path, "rb") as file:
        file.seek(-min(64, path.stat().st_size), 2)
        return b"\xff\xd9" in file.read()

"""Detection datasets in COCO format, an instances JSON and a folder of images, read into arrays."""

import dataclasses
import hashlib
import os
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ...runner.core.atomic_files import atomic_write
from ...runner.core.errors import DataError
from . import coco_images, coco_json, coco_masks, coco_problems
from .coco_masks import Edges, Segments

_CACHE_VERSION = 2  # increase it to discard older caches
_IMAGE_FIELDS = ("image_id", "file_name", "height", "width")
_ANNOTATION_FIELDS = ("annotation_id", "image", "category", "box", "area", "crowd", "outline", "run")


@dataclass(frozen=True)
class CocoSet:
    """I images and their A annotations, sorted by image, in arrays, which pickle fast and which processes can share.

    Images: `image_id` int64, `file_name` (below `folder`), `height` and `width` int32 in pixels; image i has the
    annotations `first[i]` to `first[i + 1]`. Annotations: `annotation_id` int64, `image` int32 (an index), `category`
    int32 (an index into `category_id` and `category_name`, which are sorted by id), `box` float32 [A, 4] (x, y, width,
    height in pixels, inside the image), `area` float64 (of the mask, in pixels), `crowd`. The other arrays are those of
    `coco_masks.Segments`. `dropped` counts annotations that were left out because their box has no area. The names of
    the fields are those of the arrays in cache files. `mended` is what `coco_mending.mend` returned.
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
    mended: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.image_id)

    def content(self) -> Iterator[bytes]:
        """Yield the values of each column: all but where the files lie."""
        for field in dataclasses.fields(self):
            if field.name not in ("annotations", "folder", "mended"):
                yield np.ascontiguousarray(getattr(self, field.name)).tobytes()

    def path(self, image: int) -> Path:
        """Return the path of an image."""
        return Path(self.folder, str(self.file_name[image]))

    def annotations_of(self, image: int) -> slice:
        """Return the slice of an image's annotations."""
        return slice(int(self.first[image]), int(self.first[image + 1]))

    def boxes(self, image: int) -> NDArray[np.float32]:
        """Return the boxes of an image, float32 [n, 4]: x, y, width, height in pixels."""
        return self.box[self.annotations_of(image)]

    def categories(self, image: int) -> NDArray[np.int32]:
        """Return the category indices of an image's annotations, int32 [n], from 0."""
        return self.category[self.annotations_of(image)]

    def polygons(self, image: int) -> list[list[NDArray[np.float32]]]:
        """Return the polygons of each annotation of an image, float32 [points, 2]; none for RLE masks."""
        rows = self.annotations_of(image)
        return [self.annotation_polygons(annotation) for annotation in range(rows.start, rows.stop)]

    def annotation_polygons(self, annotation: int) -> list[NDArray[np.float32]]:
        """Return the polygons of an annotation, float32 [points, 2], x and y in pixels."""
        start, stop = self.outline[annotation].tolist()
        ends = self.corner[start : stop + 1].tolist()
        return [self.corners[begin:end] for begin, end in pairwise(ends)]

    def edges(self, image: int) -> list[Edges]:
        """Return the edges of each mask of an image; raises `DataError` if an annotation has no mask."""
        rows = self.annotations_of(image)
        in_runs = self.run[rows, 1] > self.run[rows, 0]
        run = self.run[rows][in_runs]
        of_runs = coco_masks.rle_edges(self.runs, run, np.full(len(run), self.height[image], np.int64))
        return [
            next(of_runs) if has_runs else coco_masks.polygon_edges(self._segmentation(annotation)[0])
            for annotation, has_runs in enumerate(in_runs.tolist(), rows.start)
        ]

    def count_edges(self) -> NDArray[np.int64]:
        """Return the number of edges of each image's masks, int64 [I]."""
        counts = self.corner[self.outline[:, 1]] - self.corner[self.outline[:, 0]]
        in_runs = np.flatnonzero(self.run[:, 1] > self.run[:, 0])
        height = self.height[self.image[in_runs]].astype(np.int64)
        counts[in_runs] = [len(edges) for edges, _ in coco_masks.rle_edges(self.runs, self.run[in_runs], height)]
        return np.bincount(self.image, counts, len(self)).astype(np.int64)

    def rle(self, annotation: int) -> dict[str, Any]:
        """Return an annotation's mask as pycocotools' RLE, {"size": [height, width], "counts": bytes}.

        Equals pycocotools' `annToRLE` for coordinates with up to two decimals, as COCO's have. Raises `DataError` if
        the annotation has no mask, or the dataset was read without masks.
        """
        image = self.image[annotation]
        polygons, runs = self._segmentation(annotation)
        return coco_masks.encode_rle(polygons, runs, int(self.height[image]), int(self.width[image]))

    @cached_property
    def rles(self) -> list[dict[str, Any]]:
        """The masks of all annotations as `rle` returns them; they are made at the first use."""
        return [self.rle(annotation) for annotation in range(len(self.image))]

    def mask(self, annotation: int) -> NDArray[np.bool_]:
        """Return an annotation's mask, bool [height, width]; raises as `rle` does."""
        return coco_masks.decode_rle(self.rle(annotation))

    def is_wide(self) -> NDArray[np.bool_]:
        """Return which images are wider than high, bool [I]; Mask R-CNN groups its batches by it."""
        return self.width > self.height

    def without_crowd(self) -> Self:
        """Return all images without crowd annotations."""
        return self._only(~self.crowd)

    def without_small(self, min_side: float) -> Self:
        """Return all images, with only those annotations whose boxes have both sides above `min_side` pixels."""
        return self._only(self.box[:, 2:].min(1, initial=np.inf) > min_side)

    def with_boxes(self, min_side: float = 0) -> Self:
        """Return the images that have a box with both sides above `min_side` pixels, with all their annotations."""
        is_large = (self.box[:, 2:] > min_side).all(1)
        return self.select(np.flatnonzero(np.bincount(self.image[is_large], minlength=len(self))))

    def select(self, images: NDArray[np.int64]) -> Self:
        """Return the images with these indices, in this order; polygons and run lengths are shared, not copied."""
        count = np.diff(self.first)[images]
        first = np.concatenate([[0], np.cumsum(count)])
        rows = np.repeat(self.first[images] - first[:-1], count) + np.arange(first[-1])
        changed: dict[str, Any] = {name: getattr(self, name)[images] for name in _IMAGE_FIELDS}
        changed |= {name: getattr(self, name)[rows] for name in _ANNOTATION_FIELDS}
        changed |= {"image": np.repeat(np.arange(len(images), dtype=np.int32), count), "first": first}
        return dataclasses.replace(self, **changed)

    def _segmentation(self, annotation: int) -> tuple[list[NDArray[np.float32]], NDArray[np.uint32]]:
        """Return an annotation's polygons and run lengths, one of which is empty; raises `DataError` if both are."""
        polygons, (start, stop) = self.annotation_polygons(annotation), self.run[annotation]
        if not polygons and start == stop:
            raise DataError(
                f"{self.annotations}: annotation {self.annotation_id[annotation]} has no mask: add its segmentation, "
                "or read the dataset with masks."
            )
        return polygons, self.runs[start:stop]

    def _only(self, kept: NDArray[np.bool_]) -> Self:
        """Return all images, with the annotations that are `kept`, bool [A]."""
        changed: dict[str, Any] = {name: getattr(self, name)[kept] for name in _ANNOTATION_FIELDS}
        return dataclasses.replace(self, **changed, first=np.concatenate([[0], np.cumsum(kept)])[self.first])


def read(annotations: Path, images: Path, *, masks: bool, drop_empty: bool = True) -> CocoSet:
    """Read the JSON file `annotations` with images in the folder `images`; segmentations only with `masks`.

    Boxes without area are left out and counted, or are an error without `drop_empty`. Boxes that leave the image by up
    to a pixel are clipped. Raises `DataError` with the first problem and the number of others.
    """
    instances, problems = coco_json.read_instances(annotations, images, masks=masks, masks_required=masks)
    if drop_empty and instances.empty.any():
        problems.mended.append(f"{coco_problems.LEFT_OUT}: {instances.empty.sum():,}")
    elif not drop_empty:
        coco_json.add_empty_boxes(annotations, instances, problems)
    problems.raise_first()
    table, num_images = instances.annotations, len(instances.images["id"])
    order = np.argsort(instances.image, kind="stable")
    order = order[~instances.empty[order]]
    image = instances.image[order]
    segments = {field.name: getattr(instances.segments, field.name) for field in dataclasses.fields(Segments)}
    segments |= {name: segments[name][order] for name in ("outline", "run")}
    return CocoSet(
        annotations=str(annotations), folder=str(images), dropped=int(instances.empty.sum()),
        image_id=instances.images["id"], file_name=instances.images["file_name"],
        height=instances.images["height"].astype(np.int32), width=instances.images["width"].astype(np.int32),
        first=np.searchsorted(image, np.arange(num_images + 1)),
        annotation_id=table["id"][order], image=image.astype(np.int32),
        category=instances.category[order].astype(np.int32),
        box=instances.box[order].astype(np.float32), area=table["area"][order], crowd=table["iscrowd"][order] != 0,
        category_id=instances.categories["id"], category_name=instances.categories["name"],
        mended=np.array(problems.mended, dtype=np.str_), **segments,
    )  # fmt: skip


def check(
    annotations: Path,
    images: Path,
    *,
    masks: bool = False,
    segmentations: bool = True,
    files: bool = False,
    drop_empty: bool = False,
) -> list[str]:
    """Return a sentence for each problem of a dataset; for many of a kind, the first ones and the number of others.

    Existing `segmentations` are checked; with `masks`, every annotation must have one. With `files`, the existing
    images are checked too, as `check_images` does. With `drop_empty`, boxes without area are no problem.
    """
    try:
        instances, problems = coco_json.read_instances(annotations, images, masks=segmentations, masks_required=masks)
    except DataError as error:
        return [str(error)]
    if not drop_empty:
        coco_json.add_empty_boxes(annotations, instances, problems)
    existing = {key: column[instances.exists] for key, column in instances.images.items()}
    return problems.sentences + (coco_images.check(annotations, images, existing) if files else [])


def check_images(coco: CocoSet) -> list[str]:
    """Return a sentence for each image that is unreadable, truncated, or of another size than the JSON says."""
    table = {"id": coco.image_id, "file_name": coco.file_name, "height": coco.height, "width": coco.width}
    return coco_images.check(Path(coco.annotations), Path(coco.folder), table)


def prepare(annotations: Path, images: Path, folder: Path, *, masks: bool, drop_empty: bool = True) -> Path:
    """Return the path of an .npz file in `folder` with the result of `read`, cached while the JSON is unchanged.

    Also checks the images before the file is written. Raises `DataError` for problems of either.
    """
    try:
        stat = annotations.stat()
    except OSError:
        read(annotations, images, masks=masks, drop_empty=drop_empty)  # raises DataError
        raise
    source = f"{annotations.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{images.resolve()}"
    key = f"{source}|{masks}|{drop_empty}|{_CACHE_VERSION}"
    prepared = folder / f"{annotations.stem}-{hashlib.sha256(os.fsencode(key)).hexdigest()[:16]}.npz"
    if prepared.exists():
        return prepared
    coco = read(annotations, images, masks=masks, drop_empty=drop_empty)
    faults = check_images(coco)
    coco_problems.Problems(faults, len(faults)).raise_first()
    columns = {field.name: getattr(coco, field.name) for field in dataclasses.fields(CocoSet)}
    with atomic_write(prepared) as temporary, open(temporary, "wb") as file:
        np.savez(file, **columns)
    return prepared


def load_prepared(prepared: Path) -> CocoSet:
    """Load a file written by `prepare`; raises `DataError` if it is missing or damaged."""
    try:
        with open(prepared, "rb") as opened, np.load(opened) as file:
            columns: dict[str, Any] = {field.name: file[field.name] for field in dataclasses.fields(CocoSet)}
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{prepared} cannot be read ({error}): remove it, and it is created again.") from error
    columns |= {"annotations": str(columns["annotations"]), "folder": str(columns["folder"])}
    return CocoSet(**columns | {"dropped": int(columns["dropped"])})

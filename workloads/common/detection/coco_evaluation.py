"""COCO average precision of boxes and masks, computed by hotcoco, or by pycocotools where hotcoco is not installed."""

import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ....datasets.formats import coco_masks
from ....datasets.formats.coco import CocoSet
from ....runner.core.errors import ConfigurationError

IouType = Literal["bbox", "segm"]
Rle = dict[str, Any]  # a compressed mask in pycocotools' form: {"size": [height, width], "counts": bytes}

_MAX_DETECTIONS = 100  # per image and category
_AREA_RANGE_ALL = [0.0, 1e10]  # square pixels

_Columns = dict[str, NDArray[Any]]
_Masks = tuple[list[Any] | None, list[Any] | None]  # of the annotations, of the detections


@dataclass(frozen=True)
class Detections:
    """D detections of one rank or of all ranks, in plain arrays, which pickle fast.

    `image_id` and `category_id` int64 [D] are COCO ids. `box` float32 [D, 4] is x, y, width, height in pixels. `score`
    is float32 [D]. `mask` holds D masks as RLE, or is None if only boxes are detected.
    """

    image_id: NDArray[np.int64]
    category_id: NDArray[np.int64]
    box: NDArray[np.float32]
    score: NDArray[np.float32]
    mask: list[Rle] | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` if the columns differ in length."""
        columns: list[Any] = [self.image_id, self.category_id, self.box, self.score]
        columns += [] if self.mask is None else [self.mask]
        if len({len(column) for column in columns}) > 1:
            raise ValueError("Detections need equal numbers of image ids, category ids, boxes, scores and masks.")

    def __len__(self) -> int:
        return len(self.image_id)

    @classmethod
    def empty(cls, *, masks: bool) -> "Detections":
        """Return no detections; `masks` says whether they would have masks."""
        ids = np.zeros(0, np.int64)
        return cls(ids, ids, np.zeros((0, 4), np.float32), np.zeros(0, np.float32), [] if masks else None)


def concatenate(parts: Sequence[Detections]) -> Detections:
    """Join one or more detections; the result has masks if every part has them."""
    image_id, category_id, box, score = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("image_id", "category_id", "box", "score")
    )
    masks = [part.mask for part in parts if part.mask is not None]
    joined_masks = list(chain.from_iterable(masks)) if len(masks) == len(parts) else None
    return Detections(image_id, category_id, box, score, joined_masks)


def import_evaluation() -> tuple[Any, Callable[..., tuple[Any, Any]]]:
    """Return the class COCOeval of hotcoco or pycocotools, and the function that builds its two indexes.

    Raises `ConfigurationError` if neither is installed.
    """
    try:
        import hotcoco
    except ImportError:
        return import_pycocotools().cocoeval.COCOeval, _pycocotools_indexes
    return hotcoco.COCOeval, _hotcoco_indexes


def import_pycocotools() -> Any:
    """Import pycocotools with its submodules; raise `ConfigurationError` if it is not installed."""
    try:
        import pycocotools.coco
        import pycocotools.cocoeval
        import pycocotools.mask
    except ImportError as error:
        raise ConfigurationError("COCO masks and scores need pycocotools: pip install pycocotools.") from error
    return pycocotools


def average_precision(
    ground_truth: CocoSet, detections: Detections, iou_type: IouType, *, image_ids: NDArray[np.int64] | None = None
) -> dict[str, float]:
    """Return {"AP": mean over the IoU thresholds .50 to .95, "AP50": at .50} as fractions.

    It covers all images, or those of `image_ids`. Both libraries return the same bits. Raises `ValueError` for
    detections of images or categories that `ground_truth` lacks, and if there is no single object to detect;
    `DataError` for annotations without masks if `iou_type` is "segm".
    """
    if iou_type == "segm" and detections.mask is None:
        raise ValueError("The detections have no masks to evaluate: give one RLE per detection.")
    selected_ids = ground_truth.image_id if image_ids is None else image_ids
    for name, ids, known_ids in (
        ("Image", np.concatenate([detections.image_id, selected_ids]), ground_truth.image_id),
        ("Category", detections.category_id, ground_truth.category_id),
    ):
        if (unknown := np.setdiff1d(ids, known_ids)).size:
            raise ValueError(
                f"{name} {unknown[0]} is not in {ground_truth.annotations}: evaluate a dataset with its own detections."
            )
    selected = ground_truth
    if image_ids is not None:
        selected = ground_truth.select(np.flatnonzero(np.isin(ground_truth.image_id, image_ids)))
    precision = _precision(selected, detections, iou_type) if len(selected) else np.empty(0)
    exists = precision > -1  # -1 marks categories without objects
    if not exists.any():
        raise ValueError(f"{ground_truth.annotations} has no single object in these images: nothing can be evaluated.")
    return {"AP": float(precision[exists].mean()), "AP50": float(precision[0][exists[0]].mean())}


def _precision(ground_truth: CocoSet, detections: Detections, iou_type: IouType) -> NDArray[np.float64]:
    """Return the precision float64 [IoU, recall, category, 1, 1] over the images of `ground_truth`."""
    rows = np.flatnonzero(np.isin(detections.image_id, ground_truth.image_id))
    annotation_columns: _Columns = {
        "image_id": ground_truth.image_id[ground_truth.image],
        "category_id": ground_truth.category_id[ground_truth.category],
        "bbox": coco_masks.restore_decimals(ground_truth.box),
        "iscrowd": ground_truth.crowd.astype(np.int64),
    }
    detection_columns: _Columns = {
        "image_id": detections.image_id[rows],
        "category_id": detections.category_id[rows],
        "bbox": detections.box[rows].astype(np.float64),
        "score": detections.score[rows].astype(np.float64),
    }
    masks: _Masks = None, None
    if iou_type == "segm" and detections.mask is not None:
        masks = ground_truth.rles, [detections.mask[row] for row in rows.tolist()]
    COCOeval, build_indexes = import_evaluation()
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(*build_indexes(ground_truth, annotation_columns, detection_columns, masks), iou_type)
        params = evaluation.params
        # The other area ranges and numbers of detections are not used and would take most of the time.
        params.areaRng, params.areaRngLbl, params.maxDets = [_AREA_RANGE_ALL], ["all"], [_MAX_DETECTIONS]
        evaluation.params = params  # hotcoco returns a copy
        evaluation.evaluate()
        evaluation.accumulate()
    return np.asarray(evaluation.eval["precision"], dtype=np.float64)


def _hotcoco_indexes(
    ground_truth: CocoSet, annotation_columns: _Columns, detection_columns: _Columns, masks: _Masks
) -> tuple[Any, Any]:
    """Return hotcoco's index of the annotations and that of the detections."""
    import hotcoco

    annotation_masks, detection_masks = masks
    image_id, category_id, box, crowd = annotation_columns.values()
    area = np.zeros(len(box))  # any area is in the range "all"
    index = hotcoco.COCO.from_arrays(
        *_images_and_categories(ground_truth),
        image_id,
        category_id,
        box,
        area=area,
        iscrowd=crowd,
        segmentation=annotation_masks,
    )
    image_id, category_id, box, score = detection_columns.values()
    table = np.column_stack([image_id, box, score, category_id])
    return index, index.load_res(table, segmentation=detection_masks)


def _pycocotools_indexes(
    ground_truth: CocoSet, annotation_columns: _Columns, detection_columns: _Columns, masks: _Masks
) -> tuple[Any, Any]:
    """Return pycocotools' index of the annotations and that of the detections."""
    images, categories = _images_and_categories(ground_truth)
    indexes = []
    for columns, segmentations in zip((annotation_columns, detection_columns), masks, strict=True):
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        entries: list[dict[str, Any]] = [dict(zip(columns, row, strict=True)) for row in rows]
        for number, entry in enumerate(entries):
            # Ids start at 1: pycocotools takes a match with id 0 for none.
            entry |= {"id": 1 + number, "area": 0.0, "segmentation": segmentations[number] if segmentations else None}
        index = import_pycocotools().coco.COCO()
        index.dataset = {"images": images, "categories": categories, "annotations": entries}
        index.createIndex()
        indexes.append(index)
    return indexes[0], indexes[1]


def _images_and_categories(ground_truth: CocoSet) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return images and categories as COCO's JSON has them."""
    images = zip(ground_truth.image_id.tolist(), ground_truth.height.tolist(), ground_truth.width.tolist(), strict=True)
    categories = zip(ground_truth.category_id.tolist(), ground_truth.category_name.tolist(), strict=True)
    return (
        [{"id": number, "height": height, "width": width} for number, height, width in images],
        [{"id": number, "name": name} for number, name in categories],
    )

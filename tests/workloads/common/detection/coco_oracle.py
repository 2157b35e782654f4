"""Random datasets and detections, and the numbers of pycocotools for them."""

import contextlib
import io
import json

import numpy as np
import pytest

from timetrial.datasets.formats import coco
from timetrial.workloads.common.detection.coco_evaluation import Detections

mask_api = pytest.importorskip("pycocotools.mask")


def random_dataset(folder, seed, crowded=False):
    """Write a random dataset; return its JSON path, the dataset and random detections.

    It has crowds, empty images, many equal scores, and shifted masks and boxes. `crowded` puts more than 100 detections
    of a category in an image.
    """
    generator = np.random.default_rng(seed)
    numbers = generator.choice(900, 6 if crowded else 25, replace=False) + 1
    categories = np.sort(generator.choice(90, 4, replace=False)) + 1
    annotations, rows, masks = [], [], []
    (folder / "a.jpg").touch()

    def add_detection(image, category, mask):
        box = mask_api.toBbox(encode(mask)) + generator.choice([0.0, 0.6]) * generator.normal(size=4)
        rows.append((image, category, round(generator.beta(3, 3), 1 if seed % 2 else 7), *np.maximum(box, 0.5)))
        masks.append(encode(mask))

    def random_mask():
        box = np.concatenate([generator.uniform(-5, 40, 2), generator.uniform(4, 30, 2)])
        return ellipse(box, 48, 64)

    for image in numbers.tolist():
        for _ in range(int(generator.integers(6)) if generator.random() < 0.8 else 0):
            if not (mask := random_mask()).any():
                continue
            category = int(generator.choice(categories[:-1]))  # the last category has no objects
            runs = np.flatnonzero(np.diff(np.concatenate([[0], mask.T.ravel(), [0]]).astype(int)))
            counts = np.diff(np.concatenate([[0], runs, [mask.size]])).tolist()
            annotations.append(
                {
                    "id": 1 + len(annotations), "image_id": image, "category_id": category, "area": float(mask.sum()),
                    "bbox": mask_api.toBbox(encode(mask)).tolist(), "iscrowd": int(len(annotations) % 7 == 2),
                    "segmentation": {"size": [48, 64], "counts": counts},
                }
            )  # fmt: skip
            for _ in range(int(generator.integers(4))):
                shift = generator.integers(-4, 5, 2) * int(generator.random() < 0.7)
                wrong_category = generator.random() < 0.15
                detected_category = generator.choice(categories) if wrong_category else category
                add_detection(image, detected_category, np.roll(mask, shift, (0, 1)))
        for _ in range(int(generator.integers(90, 130)) if crowded else 3):
            if (mask := random_mask()).any():
                add_detection(image, categories[0] if crowded else generator.choice(categories), mask)
    images = [{"id": number, "file_name": "a.jpg", "width": 64, "height": 48} for number in numbers.tolist()]
    category_entries = [{"id": number, "name": str(number)} for number in categories.tolist()]
    path = folder / f"{seed}.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": category_entries}))
    table = np.array(rows)
    detections = Detections(
        table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 3:].astype(np.float32),
        table[:, 2].astype(np.float32), masks,
    )  # fmt: skip
    return path, coco.read(path, folder, masks=True), select(detections, generator.permutation(len(detections)))


def encode(mask):
    return mask_api.encode(np.asfortranarray(mask.astype(np.uint8)))


def ellipse(box, height, width):
    """Return a mask that nearly fills a box (x, y, width, height) in an image of that size."""
    y, x = np.mgrid[:height, :width] + 0.5
    return np.hypot((x - box[0]) / box[2] - 0.5, (y - box[1]) / box[3] - 0.5) < 0.48


def select(detections, rows):
    masks = None if detections.mask is None else [detections.mask[row] for row in rows.tolist()]
    columns = (detections.image_id, detections.category_id, detections.box, detections.score)
    return Detections(*(column[rows] for column in columns), masks)


def pycocotools_stats(path, detections, iou_type, image_ids=None):
    """Return all numbers of pycocotools, called in the usual way with the JSON file."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    columns = zip(detections.image_id.tolist(), detections.category_id.tolist(), detections.score.tolist(), strict=True)
    results = [{"image_id": image, "category_id": category, "score": score} for image, category, score in columns]
    for number, result in enumerate(results):
        is_segm = iou_type == "segm"
        result |= {"segmentation": detections.mask[number]} if is_segm else {"bbox": detections.box[number].tolist()}
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(path))
        evaluation = COCOeval(truth, truth.loadRes(results), iou_type)
        if image_ids is not None:
            evaluation.params.imgIds = image_ids.tolist()
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats.tolist()

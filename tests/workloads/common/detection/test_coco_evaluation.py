"""COCO evaluation: known cases, and bit-equal to pycocotools reading the JSON file, with either library."""

import dataclasses
import importlib.util
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from timetrial.datasets.formats import coco
from timetrial.datasets.synthetic.detection import DetectionSpec, write_detection_dataset
from timetrial.runner.core.errors import ConfigurationError
from timetrial.workloads.common.detection.coco_evaluation import Detections, average_precision, concatenate

spec = importlib.util.spec_from_file_location("coco_oracle", Path(__file__).with_name("coco_oracle.py"))
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """Return (JSON path, dataset) of synthetic scenes with crowds and empty images, whose ids descend."""
    folder = tmp_path_factory.mktemp("scenes") / "scenes"
    write_detection_dataset(folder, DetectionSpec(num_train=60, num_val=1, num_classes=5))
    path = folder / "annotations/instances_train.json"
    instances = json.loads(path.read_text())
    instances["images"].reverse()
    instances["categories"].append({"id": 77, "name": "without objects", "supercategory": "shape"})
    for number, annotation in enumerate(instances["annotations"]):
        x, y, width, height = annotation["bbox"]
        margin = 0.01 * (number % 30)  # like COCO's boxes, the results are no float32 numbers
        box = (x + margin, y + margin, width - 2 * margin, height - 2 * margin)
        annotation["bbox"] = [round(value, 2) for value in box]
    path.write_text(json.dumps(instances))
    return path, coco.read(path, folder / "train", masks=True)


@pytest.fixture(scope="module")
def noisy(scenes):
    """Return two shifted boxes and masks of each object and random detections in each image; some scores are equal."""
    truth, generator = scenes[1], np.random.default_rng(3)
    rows = np.repeat(np.arange(len(truth.box)), 2)
    box = truth.box[rows].astype(np.float64)
    spread = generator.choice([0.0, 0.06, 0.2], len(rows))[:, None]
    box += spread * box[:, [2, 3, 2, 3]] * generator.normal(size=box.shape)
    image, category = truth.image[rows], truth.category[rows].copy()
    wrong = generator.random(len(rows)) < 0.15
    category[wrong] = generator.integers(len(truth.category_id), size=int(wrong.sum()))
    extra = np.repeat(np.arange(len(truth)), 9)
    image = np.concatenate([image, extra])
    category = np.concatenate([category, generator.integers(len(truth.category_id), size=len(extra))])
    box = np.concatenate([box, generator.uniform(1, 60, (len(extra), 4))])
    box[:, 2:] = np.maximum(box[:, 2:], 1)
    score = np.concatenate([generator.beta(4, 2, len(rows)), generator.beta(2, 4, len(extra))]).round(2)
    masks = [
        oracle.encode(np.roll(truth.mask(row), (spread * generator.normal(size=2) * 20).astype(int), (0, 1)))
        for row, spread in zip(rows.tolist(), spread.tolist(), strict=True)
    ]
    sizes = np.stack([truth.height, truth.width], 1)[extra].tolist()
    masks += [
        oracle.encode(oracle.ellipse(box_row, *size))
        for box_row, size in zip(box[len(rows) :].tolist(), sizes, strict=True)
    ]
    detections = Detections(
        truth.image_id[image], truth.category_id[category], box.astype(np.float32), score.astype(np.float32), masks
    )
    return oracle.select(detections, generator.permutation(len(detections)))


@pytest.fixture(params=["hotcoco", "pycocotools"])
def library(request, monkeypatch):
    """Run the test with each library; pycocotools is used if hotcoco is not installed."""
    if request.param == "hotcoco":
        pytest.importorskip("hotcoco")
    else:
        monkeypatch.setitem(sys.modules, "hotcoco", None)


def no_detections():
    return Detections.empty(masks=True)


def perfect(truth, kept=slice(None)):
    """Return the objects of a dataset as detections."""
    return Detections(
        truth.image_id[truth.image][kept],
        truth.category_id[truth.category][kept],
        truth.box[kept],
        np.linspace(0.9, 0.5, len(truth.box), dtype=np.float32)[kept],
        [truth.rle(number) for number in np.arange(len(truth.box))[kept].tolist()],
    )


@pytest.mark.parametrize("iou_type", ["bbox", "segm"])
def test_perfect_detections_score_one(scenes, library, iou_type, capfd):
    truth = scenes[1]
    assert truth.crowd.any()
    assert (np.diff(truth.first) == 0).any()
    assert average_precision(truth, perfect(truth), iou_type) == {"AP": 1.0, "AP50": 1.0}
    assert average_precision(truth, perfect(truth, ~truth.crowd), iou_type) == {"AP": 1.0, "AP50": 1.0}
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("iou_type", ["bbox", "segm"])
def test_equals_pycocotools(scenes, noisy, library, iou_type):
    path, truth = scenes
    assert np.bincount(noisy.category_id).max() > 150
    expected = oracle.pycocotools_stats(path, noisy, iou_type)
    assert 0.1 < expected[0] < 0.6
    assert expected[1] > expected[0] + 0.1
    assert list(average_precision(truth, noisy, iou_type).values()) == expected[:2]
    image_ids = np.sort(truth.image_id)[5:40:3]
    expected = oracle.pycocotools_stats(path, noisy, iou_type, image_ids)
    assert list(average_precision(truth, noisy, iou_type, image_ids=image_ids).values()) == expected[:2]


@pytest.mark.parametrize("iou_type", ["bbox", "segm"])
@pytest.mark.parametrize("seed", range(6))
def test_random_datasets_equal_pycocotools(tmp_path, library, iou_type, seed):
    path, truth, detections = oracle.random_dataset(tmp_path, seed, crowded=seed >= 4)
    assert truth.crowd.any()
    assert (np.diff(truth.first) == 0).any() or seed >= 4
    assert (
        list(average_precision(truth, detections, iou_type).values())
        == oracle.pycocotools_stats(path, detections, iou_type)[:2]
    )


def test_uses_the_boxes_of_the_file_in_double_precision(tiny, library):
    """The object is 20.4 wide and the detection slightly less than 10.2; in float32 their IoU would be 0.5."""
    path = Path(tiny.annotations)
    instances = json.loads(path.read_text())
    instances["annotations"][2]["bbox"] = [30, 30, 20.4, 10]
    path.write_text(json.dumps(instances))
    detections = hand_made((3, 9, 0.9, 30, 30, 10.2, 10))
    expected = oracle.pycocotools_stats(path, detections, "bbox")[:2]
    assert list(average_precision(coco.read(path, path.parent, masks=True), detections, "bbox").values()) == expected
    assert expected == [0.0, 0.0]


@pytest.mark.parametrize("iou_type", ["bbox", "segm"])
def test_does_not_depend_on_the_order_of_images(scenes, noisy, library, iou_type):
    truth = scenes[1]
    generator = np.random.default_rng(8)
    position = generator.permutation(truth.image_id.max() + 1)
    reordered = oracle.select(noisy, np.argsort(position[noisy.image_id], kind="stable"))
    assert (reordered.image_id != noisy.image_id).any()
    expected = average_precision(truth, noisy, iou_type)
    assert average_precision(truth, reordered, iou_type) == expected
    assert average_precision(truth.select(generator.permutation(len(truth))), reordered, iou_type) == expected


@pytest.fixture
def tiny(tmp_path):
    """Return two images with two objects of category 4, one of 9, a crowd of 4 and no object of category 5."""

    def square(x, y, side):
        return [[x, y, x + side, y, x + side, y + side, x, y + side]]

    def annotation(number, image, category, x, y, side, **changes):
        entry = {"id": number, "image_id": image, "category_id": category, "bbox": [x, y, side, side], "iscrowd": 0}
        return entry | {"area": side * side, "segmentation": square(x, y, side)} | changes

    (tmp_path / "a.jpg").touch()
    instances = {
        "images": [{"id": number, "file_name": "a.jpg", "width": 60, "height": 50} for number in (8, 3)],
        "annotations": [
            annotation(0, 8, 4, 2, 2, 10),  # pycocotools takes a match with id 0 for none
            annotation(1, 3, 4, 20, 20, 10),
            annotation(2, 3, 9, 40, 30, 10),
            annotation(
                3, 3, 4, 0, 0, 20, iscrowd=1, segmentation={"size": [50, 60], "counts": [0, *[20, 30] * 19, 20, 2030]}
            ),
        ],
        "categories": [{"id": number, "name": str(number)} for number in (4, 5, 9)],
    }
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(instances))
    return coco.read(path, tmp_path, masks=True)


def hand_made(*rows):
    """Return detections of rows (image, category, score, x, y, width, height); their masks are their boxes."""
    table = np.array(rows, np.float64)
    masks = []
    for x, y, width, height in table[:, 3:].astype(int).tolist():
        mask = np.zeros((50, 60))
        mask[y : y + height, x : x + width] = 1
        masks.append(oracle.encode(mask))
    image_id, category_id = table[:, :2].T.astype(np.int64)
    return Detections(image_id, category_id, table[:, 3:].astype(np.float32), table[:, 2].astype(np.float32), masks)


@pytest.mark.parametrize("iou_type", ["bbox", "segm"])
def test_known_case(tiny, library, iou_type):
    detections = hand_made(
        (8, 4, 0.9, 2, 2, 10, 10),
        (3, 4, 0.8, 40, 2, 10, 10),  # wrong
        (3, 4, 0.7, 20, 20, 10, 10),
        (3, 4, 0.95, 5, 5, 10, 10),  # in the crowd: ignored
        (3, 4, 0.94, 2, 8, 10, 10),  # ignored as well
        (8, 5, 0.99, 2, 2, 10, 10),  # a category without objects
        (3, 9, 0.6, 40, 30, 10, 7),  # IoU 0.7: matches at 5 of 10 thresholds
    )
    category_4 = (51 * 1 + 50 * 2 / 3) / 101  # precision is 1 up to a recall of 0.5, then 2 / 3
    expected = {"AP": (category_4 + 0.5) / 2, "AP50": (category_4 + 1) / 2}
    assert average_precision(tiny, detections, iou_type) == pytest.approx(expected)
    one_image = average_precision(tiny, detections, iou_type, image_ids=np.array([3]))
    assert one_image["AP50"] == pytest.approx((0.5 + 1) / 2)


@pytest.mark.parametrize("iou_type", ["bbox", "segm"])
def test_no_detections_score_zero(tiny, library, iou_type):
    assert average_precision(tiny, no_detections(), iou_type) == {"AP": 0.0, "AP50": 0.0}


def test_uses_the_best_hundred_detections_of_an_image_and_category(tiny, library):
    wrong = [(8, 4, 0.9, 30, 30, 5, 5)] * 99
    right = [(8, 4, 0.5, 2, 2, 10, 10), (3, 4, 0.4, 20, 20, 10, 10), (3, 9, 0.9, 40, 30, 10, 10)]
    hundred = average_precision(tiny, hand_made(*wrong, *right), "bbox")
    assert hundred["AP50"] == pytest.approx((2 / 101 + 1) / 2, abs=1e-3)
    more = average_precision(tiny, hand_made(*wrong, wrong[0], *right), "bbox")
    assert more["AP50"] == pytest.approx((51 * 1 / 101 / 101 + 1) / 2)


def test_rejects_detections_that_cannot_be_evaluated(tiny, library, scenes):
    with pytest.raises(ValueError, match=r"Image 4 is not in .*instances\.json"):
        average_precision(tiny, hand_made((8, 4, 0.9, 2, 2, 9, 9), (4, 4, 0.9, 2, 2, 9, 9)), "bbox")
    with pytest.raises(ValueError, match=r"Category 6 is not in .*instances\.json"):
        average_precision(tiny, hand_made((8, 6, 0.9, 2, 2, 9, 9)), "bbox")
    with pytest.raises(ValueError, match="Image 5 is not in"):
        average_precision(tiny, no_detections(), "bbox", image_ids=np.array([3, 5]))
    with pytest.raises(ValueError, match="no masks to evaluate: give one RLE per detection"):
        average_precision(tiny, dataclasses.replace(no_detections(), mask=None), "segm")
    for image_ids in (np.empty(0, np.int64), scenes[1].image_id[np.diff(scenes[1].first) == 0]):
        with pytest.raises(ValueError, match="has no single object in these images"):
            average_precision(scenes[1], no_detections(), "bbox", image_ids=image_ids)
    with pytest.raises(ValueError, match="equal numbers of image ids, category ids"):
        dataclasses.replace(no_detections(), mask=[{}])


def test_concatenates_parts(noisy):
    parts = [oracle.select(noisy, rows) for rows in np.split(np.arange(len(noisy)), [30, 30, 100])]
    whole = concatenate(pickle.loads(pickle.dumps(parts)))
    for field in dataclasses.fields(Detections):
        np.testing.assert_array_equal(getattr(whole, field.name), getattr(noisy, field.name))
        assert np.asarray(getattr(whole, field.name)).dtype == np.asarray(getattr(noisy, field.name)).dtype
    assert concatenate([dataclasses.replace(parts[0], mask=None), parts[1]]).mask is None
    assert concatenate([no_detections(), no_detections()]).mask == []


def test_reports_missing_libraries(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "hotcoco", None)
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    with pytest.raises(ConfigurationError, match="pip install pycocotools"):
        average_precision(tiny, no_detections(), "bbox")

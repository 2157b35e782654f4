"""COCO's scores: known cases, and pycocotools from a file."""

import contextlib
import dataclasses
import io
import json
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from timetrial.datasets.formats import coco
from timetrial.datasets.synthetic.detection import Scenes, write_scenes
from timetrial.runner.core.errors import ConfigurationError
from timetrial.workloads.common.detection import coco_evaluation
from timetrial.workloads.common.detection.coco_evaluation import Detections, average_precision, join, processes

mask_api = pytest.importorskip("pycocotools.mask")


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """(json, set) of generated scenes with crowds and empty images, whose ids fall from image to image."""
    folder = tmp_path_factory.mktemp("scenes") / "scenes"
    write_scenes(folder, Scenes(train=60, val=1, classes=5))
    path = folder / "annotations/instances_train.json"
    found = json.loads(path.read_text())
    found["images"].reverse()
    found["categories"].append({"id": 77, "name": "without objects", "supercategory": "shape"})
    for number, annotation in enumerate(found["annotations"]):
        x, y, width, height = annotation["bbox"]
        by = 0.01 * (number % 30)  # as COCO's boxes, these are no float32 numbers
        annotation["bbox"] = [round(side, 2) for side in (x + by, y + by, width - 2 * by, height - 2 * by)]
    path.write_text(json.dumps(found))
    return path, coco.read(path, folder / "train", masks=True)


@pytest.fixture(scope="module")
def noisy(scenes):
    """Of each object twice a shifted box and mask, and of each image some nonsense; some scores are equal."""
    truth, generator = scenes[1], np.random.default_rng(3)
    rows = np.repeat(np.arange(len(truth.box)), 2)
    box = truth.box[rows].astype(np.float64)
    spread = generator.choice([0.0, 0.06, 0.2], len(rows))[:, None]
    box += spread * box[:, [2, 3, 2, 3]] * generator.normal(size=box.shape)
    image, category = truth.image[rows], truth.category[rows].copy()
    wrong = generator.random(len(rows)) < 0.15
    category[wrong] = generator.integers(len(truth.category_id), size=int(wrong.sum()))
    more = np.repeat(np.arange(len(truth)), 9)
    image = np.concatenate([image, more])
    category = np.concatenate([category, generator.integers(len(truth.category_id), size=len(more))])
    box = np.concatenate([box, generator.uniform(1, 60, (len(more), 4))])
    box[:, 2:] = np.maximum(box[:, 2:], 1)
    score = np.concatenate([generator.beta(4, 2, len(rows)), generator.beta(2, 4, len(more))]).round(2)
    masks = [
        packed(np.roll(truth.mask(row), (spread * generator.normal(size=2) * 20).astype(int), (0, 1)))
        for row, spread in zip(rows.tolist(), spread.tolist(), strict=True)
    ]
    sizes = np.stack([truth.height, truth.width], 1)[more].tolist()
    masks += [packed(ellipse(one, *size)) for one, size in zip(box[len(rows) :].tolist(), sizes, strict=True)]
    found = Detections(
        truth.image_id[image], truth.category_id[category], box.astype(np.float32), score.astype(np.float32), masks
    )
    return pick(found, generator.permutation(len(found)))


@pytest.fixture(scope="module")
def pool():
    with processes(2) as made:
        yield made


def packed(mask):
    return mask_api.encode(np.asfortranarray(mask.astype(np.uint8)))


def ellipse(box, height, width):
    """A mask of what nearly fills a box of x, y, width, height, in an image of that size."""
    y, x = np.mgrid[:height, :width] + 0.5
    return np.hypot((x - box[0]) / box[2] - 0.5, (y - box[1]) / box[3] - 0.5) < 0.48


def pick(found, rows):
    masks = None if found.mask is None else [found.mask[row] for row in rows.tolist()]
    return Detections(found.image[rows], found.category[rows], found.box[rows], found.score[rows], masks)


def nothing():
    none = np.empty(0, np.int64)
    return Detections(none, none, np.empty((0, 4), np.float32), np.empty(0, np.float32), [])


def perfect(truth, kept=slice(None)):
    """The objects of a set themselves."""
    return Detections(
        truth.image_id[truth.image][kept],
        truth.category_id[truth.category][kept],
        truth.box[kept],
        np.linspace(0.9, 0.5, len(truth.box), dtype=np.float32)[kept],
        [truth.packed_mask(number) for number in np.arange(len(truth.box))[kept].tolist()],
    )


def official(path, found, kind, images=None):
    """pycocotools as everybody calls it, from the file: all its numbers."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    columns = zip(found.image.tolist(), found.category.tolist(), found.score.tolist(), strict=True)
    results = [{"image_id": image, "category_id": category, "score": score} for image, category, score in columns]
    for number, result in enumerate(results):
        result |= {"segmentation": found.mask[number]} if kind == "segm" else {"bbox": found.box[number].tolist()}
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(path))
        evaluation = COCOeval(truth, truth.loadRes(results), kind)
        if images is not None:
            evaluation.params.imgIds = images.tolist()
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats.tolist()


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_the_objects_themselves_score_one(scenes, kind, capsys):
    truth = scenes[1]
    assert truth.crowd.any()
    assert (np.diff(truth.first) == 0).any()
    assert average_precision(truth, perfect(truth), kind) == {"AP": 1.0, "AP50": 1.0}
    assert average_precision(truth, perfect(truth, ~truth.crowd), kind) == {"AP": 1.0, "AP50": 1.0}
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_it_scores_as_pycocotools_does(scenes, noisy, kind):
    path, truth = scenes
    expected = official(path, noisy, kind)
    assert 0.1 < expected[0] < 0.6
    assert expected[1] > expected[0] + 0.1
    made = average_precision(truth, noisy, kind)
    assert list(made.values()) == pytest.approx(expected[:2], abs=1e-12)
    some = np.sort(truth.image_id)[5:40:3]
    expected = official(path, noisy, kind, some)
    assert list(average_precision(truth, noisy, kind, images=some).values()) == pytest.approx(expected[:2], abs=1e-12)


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_shares_and_processes_change_nothing(scenes, noisy, pool, kind, monkeypatch):
    expected = average_precision(scenes[1], noisy, kind)
    assert average_precision(scenes[1], noisy, kind, pool=pool) == expected
    monkeypatch.setattr(coco_evaluation, "_SHARES", 1)
    assert np.bincount(noisy.category).max() > 150  # more than count of an image and category
    assert average_precision(scenes[1], noisy, kind) == expected


def test_boxes_overlap_as_in_the_file(tiny):
    """The object is 20.4 wide and the detection a bit less than 10.2; in float32 they would overlap by a half."""
    path = Path(tiny.annotations)
    written = json.loads(path.read_text())
    written["annotations"][2]["bbox"] = [30, 30, 20.4, 10]
    path.write_text(json.dumps(written))
    found = hand_made((3, 9, 0.9, 30, 30, 10.2, 10))
    expected = official(path, found, "bbox")[:2]
    assert list(average_precision(coco.read(path, path.parent, masks=True), found, "bbox").values()) == expected
    assert expected == [0.0, 0.0]


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_the_order_of_images_does_not_matter(scenes, noisy, kind):
    truth = scenes[1]
    generator = np.random.default_rng(8)
    turn = generator.permutation(truth.image_id.max() + 1)
    other = pick(noisy, np.argsort(turn[noisy.image], kind="stable"))
    assert (other.image != noisy.image).any()
    expected = average_precision(truth, noisy, kind)
    assert average_precision(truth, other, kind) == expected
    assert average_precision(truth.select(generator.permutation(len(truth))), other, kind) == expected


@pytest.fixture
def tiny(tmp_path):
    """Two images, two objects of category 4 and one of 9, a crowd of category 4 beside them, and category 5 nowhere."""

    def square(x, y, side):
        return [[x, y, x + side, y, x + side, y + side, x, y + side]]

    def entry(number, image, category, x, y, side, **changed):
        made = {"id": number, "image_id": image, "category_id": category, "bbox": [x, y, side, side], "iscrowd": 0}
        return made | {"area": side * side, "segmentation": square(x, y, side)} | changed

    (tmp_path / "a.jpg").touch()
    found = {
        "images": [{"id": number, "file_name": "a.jpg", "width": 60, "height": 50} for number in (8, 3)],
        "annotations": [
            entry(0, 8, 4, 2, 2, 10),  # to pycocotools a match with the id 0 is none
            entry(1, 3, 4, 20, 20, 10),
            entry(2, 3, 9, 40, 30, 10),
            entry(
                3, 3, 4, 0, 0, 20, iscrowd=1, segmentation={"size": [50, 60], "counts": [0, *[20, 30] * 19, 20, 2030]}
            ),
        ],
        "categories": [{"id": number, "name": str(number)} for number in (4, 5, 9)],
    }
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(found))
    return coco.read(path, tmp_path, masks=True)


def hand_made(*rows):
    """Detections of (image, category, score, x, y, width, height); their masks are their boxes."""
    table = np.array(rows, np.float64)
    masks = []
    for x, y, width, height in table[:, 3:].astype(int).tolist():
        mask = np.zeros((50, 60))
        mask[y : y + height, x : x + width] = 1
        masks.append(packed(mask))
    image, category = table[:, :2].T.astype(np.int64)
    return Detections(image, category, table[:, 3:].astype(np.float32), table[:, 2].astype(np.float32), masks)


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_a_known_case(tiny, kind):
    found = hand_made(
        (8, 4, 0.9, 2, 2, 10, 10),
        (3, 4, 0.8, 40, 2, 10, 10),  # wrong
        (3, 4, 0.7, 20, 20, 10, 10),
        (3, 4, 0.95, 5, 5, 10, 10),  # in the crowd: neither right nor wrong
        (3, 4, 0.94, 2, 8, 10, 10),  # so is another
        (8, 5, 0.99, 2, 2, 10, 10),  # of this category there is nothing to find
        (3, 9, 0.6, 40, 30, 10, 7),  # overlaps by 0.7, which 5 of 10 thresholds allow
    )
    four = (51 * 1 + 50 * 2 / 3) / 101  # up to a recall of a half the precision is 1, then 2 of 3
    expected = {"AP": (four + 0.5) / 2, "AP50": (four + 1) / 2}
    assert average_precision(tiny, found, kind) == pytest.approx(expected)
    only = average_precision(tiny, found, kind, images=np.array([3]))
    assert only["AP50"] == pytest.approx((0.5 + 1) / 2)


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_finding_nothing_scores_nothing(tiny, kind):
    assert average_precision(tiny, nothing(), kind) == {"AP": 0.0, "AP50": 0.0}


def test_a_hundred_of_an_image_and_category_count(tiny):
    wrong = [(8, 4, 0.9, 30, 30, 5, 5)] * 99
    right = [(8, 4, 0.5, 2, 2, 10, 10), (3, 4, 0.4, 20, 20, 10, 10), (3, 9, 0.9, 40, 30, 10, 10)]
    some = average_precision(tiny, hand_made(*wrong, *right), "bbox")
    assert some["AP50"] == pytest.approx((2 / 101 + 1) / 2, abs=1e-3)
    more = average_precision(tiny, hand_made(*wrong, wrong[0], *right), "bbox")
    assert more["AP50"] == pytest.approx((51 * 1 / 101 / 101 + 1) / 2)


def test_what_cannot_be_scored_is_said(tiny, scenes):
    with pytest.raises(ValueError, match=r"Image 4 is not in .*instances\.json"):
        average_precision(tiny, hand_made((8, 4, 0.9, 2, 2, 9, 9), (4, 4, 0.9, 2, 2, 9, 9)), "bbox")
    with pytest.raises(ValueError, match=r"Category 6 is not in .*instances\.json"):
        average_precision(tiny, hand_made((8, 6, 0.9, 2, 2, 9, 9)), "bbox")
    with pytest.raises(ValueError, match="Image 5 is not in"):
        average_precision(tiny, nothing(), "bbox", images=np.array([3, 5]))
    with pytest.raises(ValueError, match="no masks to score: give a packed mask of each"):
        average_precision(tiny, dataclasses.replace(nothing(), mask=None), "segm")
    for images in (np.empty(0, np.int64), scenes[1].image_id[np.diff(scenes[1].first) == 0]):
        with pytest.raises(ValueError, match="has no single object in these images"):
            average_precision(scenes[1], nothing(), "bbox", images=images)
    with pytest.raises(ValueError, match="as many images, categories"):
        dataclasses.replace(nothing(), mask=[{}])


def test_parts_are_joined(noisy):
    parts = [pick(noisy, rows) for rows in np.split(np.arange(len(noisy)), [30, 30, 100])]
    whole = join(pickle.loads(pickle.dumps(parts)))
    for field in dataclasses.fields(Detections):
        np.testing.assert_array_equal(getattr(whole, field.name), getattr(noisy, field.name))
        assert np.asarray(getattr(whole, field.name)).dtype == np.asarray(getattr(noisy, field.name)).dtype
    assert join([dataclasses.replace(parts[0], mask=None), parts[1]]).mask is None
    assert join([nothing(), nothing()]).mask == []


def test_processes_end_with_a_killed_parent():
    program = (
        "if __name__ == '__main__':\n"
        "    import os, time\n"
        "    from timetrial.workloads.common.detection.coco_evaluation import processes\n"
        "    pool = processes(2)\n"
        "    print(*{pool.submit(os.getpid).result() for _ in range(9)}, flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-P", "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout
            workers = [psutil.Process(int(word)) for word in parent.stdout.readline().split()]
            assert workers
            for worker in workers:
                worker.terminate()  # that is for the parent to heed
            time.sleep(0.2)
            assert all(alive(worker) for worker in workers)
            children = psutil.Process(parent.pid).children(recursive=True)
            assert {worker.pid for worker in workers} < {child.pid for child in children}
        finally:
            parent.kill()
    until = time.monotonic() + 10
    while any(alive(child) for child in children):
        assert time.monotonic() < until
        time.sleep(0.05)


def alive(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def test_scores_without_pycocotools_say_so(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    with pytest.raises(ConfigurationError, match="pip install pycocotools"):
        average_precision(tiny, nothing(), "bbox")

"""COCO format: equal to pycocotools on synthetic scenes, selections, images and prepared files."""

import json
import pickle
import shutil

import numpy as np
import pytest
from PIL import Image

from timetrial.datasets.formats import coco
from timetrial.runner.core.errors import ConfigurationError, DataError

pytest.importorskip("pycocotools.mask")
# raised by pycocotools' own `decode` with NumPy 2
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def assert_equal(one, other):
    for name in one.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
        assert np.asarray(getattr(one, name)).dtype == np.asarray(getattr(other, name)).dtype


def test_arrays_equal_pycocotools(coco_scenes, read_official):
    found, official = coco.read(*coco_scenes, masks=True), read_official(coco_scenes[0])
    assert found.image_id.tolist() == [entry["id"] for entry in official.dataset["images"]]
    assert found.category_id.tolist() == sorted(official.getCatIds()) == [1, 2, 3, 5, 6]
    assert found.category_name.tolist() == [official.cats[number]["name"] for number in found.category_id]
    assert len(found.box) == len(official.anns)
    for index, number in enumerate(found.image_id.tolist()):
        entry, annotations = official.imgs[number], official.loadAnns(official.getAnnIds(number))
        assert found.path(index) == coco_scenes[1] / entry["file_name"]
        assert (found.height[index], found.width[index]) == (entry["height"], entry["width"])
        assert found.boxes(index).tolist() == [one["bbox"] for one in annotations]
        assert found.category_id[found.categories(index)].tolist() == [one["category_id"] for one in annotations]
        assert found.annotation_id[found.annotations_of(index)].tolist() == [one["id"] for one in annotations]
        assert found.area[found.annotations_of(index)].tolist() == [one["area"] for one in annotations]
        assert found.crowd[found.annotations_of(index)].tolist() == [one["iscrowd"] == 1 for one in annotations]
        assert (found.image[found.annotations_of(index)] == index).all()
        polygons = [[part.ravel().tolist() for part in parts] for parts in found.polygons(index)]
        assert polygons == [[] if one["iscrowd"] else one["segmentation"] for one in annotations]


def test_types_and_shapes(coco_scenes):
    found = coco.read(*coco_scenes, masks=True)
    whole = {"image_id", "first", "annotation_id", "category_id", "outline", "corner", "run"}
    assert {getattr(found, name).dtype for name in whole} == {np.dtype(np.int64)}
    assert {found.box.dtype, found.corners.dtype} == {np.dtype(np.float32)}
    assert {found.image.dtype, found.category.dtype, found.height.dtype} == {np.dtype(np.int32)}
    assert (found.runs.dtype, found.crowd.dtype, found.area.dtype) == (np.uint32, bool, np.float64)
    assert len(found) == 48
    assert_equal(pickle.loads(pickle.dumps(found)), found)


def test_accepts_byte_order_mark_and_folders_in_names(tiny_coco):
    path, folder, found = tiny_coco.path, tiny_coco.folder, tiny_coco.found
    (folder / "sub").mkdir()
    (folder / "a.jpg").rename(folder / "sub/a.jpg")
    found["images"][0]["file_name"] = "sub/a.jpg"
    path.write_text(json.dumps(found), encoding="utf-8-sig")
    assert coco.read(path, folder, masks=True).path(0) == folder / "sub/a.jpg"


def test_segmentations_are_ignored_without_masks(tiny_coco):
    tiny_coco.found["annotations"][0]["segmentation"] = "whatever"
    found = tiny_coco.read(masks=False)
    assert not found.corners.size
    assert not found.runs.size
    assert found.polygons(0) == [[], []]
    with pytest.raises(
        DataError, match="annotation 12 has no mask: add its segmentation, or read the dataset with masks"
    ):
        found.mask(0)


def test_accepts_images_and_datasets_without_annotations(tiny_coco):
    tiny_coco.found["annotations"] = tiny_coco.found["annotations"][1:]
    assert [len(tiny_coco.read().boxes(index)) for index in range(2)] == [2, 0]
    tiny_coco.found["annotations"] = []
    found = tiny_coco.read()
    assert [len(found.boxes(index)) for index in range(2)] == [0, 0]
    assert found.box.shape == (0, 4)
    assert len(found.with_boxes()) == 0
    assert tiny_coco.check() == []


def test_selections_are_consistent(coco_scenes):
    found = coco.read(*coco_scenes, masks=True)
    boxed, single = found.with_boxes(), found.without_crowd()
    empty = {int(found.image_id[index]) for index in range(len(found)) if not len(found.boxes(index))}
    assert len(empty) == 2
    assert set(found.image_id.tolist()) - set(boxed.image_id.tolist()) == empty
    assert len(single) == len(found)
    assert len(single.box) == len(found.box) - found.crowd.sum()
    assert not single.crowd.any()
    for index in range(len(boxed)):
        old = int(np.flatnonzero(found.image_id == boxed.image_id[index])[0])
        assert (boxed.boxes(index) == found.boxes(old)).all()
        assert (boxed.image[boxed.annotations_of(index)] == index).all()
        kept = ~found.crowd[found.annotations_of(old)]
        assert (
            single.annotation_id[single.annotations_of(old)] == found.annotation_id[found.annotations_of(old)][kept]
        ).all()
    last = len(boxed.box) - 1
    assert (boxed.mask(last) == found.mask(len(found.box) - 1)).all()
    assert boxed.corners is found.corners


def test_select_reorders_and_repeats_images(tiny_coco):
    found = tiny_coco.read()
    twice = found.select(np.array([1, 0, 1]))
    assert twice.image_id.tolist() == [3, 7, 3]
    assert twice.first.tolist() == [0, 1, 3, 4]
    assert twice.annotation_id.tolist() == [11, 12, 13, 11]
    assert twice.image.tolist() == [0, 1, 1, 2]
    assert_equal(found.select(np.arange(2)), found)


def test_minimum_side_of_boxes(tiny_coco):
    tiny_coco.found["annotations"][0]["bbox"] = [2, 3, 1, 12]
    found = tiny_coco.read()
    assert found.with_boxes().image_id.tolist() == [7, 3]
    assert found.with_boxes(1).image_id.tolist() == [7]
    only_crowd = found.select(np.array([0])).without_crowd()
    assert only_crowd.annotation_id.tolist() == [12]


def test_is_wide(tiny_coco):
    tiny_coco.found["images"].append(tiny_coco.image(9, "a.jpg", 30, 30))
    assert tiny_coco.read().is_wide().tolist() == [True, False, False]


def test_boxes_are_clipped_by_up_to_a_pixel(tiny_coco):
    tiny_coco.found["annotations"][1]["bbox"] = [-0.5, 10.25, 40.75, 20.75]
    found = tiny_coco.read()
    assert found.boxes(0)[0].tolist() == [0, 10.25, 40, 19.75]
    assert tiny_coco.check() == []


def test_boxes_inside_the_image_are_unchanged(tiny_coco):
    tiny_coco.found["annotations"][1]["bbox"] = [0.1, 0.2, 39.7, 29.3]
    assert tiny_coco.read().boxes(0)[0].tolist() == np.array([0.1, 0.2, 39.7, 29.3], np.float32).tolist()


@pytest.mark.parametrize("box", [[5, 5, 0, 10], [5, 5, 10, 0.0], [40, 5, 0.5, 5], [-0.5, 3, 0.5, 4]])
def test_boxes_without_area_are_dropped_and_counted(tiny_coco, box):
    tiny_coco.found["annotations"][1]["bbox"] = box
    found = tiny_coco.read()
    assert (found.dropped, found.annotation_id.tolist()) == (1, [13, 11])
    assert found.mask(0).sum() == 500
    assert found.mended.tolist() == ["boxes without area, left out of training: 1"]
    (sentence,) = tiny_coco.check()
    assert "annotation 12 has a box without area (" in sentence
    with pytest.raises(DataError, match="annotation 12 has a box without area"):
        tiny_coco.read(drop_empty=False)


def test_names_missing_files(tiny_coco, tmp_path):
    tiny_coco.read()
    path, folder = tiny_coco.path, tiny_coco.folder
    with pytest.raises(DataError, match=r"nowhere\.json cannot be read \(No such file or directory\): put COCO's"):
        coco.read(tmp_path / "nowhere.json", folder, masks=True)
    with pytest.raises(DataError, match=r"nowhere\.json cannot be read"):
        coco.prepare(tmp_path / "nowhere.json", folder, tmp_path / "prepared", masks=True)
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(DataError, match="is not text from byte 0 on: it is damaged"):
        coco.read(path, folder, masks=True)
    shutil.rmtree(folder)
    (sentence,) = tiny_coco.check()
    assert sentence.startswith(f"{folder} is missing: put the images of")


def test_names_missing_pycocotools(tiny_coco, monkeypatch):
    found = tiny_coco.read()
    monkeypatch.setitem(__import__("sys").modules, "pycocotools", None)
    with pytest.raises(ConfigurationError, match="pip install pycocotools"):
        found.mask(0)


def test_checks_image_files(tiny_coco):
    path, folder, entries = tiny_coco.path, tiny_coco.folder, tiny_coco.found
    for name in ("c.jpg", "d.jpg", "e.jpg", "f.jpg"):
        Image.effect_noise((40, 30), 90).save(folder / name)
    complete = (folder / "c.jpg").read_bytes()
    (folder / "c.jpg").write_bytes(complete[: len(complete) // 2])
    (folder / "d.jpg").write_bytes(b"no image")
    (folder / "e.jpg").write_bytes(complete + b"\0" * 500)  # complete, with trailing bytes
    entries["images"] += [tiny_coco.image(20 + n, f"{name}.jpg", 40, 30) for n, name in enumerate("cdef")]
    entries["images"][1].update(width=40, height=30)
    assert tiny_coco.check() == []
    found = tiny_coco.read()
    (folder / "f.jpg").unlink()
    broken = "cannot be decoded: it is truncated or not an image; replace or remove it."
    assert coco.check_images(found) == [
        f"{folder}/b.png is 30x40 pixels, not 40x30 as {path} says of image 3: replace the image or correct the JSON.",
        *(f"{folder}/{name}.jpg {broken}" for name in "cdf"),
    ]


@pytest.mark.parametrize("masks", [True, False])
def test_prepared_file_is_reused_until_the_json_changes(tiny_coco, tmp_path, masks):
    path, folder, entries = tiny_coco.path, tiny_coco.folder, tiny_coco.found
    found = tiny_coco.read(masks=masks)
    prepared = coco.prepare(path, folder, tmp_path / "prepared", masks=masks)
    stamp = prepared.stat().st_mtime_ns
    assert coco.prepare(path, folder, tmp_path / "prepared", masks=masks) == prepared
    assert prepared.stat().st_mtime_ns == stamp
    assert_equal(coco.load_prepared(prepared), found)
    assert coco.load_prepared(prepared).folder == str(folder)
    entries["annotations"].pop()
    path.write_text(json.dumps(entries))
    assert len(coco.load_prepared(coco.prepare(path, folder, tmp_path / "prepared", masks=masks)).box) == 2
    coco.prepare(path, folder, tmp_path / "prepared", masks=not masks)
    assert len(list((tmp_path / "prepared").iterdir())) == 3


def test_rejected_json_leaves_no_prepared_file(tiny_coco, tmp_path):
    path, folder, found = tiny_coco.path, tiny_coco.folder, tiny_coco.found
    found["annotations"][0]["image_id"] = 5
    path.write_text(json.dumps(found))
    with pytest.raises(DataError):
        coco.prepare(path, folder, tmp_path / "prepared", masks=True)
    assert not (tmp_path / "prepared").exists()


def test_reports_unwritable_folder(tiny_coco, tmp_path):
    tiny_coco.read()
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"Cannot write .*npz.*name another place"):
        coco.prepare(tiny_coco.path, tiny_coco.folder, tmp_path / "file/prepared", masks=True)


@pytest.mark.parametrize("damage", [lambda data: data[:300], lambda _: b"", lambda _: b"no archive"])
def test_names_damaged_prepared_file(tiny_coco, tmp_path, damage):
    tiny_coco.read()
    prepared = coco.prepare(tiny_coco.path, tiny_coco.folder, tmp_path / "prepared", masks=True)
    prepared.write_bytes(damage(prepared.read_bytes()))
    with pytest.raises(DataError, match="remove it, and it is created again"):
        coco.load_prepared(prepared)

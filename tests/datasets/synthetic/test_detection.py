"""Synthetic detection datasets are reproducible, complete, and annotated exactly to the pixel."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from timetrial.datasets.synthetic import detection
from timetrial.datasets.synthetic.detection import DetectionSpec, SceneObject, mask_to_polygons, write_detection_dataset
from timetrial.datasets.synthetic.spec_digest import path_with_digest
from timetrial.runner.core.errors import DataError

mask_api = pytest.importorskip("pycocotools.mask")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # pycocotools and NumPy 2

SMALL = DetectionSpec(num_train=3, num_val=2, width_range=(48, 64), height_range=(48, 64))


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Return a dataset with all kinds of images and the content of its training JSON."""
    folder = tmp_path_factory.mktemp("scenes") / "scenes"
    write_detection_dataset(folder, DetectionSpec(num_train=60, num_val=5, num_classes=8))
    return folder, json.loads((folder / "annotations/instances_train.json").read_text())


def rasterize(segmentation, height, width):
    if isinstance(segmentation, list):
        return mask_api.decode(mask_api.merge(mask_api.frPyObjects(segmentation, height, width)))
    return mask_api.decode(mask_api.frPyObjects(segmentation, height, width))


def test_equal_specs_give_equal_bytes_and_others_another_path(tmp_path):
    for name in ("one", "two"):
        write_detection_dataset(tmp_path / name, SMALL)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    other = DetectionSpec(num_train=3, num_val=2, width_range=(48, 64), height_range=(48, 64), seed=2)
    assert len({path_with_digest(tmp_path / "scenes", spec) for spec in (SMALL, other, DetectionSpec())}) == 3
    write_detection_dataset(tmp_path / "three", other)
    assert not set(contents(tmp_path / "one").values()) & set(contents(tmp_path / "three").values())


def test_lists_and_tuples_have_the_same_digest(tmp_path):
    lists = DetectionSpec(num_train=3, num_val=2, width_range=[48, 64], height_range=[48, 64])
    assert path_with_digest(tmp_path / "scenes", lists) == path_with_digest(tmp_path / "scenes", SMALL)


def test_layout_follows_coco(many):
    folder, found = many
    names = sorted(contents(folder))
    assert names[:2] == ["annotations/instances_train.json", "annotations/instances_val.json"]
    assert names[2:] == sorted(f"{split}/{1 + n + 7 * k:012d}.jpg" for n, split, count in
                               ((0, "train", 60), (1, "val", 5)) for k in range(count))  # fmt: skip
    assert [f"train/{entry['file_name']}" for entry in found["images"]] == names[2:62]
    assert [entry["id"] for entry in found["categories"]] == [1, 2, 3, 5, 6, 7, 9, 10]
    assert len({entry["name"] for entry in found["categories"]}) == 8
    assert [entry["id"] for entry in found["annotations"]] == list(range(1, len(found["annotations"]) + 1))


def test_image_sizes_and_modes(many):
    folder, found = many
    modes = []
    for entry in found["images"]:
        with Image.open(folder / "train" / entry["file_name"]) as image:
            assert image.size == (entry["width"], entry["height"])
            assert image.format == "JPEG"
            modes.append(image.mode)
    assert min(entry["width"] for entry in found["images"]) >= 120
    assert max(entry["height"] for entry in found["images"]) <= 160
    assert {entry["width"] > entry["height"] for entry in found["images"]} == {True, False}
    assert [index for index, mode in enumerate(modes) if mode == "L"] == [7, 23, 39, 55]
    assert set(modes) == {"L", "RGB"}


def test_boxes_areas_and_masks_agree(many):
    _, found = many
    sizes = {entry["id"]: (entry["height"], entry["width"]) for entry in found["images"]}
    seen = {number: np.zeros(size, int) for number, size in sizes.items()}
    for entry in found["annotations"]:
        mask = rasterize(entry["segmentation"], *sizes[entry["image_id"]])
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        x, y, width, height = entry["bbox"]
        assert (x, y, x + width, y + height) == (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
        assert entry["area"] == mask.sum() >= 20
        assert isinstance(entry["segmentation"], dict) == (entry["iscrowd"] == 1)
        seen[entry["image_id"]] += mask
    assert max(mask.max() for mask in seen.values()) == 1  # visible masks do not overlap
    counts = [sum(entry["image_id"] == number for entry in found["annotations"]) for number in sizes]
    assert [index for index, count in enumerate(counts) if not count] == [19, 39, 59]
    assert max(counts) in (5, 6, 7)
    crowded = [entry["image_id"] for entry in found["annotations"] if entry["iscrowd"]]
    assert [(number - 1) // 7 for number in crowded] == [5, 17, 29, 41, 53]


def test_objects_have_all_classes_and_many_sizes(many):
    _, found = many
    classes = {entry["category_id"] for entry in found["annotations"]}
    areas = [entry["area"] for entry in found["annotations"] if not entry["iscrowd"]]
    assert classes == {1, 2, 3, 5, 6, 7, 9, 10}
    assert np.percentile(areas, 90) > 8 * np.percentile(areas, 10)


def test_objects_contrast_with_the_background(many):
    folder, found = many
    differences = []
    for entry in found["annotations"]:
        with Image.open(folder / f"train/{entry['image_id']:012d}.jpg") as image:
            pixels = np.asarray(image.convert("RGB"), np.float32)
        mask = rasterize(entry["segmentation"], *pixels.shape[:2]).astype(bool)
        others = [one for one in found["annotations"] if one["image_id"] == entry["image_id"]]
        ground = ~np.logical_or.reduce([rasterize(one["segmentation"], *pixels.shape[:2]) for one in others])
        differences.append(abs(pixels[mask].mean(0) - pixels[ground].mean(0)).max())
    assert min(differences) > 25  # JPEG, clipping and texture reduce the contrast of 60


@given(hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12)))
def test_polygons_rasterize_to_the_mask(mask):
    polygons = mask_to_polygons(mask)
    assert all(len(polygon) >= 8 and len(polygon) % 2 == 0 for polygon in polygons)
    if mask.any():
        assert (rasterize(polygons, *mask.shape) == mask).all()
    else:
        assert polygons == []


@given(st.integers(1, 5), st.integers(1, 5))
def test_holes_are_cut_open(across, down):
    mask = np.zeros((12, 12), bool)
    mask[2:10, 2:10] = True
    mask[4 : 4 + down, 4 : 4 + across] = False
    polygons = mask_to_polygons(mask)
    assert len(polygons) in (1, 2)
    for polygon in polygons:
        x, y = np.array(polygon).reshape(-1, 2).T
        assert (x * np.roll(y, -1) - np.roll(x, -1) * y).sum() > 0  # all have the same orientation
    assert (rasterize(polygons, 12, 12) == mask).all()


@given(hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12)))
def test_rle_rasterizes_to_the_mask(mask):
    assert (rasterize(detection._encode_rle(mask), *mask.shape) == mask).all()


def test_mostly_occluded_objects_are_dropped():
    def scene_object(start, stop):
        mask = np.zeros((60, 60), bool)
        mask[start:stop, start:stop] = True
        return SceneObject(0, False, mask)

    rear, hidden, near = scene_object(0, 30), scene_object(18, 40), scene_object(20, 60)
    kept = detection._remove_occluded([rear, hidden, near])
    assert len(kept) == 2
    assert (kept[1].visible == near.visible).all()
    assert (kept[0].visible == (rear.visible & ~near.visible)).all()  # dropped objects occlude nothing


def test_concurrent_writers_of_one_folder(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: write_detection_dataset(tmp_path / "scenes", SMALL), range(6)))
    assert [path.name for path in tmp_path.iterdir()] == ["scenes"]
    assert len(contents(tmp_path / "scenes")) == 2 + 3 + 2


def test_interruption_leaves_no_files(tmp_path, monkeypatch):
    def interrupt(spec, index, generator):
        if index == 2:
            raise KeyboardInterrupt
        return np.zeros((48, 48), np.uint8), []

    monkeypatch.setattr(detection, "render_image", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_detection_dataset(tmp_path / "scenes", SMALL)
    assert not list(tmp_path.iterdir())


def test_reports_unwritable_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="set data_dir"):
        write_detection_dataset(tmp_path / "file" / "scenes", SMALL)


@pytest.mark.parametrize(
    "changed", [{"num_classes": 0}, {"num_classes": 9}, {"num_train": 0}, {"num_val": 0}, {"max_objects": 0}], ids=str
)
def test_rejects_invalid_spec(changed):
    with pytest.raises(ValueError, match="num_classes must be 1 to 8"):
        DetectionSpec(**changed)


@pytest.mark.parametrize("changed", [{"width_range": (40, 60)}, {"height_range": (80, 60)}], ids=str)
def test_rejects_invalid_ranges(changed):
    with pytest.raises(ValueError, match="48 <= low <= high"):
        DetectionSpec(**changed)

"""The generated scenes: equal for equal settings, whole folders, and annotations that are right to the pixel."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from timetrial.datasets.synthetic import detection as module
from timetrial.datasets.synthetic.detection import Scenes, Thing, outlines, path_of, write_scenes
from timetrial.runner.core.errors import DataError

mask_api = pytest.importorskip("pycocotools.mask")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # pycocotools and NumPy 2

FEW = Scenes(train=3, val=2, width=(48, 64), height=(48, 64))


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A set of all kinds of images: (folder, what its training json holds)."""
    folder = tmp_path_factory.mktemp("scenes") / "scenes"
    write_scenes(folder, Scenes(train=60, val=5, classes=8))
    return folder, json.loads((folder / "annotations/instances_train.json").read_text())


def rasterised(segmentation, height, width):
    if isinstance(segmentation, list):
        return mask_api.decode(mask_api.merge(mask_api.frPyObjects(segmentation, height, width)))
    return mask_api.decode(mask_api.frPyObjects(segmentation, height, width))


def test_equal_settings_give_equal_bytes_and_others_another_folder(tmp_path):
    for name in ("one", "two"):
        write_scenes(tmp_path / name, FEW)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    other = Scenes(train=3, val=2, width=(48, 64), height=(48, 64), seed=2)
    assert len({path_of(tmp_path / "scenes", scenes) for scenes in (FEW, other, Scenes())}) == 3
    write_scenes(tmp_path / "three", other)
    assert not set(contents(tmp_path / "one").values()) & set(contents(tmp_path / "three").values())


def test_ranges_from_a_configuration_are_the_same_set(tmp_path):
    lists = Scenes(train=3, val=2, width=[48, 64], height=[48, 64])
    assert path_of(tmp_path / "scenes", lists) == path_of(tmp_path / "scenes", FEW)


def test_the_folder_is_laid_out_as_coco(many):
    folder, found = many
    names = sorted(contents(folder))
    assert names[:2] == ["annotations/instances_train.json", "annotations/instances_val.json"]
    assert names[2:] == sorted(f"{split}/{1 + n + 7 * k:012d}.jpg" for n, split, count in
                               ((0, "train", 60), (1, "val", 5)) for k in range(count))  # fmt: skip
    assert [f"train/{entry['file_name']}" for entry in found["images"]] == names[2:62]
    assert [entry["id"] for entry in found["categories"]] == [1, 2, 3, 5, 6, 7, 9, 10]
    assert len({entry["name"] for entry in found["categories"]}) == 8
    assert [entry["id"] for entry in found["annotations"]] == list(range(1, len(found["annotations"]) + 1))


def test_images_have_the_sizes_and_colours_that_are_told(many):
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
        mask = rasterised(entry["segmentation"], *sizes[entry["image_id"]])
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        x, y, width, height = entry["bbox"]
        assert (x, y, x + width, y + height) == (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
        assert entry["area"] == mask.sum() >= 20
        assert isinstance(entry["segmentation"], dict) == (entry["iscrowd"] == 1)
        seen[entry["image_id"]] += mask
    assert max(mask.max() for mask in seen.values()) == 1  # what is seen of one is not seen of another
    counts = [sum(entry["image_id"] == number for entry in found["annotations"]) for number in sizes]
    assert [index for index, count in enumerate(counts) if not count] == [19, 39, 59]
    assert max(counts) in (5, 6, 7)
    crowded = [entry["image_id"] for entry in found["annotations"] if entry["iscrowd"]]
    assert [(number - 1) // 7 for number in crowded] == [5, 17, 29, 41, 53]


def test_things_of_every_class_and_of_many_sizes_are_drawn(many):
    _, found = many
    classes = {entry["category_id"] for entry in found["annotations"]}
    areas = [entry["area"] for entry in found["annotations"] if not entry["iscrowd"]]
    assert classes == {1, 2, 3, 5, 6, 7, 9, 10}
    assert np.percentile(areas, 90) > 8 * np.percentile(areas, 10)


def test_a_thing_differs_from_the_ground(many):
    folder, found = many
    differences = []
    for entry in found["annotations"]:
        with Image.open(folder / f"train/{entry['image_id']:012d}.jpg") as image:
            pixels = np.asarray(image.convert("RGB"), np.float32)
        mask = rasterised(entry["segmentation"], *pixels.shape[:2]).astype(bool)
        others = [one for one in found["annotations"] if one["image_id"] == entry["image_id"]]
        ground = ~np.logical_or.reduce([rasterised(one["segmentation"], *pixels.shape[:2]) for one in others])
        differences.append(abs(pixels[mask].mean(0) - pixels[ground].mean(0)).max())
    assert min(differences) > 25  # JPEG, clipping and waves take something of the 60


@given(hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12)))
def test_outlines_rasterise_to_the_mask_again(mask):
    polygons = outlines(mask)
    assert all(len(polygon) >= 8 and len(polygon) % 2 == 0 for polygon in polygons)
    if mask.any():
        assert (rasterised(polygons, *mask.shape) == mask).all()
    else:
        assert polygons == []


@given(st.integers(1, 5), st.integers(1, 5))
def test_a_hole_is_cut_open(across, down):
    mask = np.zeros((12, 12), bool)
    mask[2:10, 2:10] = True
    mask[4 : 4 + down, 4 : 4 + across] = False
    polygons = outlines(mask)
    assert len(polygons) in (1, 2)
    for polygon in polygons:
        x, y = np.array(polygon).reshape(-1, 2).T
        assert (x * np.roll(y, -1) - np.roll(x, -1) * y).sum() > 0  # all run the same way round
    assert (rasterised(polygons, 12, 12) == mask).all()


@given(hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12)))
def test_runs_rasterise_to_the_mask_again(mask):
    assert (rasterised(module._runs(mask), *mask.shape) == mask).all()


def test_what_is_hidden_too_much_is_left_out():
    def thing(start, stop):
        mask = np.zeros((60, 60), bool)
        mask[start:stop, start:stop] = True
        return Thing(0, False, mask)

    rear, hidden, near = thing(0, 30), thing(18, 40), thing(20, 60)
    kept = module._seen([rear, hidden, near])
    assert len(kept) == 2
    assert (kept[1].seen == near.seen).all()
    assert (kept[0].seen == (rear.seen & ~near.seen)).all()  # and what was left out hides nothing


def test_many_runs_write_one_folder_at_once(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: write_scenes(tmp_path / "scenes", FEW), range(6)))
    assert [path.name for path in tmp_path.iterdir()] == ["scenes"]
    assert len(contents(tmp_path / "scenes")) == 2 + 3 + 2


def test_an_interrupted_run_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(scenes, index, generator):
        if index == 2:
            raise KeyboardInterrupt
        return np.zeros((48, 48), np.uint8), []

    monkeypatch.setattr(module, "draw", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_scenes(tmp_path / "scenes", FEW)
    assert not list(tmp_path.iterdir())


def test_an_unwritable_place_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="set data_dir"):
        write_scenes(tmp_path / "file" / "scenes", FEW)


@pytest.mark.parametrize("changed", [{"classes": 0}, {"classes": 9}, {"train": 0}, {"val": 0}, {"most": 0}], ids=str)
def test_what_cannot_be_drawn_is_refused(changed):
    with pytest.raises(ValueError, match="classes must be 1 to 8"):
        Scenes(**changed)


@pytest.mark.parametrize("changed", [{"width": (40, 60)}, {"height": (80, 60)}], ids=str)
def test_ranges_that_are_none_are_refused(changed):
    with pytest.raises(ValueError, match="ranges of pixels from 48 on"):
        Scenes(**changed)

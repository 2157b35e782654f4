"""COCO format: equal to pycocotools on synthetic scenes, and a sentence for every kind of invalid input."""

import contextlib
import io
import json
import pickle
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from timetrial.datasets.formats import coco, coco_masks, coco_problems
from timetrial.datasets.synthetic.detection import DetectionSpec, write_detection_dataset
from timetrial.runner.core.errors import ConfigurationError, DataError, Exit

mask_api = pytest.importorskip("pycocotools.mask")
# raised by pycocotools' own `decode` with NumPy 2
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SQUARE = [5.0, 5.0, 15.0, 5.0, 15.0, 15.0, 5.0, 15.0]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """Return synthetic scenes whose annotations are unsorted, as COCO's are."""
    folder = tmp_path_factory.mktemp("scenes") / "scenes"
    write_detection_dataset(folder, DetectionSpec(num_train=48, num_val=4, num_classes=5))
    path = folder / "annotations/instances_train.json"
    found = json.loads(path.read_text())
    np.random.default_rng(1).shuffle(found["annotations"])
    found["categories"].reverse()
    path.write_text(json.dumps(found))
    return path, folder / "train"


@pytest.fixture
def tiny(tmp_path):
    """Return JSON path, folder and content of two images (40x30, 30x40), three annotations and two categories."""
    folder = tmp_path / "images"
    folder.mkdir()
    for name, size in (("a.jpg", (40, 30)), ("b.png", (30, 40))):
        Image.new("RGB", size, (90, 120, 60)).save(folder / name)
    found = {
        "images": [image(7, "a.jpg", 40, 30), image(3, "b.png", 30, 40)],
        "annotations": [
            annotation(11, 3, 9, [2, 3, 10, 12]),
            annotation(12, 7, 4, [5, 5, 10, 10]),
            annotation(13, 7, 9, [0, 0, 40, 30], iscrowd=1, segmentation={"size": [30, 40], "counts": [600, 500, 100]}),
        ],
        "categories": [{"id": 9, "name": "cat"}, {"id": 4, "name": "ape"}],
    }
    return tmp_path / "instances.json", folder, found


def image(number, name, width, height):
    return {"id": number, "file_name": name, "width": width, "height": height}


def annotation(number, of, category, box, **changed):
    made = {"id": number, "image_id": of, "category_id": category, "bbox": box, "area": 100, "iscrowd": 0}
    return made | {"segmentation": [SQUARE]} | changed


def read(tiny, **named):
    path, folder, found = tiny
    path.write_text(json.dumps(found))
    return coco.read(path, folder, **{"masks": True, **named})


def check(tiny, **named):
    path, folder, found = tiny
    path.write_text(json.dumps(found))
    sentences = coco.check(path, folder, **named)
    assert not [sentence for sentence in sentences if "\n" in sentence or not sentence.endswith(".")]
    return sentences


def read_official(path):
    from pycocotools.coco import COCO

    with contextlib.redirect_stdout(io.StringIO()):
        return COCO(str(path))


def assert_equal(one, other):
    for name in one.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
        assert np.asarray(getattr(one, name)).dtype == np.asarray(getattr(other, name)).dtype


def test_arrays_equal_pycocotools(scenes):
    found, official = coco.read(*scenes, masks=True), read_official(scenes[0])
    assert found.image_id.tolist() == [entry["id"] for entry in official.dataset["images"]]
    assert found.category_id.tolist() == sorted(official.getCatIds()) == [1, 2, 3, 5, 6]
    assert found.category_name.tolist() == [official.cats[number]["name"] for number in found.category_id]
    assert len(found.box) == len(official.anns)
    for index, number in enumerate(found.image_id.tolist()):
        entry, annotations = official.imgs[number], official.loadAnns(official.getAnnIds(number))
        assert found.path(index) == scenes[1] / entry["file_name"]
        assert (found.height[index], found.width[index]) == (entry["height"], entry["width"])
        assert found.boxes(index).tolist() == [one["bbox"] for one in annotations]
        assert found.category_id[found.categories(index)].tolist() == [one["category_id"] for one in annotations]
        assert found.annotation_id[found.annotations_of(index)].tolist() == [one["id"] for one in annotations]
        assert found.area[found.annotations_of(index)].tolist() == [one["area"] for one in annotations]
        assert found.crowd[found.annotations_of(index)].tolist() == [one["iscrowd"] == 1 for one in annotations]
        assert (found.image[found.annotations_of(index)] == index).all()
        polygons = [[part.ravel().tolist() for part in parts] for parts in found.polygons(index)]
        assert polygons == [[] if one["iscrowd"] else one["segmentation"] for one in annotations]


def test_masks_equal_pycocotools(scenes):
    found, official = coco.read(*scenes, masks=True), read_official(scenes[0])
    assert found.crowd.sum() == 4
    for index, number in enumerate(found.annotation_id.tolist()):
        mask = found.mask(index)
        assert mask.dtype == bool
        assert (mask == official.annToMask(official.anns[number])).all()
        assert found.rle(index) == official.annToRLE(official.anns[number])


def test_types_and_shapes(scenes):
    found = coco.read(*scenes, masks=True)
    whole = {"image_id", "first", "annotation_id", "category_id", "outline", "corner", "run"}
    assert {getattr(found, name).dtype for name in whole} == {np.dtype(np.int64)}
    assert {found.box.dtype, found.corners.dtype} == {np.dtype(np.float32)}
    assert {found.image.dtype, found.category.dtype, found.height.dtype} == {np.dtype(np.int32)}
    assert (found.runs.dtype, found.crowd.dtype, found.area.dtype) == (np.uint32, bool, np.float64)
    assert len(found) == 48
    assert_equal(pickle.loads(pickle.dumps(found)), found)


@given(st.lists(st.integers(0, 8000), min_size=6, max_size=24).filter(lambda numbers: len(numbers) % 2 == 0))
def test_coordinates_of_two_decimals_rasterize_exactly(hundredths):
    """float32 would move some points across the rasterizer's fifths of a pixel."""
    numbers = [number / 100 for number in hundredths]
    points = np.array(numbers, np.float32).reshape(-1, 2)
    assert coco_masks.restore_decimals(points).ravel().tolist() == numbers
    official = mask_api.merge(mask_api.frPyObjects([numbers], 80, 80))
    assert coco_masks.encode_rle([points], np.empty(0, np.uint32), 80, 80) == official


def test_coordinates_with_more_decimals_are_unchanged():
    points = np.array([[0.123456, 1 / 3], [5000.123, 1e6]], np.float32)
    assert (coco_masks.restore_decimals(points) == points).all()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=40)))
def test_compressed_rle_equals_pycocotools(tmp_path, mask):
    height, width = mask.shape
    packed = mask_api.encode(np.asfortranarray(mask.astype(np.uint8)))
    Image.new("RGB", (width, height)).save(tmp_path / "a.png")
    segmentation = {"size": [height, width], "counts": packed["counts"].decode()}
    entry = annotation(1, 1, 1, [0, 0, width, height], segmentation=segmentation)
    found = {"images": [image(1, "a.png", width, height)], "annotations": [entry]}
    ours = read((tmp_path / "a.json", tmp_path, found | {"categories": [{"id": 1, "name": "a"}]}))
    assert (ours.mask(0) == mask).all()
    assert ours.rle(0) == packed


def test_accepts_byte_order_mark_and_folders_in_names(tiny):
    path, folder, found = tiny
    (folder / "sub").mkdir()
    (folder / "a.jpg").rename(folder / "sub/a.jpg")
    found["images"][0]["file_name"] = "sub/a.jpg"
    path.write_text(json.dumps(found), encoding="utf-8-sig")
    assert coco.read(path, folder, masks=True).path(0) == folder / "sub/a.jpg"


def test_segmentations_are_ignored_without_masks(tiny):
    tiny[2]["annotations"][0]["segmentation"] = "whatever"
    found = read(tiny, masks=False)
    assert not found.corners.size
    assert not found.runs.size
    assert found.polygons(0) == [[], []]
    with pytest.raises(
        DataError, match="annotation 12 has no mask: add its segmentation, or read the dataset with masks"
    ):
        found.mask(0)


def test_accepts_images_and_datasets_without_annotations(tiny):
    tiny[2]["annotations"] = tiny[2]["annotations"][1:]
    assert [len(read(tiny).boxes(index)) for index in range(2)] == [2, 0]
    tiny[2]["annotations"] = []
    found = read(tiny)
    assert [len(found.boxes(index)) for index in range(2)] == [0, 0]
    assert found.box.shape == (0, 4)
    assert len(found.with_boxes()) == 0
    assert check(tiny) == []


def test_selections_are_consistent(scenes):
    found = coco.read(*scenes, masks=True)
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


def test_select_reorders_and_repeats_images(tiny):
    found = read(tiny)
    twice = found.select(np.array([1, 0, 1]))
    assert twice.image_id.tolist() == [3, 7, 3]
    assert twice.first.tolist() == [0, 1, 3, 4]
    assert twice.annotation_id.tolist() == [11, 12, 13, 11]
    assert twice.image.tolist() == [0, 1, 1, 2]
    assert_equal(found.select(np.arange(2)), found)


def test_minimum_side_of_boxes(tiny):
    tiny[2]["annotations"][0]["bbox"] = [2, 3, 1, 12]
    found = read(tiny)
    assert found.with_boxes().image_id.tolist() == [7, 3]
    assert found.with_boxes(1).image_id.tolist() == [7]
    only_crowd = found.select(np.array([0])).without_crowd()
    assert only_crowd.annotation_id.tolist() == [12]


def test_is_wide(tiny):
    tiny[2]["images"].append(image(9, "a.jpg", 30, 30))
    assert read(tiny).is_wide().tolist() == [True, False, False]


def test_boxes_are_clipped_by_up_to_a_pixel(tiny):
    tiny[2]["annotations"][1]["bbox"] = [-0.5, 10.25, 40.75, 20.75]
    found = read(tiny)
    assert found.boxes(0)[0].tolist() == [0, 10.25, 40, 19.75]
    assert check(tiny) == []


def test_boxes_inside_the_image_are_unchanged(tiny):
    tiny[2]["annotations"][1]["bbox"] = [0.1, 0.2, 39.7, 29.3]
    assert read(tiny).boxes(0)[0].tolist() == np.array([0.1, 0.2, 39.7, 29.3], np.float32).tolist()


@pytest.mark.parametrize("box", [[5, 5, 0, 10], [5, 5, 10, 0.0], [40, 5, 0.5, 5], [-0.5, 3, 0.5, 4]])
def test_boxes_without_area_are_dropped_and_counted(tiny, box):
    tiny[2]["annotations"][1]["bbox"] = box
    found = read(tiny)
    assert (found.dropped, found.annotation_id.tolist()) == (1, [13, 11])
    assert found.mask(0).sum() == 500
    (sentence,) = check(tiny)
    assert "annotation 12 has a box without area (" in sentence
    with pytest.raises(DataError, match="annotation 12 has a box without area"):
        read(tiny, drop_empty=False)


def first(name, **changed):
    return lambda found: found[name][0].update(changed)


def without(name, *keys):
    return lambda found: [found[name][0].pop(key) for key in keys]


def also(name, number):
    return lambda found: found[name].append(dict(found[name][number]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("images", "file_name", "width"), "image number 1 has no file_name and width: "),
        (without("annotations", "bbox"), "annotation number 1 has no bbox: "),
        (without("annotations", "iscrowd"), "annotation number 1 has no iscrowd: "),
        (without("categories", "name"), "category number 1 has no name: "),
        (first("images", id="7"), r"image number 1 has the id '7', which is not a whole number"),
        (first("images", height=30.5), r"image number 1 has the height .*, which is not a whole number"),
        (first("images", file_name=5), r"image number 1 has the file_name .*, which is not a string"),
        (first("images", file_name="\ud800"), "image number 1 has the file_name '.ud800', which is not a string"),
        (first("images", file_name="a\nb.jpg"), "image number 1 has the file_name 'a.nb.jpg', which is not a string"),
        (first("annotations", bbox=[1, 2, 3]), r"number 1 has the bbox .*, which is not a list of four"),
        (first("annotations", bbox=[1, 2, 3, "4"]), r"number 1 has the bbox .*, which is not a list of four"),
        (first("annotations", bbox=None), r"number 1 has the bbox .*, which is not a list of four"),
        (first("annotations", area="big"), r"annotation number 1 has the area .*, which is not a number"),
        (first("annotations", id=2**70), r"annotation number 1 has the id '\d+', which is not a whole number"),
        (lambda found: found["annotations"].insert(1, 5), "annotation number 2 is not an object: "),
        (also("images", 0), "image id 7 occurs twice: "),
        (also("annotations", 2), "annotation id 13 occurs twice: "),
        (also("categories", 1), "category id 4 occurs twice: "),
        (first("images", width=0), "image 7 is 0x30 pixels: "),
        (first("images", height=2**31), "image 7 is 40x2147483648 pixels: "),
        (first("images", file_name="c.jpg"), r"images/c\.jpg is missing: put it back or remove image 7 from "),
        (first("images", file_name="sub/c.jpg"), r"images/sub/c\.jpg is missing: "),
        (first("annotations", image_id=5), "annotation 11 has the image 5, which is not listed: "),
        (first("annotations", category_id=5), "annotation 11 has the category 5, which is not listed: "),
        (first("annotations", bbox=[5, 5, -1, 4]), r"annotation 11 has a box with a negative side \(5, 5, -1, 4\): "),
        (first("annotations", bbox=[5, 5, 5, float("nan")]), "the box 5, 5, 5, nan and the area 100, which "),
        (first("annotations", bbox=[float("inf"), 5, 5, 5]), "annotation 11 has the box inf, 5, 5, 5 and "),
        (first("annotations", area=-4), "and the area -4, which is invalid: "),
        (
            first("annotations", bbox=[25, 3, 7.5, 12]),
            r"annotation 11 has a box \(25, 3, 7.5, 12\) that leaves its image of 30x40 pixels by 2.5: ",
        ),
        (first("annotations", bbox=[-3, 3, 10, 12]), "that leaves its image of 30x40 pixels by 3.0: "),
        (first("annotations", segmentation=[[1, 2, 3, 4]]), "annotation 11 has a polygon of 4 numbers, not an even "),
        (first("annotations", segmentation=[SQUARE, [*SQUARE, 1]]), "annotation 11 has a polygon of 9 numbers, "),
        (first("annotations", segmentation=[[1, 1, 33, 1, 9, 9]]), "a polygon that leaves its image by 3.0 pixels: "),
        (first("annotations", segmentation=[[1, 1, float("nan"), 1, 9, 9]]), "leaves its image by nan pixels: "),
        (first("annotations", segmentation=[[1, 1, 1e300, 1, 9, 9]]), "leaves its image by inf pixels: "),
        (first("annotations", segmentation=[1, 1, 9, 1, 9, 9]), "annotation 11 has a segmentation that is neither "),
        (first("annotations", segmentation=[["a"] * 6]), "annotation 11 has a segmentation that is neither "),
        (first("annotations", segmentation="text"), "annotation 11 has a segmentation that is neither "),
        (first("annotations", segmentation={"size": [30, 40], "counts": [1200]}), r"size \[30, 40\], not its "),
        (first("annotations", segmentation={"counts": [1200]}), "RLE of the size None, not "),
        (first("annotations", segmentation={"size": [40, 30]}), "annotation 11 has RLE that is neither a list "),
        (first("annotations", segmentation={"size": [40, 30], "counts": [700, 400]}), "RLE of 1100 pixels, not its "),
        (first("annotations", segmentation={"size": [40, 30], "counts": [1201, -1]}), "RLE that is neither "),
        (first("annotations", segmentation={"size": [40, 30], "counts": [1, [2]]}), "RLE that is neither "),
        (first("annotations", segmentation={"size": [40, 30], "counts": []}), "RLE that is neither "),
        (first("annotations", segmentation={"size": [40, 30], "counts": ""}), "RLE that is neither "),
        (first("annotations", segmentation={"size": [40, 30], "counts": "0o"}), "RLE that is neither "),
        (first("annotations", segmentation={"size": [40, 30], "counts": "\u00fc1"}), "RLE that is neither "),
        (first("annotations", segmentation={"size": [40, 30], "counts": "P" * 7 + "1"}), "RLE that is neither "),
        (first("annotations", segmentation={"size": [40, 30], "counts": "`T1"}), "RLE of 1168 pixels, not "),
    ],
)  # fmt: skip
def test_rejects_invalid_content(tiny, change, message):
    change(tiny[2])
    sentences = check(tiny)
    assert len(sentences) <= 3  # an invalid image or category leaves its annotations without one
    with pytest.raises(DataError, match=message) as caught:
        read(tiny)
    assert caught.value.exit_code == Exit.DATA
    assert str(tiny[0]) in str(caught.value)
    assert str(caught.value).startswith(sentences[0].removesuffix("."))


@pytest.mark.parametrize("segmentation", [None, []])
def test_segmentation_is_required_for_masks_only(tiny, segmentation):
    tiny[2]["annotations"][0]["segmentation"] = segmentation
    del tiny[2]["annotations"][1]["segmentation"]
    assert check(tiny) == []
    assert ["annotation 11" in line or "annotation 12" in line for line in check(tiny, masks=True)] == [True, True]
    with pytest.raises(
        DataError, match=r"annotation 11 has no segmentation, which training masks .*; and 1 more: timetrial data"
    ):
        read(tiny)


def test_reports_all_problems_at_once(tiny):
    found = tiny[2]
    found["images"][0]["file_name"] = "gone.jpg"
    found["annotations"][0]["bbox"] = [0, 0, 100, 5]
    found["annotations"][1]["category_id"] = 77
    found["annotations"][2]["segmentation"]["counts"] = [1, 2]
    found["annotations"].append(annotation(13, 99, 4, [1, 1, 5, 5], segmentation=[[1, 2]]))
    sentences = check(tiny)
    expected = (
        "gone.jpg is missing",
        "by 70.0",
        "category 77",
        "RLE of 3 pixels",
        "id 13 occurs",
        "image 99",
        "2 numbers",
    )
    for message in expected:
        assert sum(message in line for line in sentences) == 1, message
    assert len(sentences) == 7
    with pytest.raises(DataError, match=r"; and 6 more: timetrial data verify lists them.$") as caught:
        read(tiny)
    assert "\n" not in str(caught.value)


def test_many_problems_of_a_kind_are_counted(tiny):
    tiny[2]["annotations"] += [annotation(1000 + number, 500, 4, [1, 1, 5, 5]) for number in range(1234)]
    sentences = check(tiny)
    assert len(sentences) == coco_problems.MAX_SENTENCES + 1
    assert sentences[-1] == "1,214 more are like the last one."
    with pytest.raises(DataError, match=r"annotation 1000 has the image 500.*; and 1,233 more: "):
        read(tiny)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "is not JSON from character .* it is truncated or damaged"),
        (lambda text: "", "is not JSON from character 0 of 0"),
        (lambda text: "[1, 2]", "contains no JSON object: it is not a COCO instances file"),
        (lambda text: '{"images": [], "categories": 5}', "has no list categories and annotations: "),
        (lambda text: '{"images": [], "categories": [], "annotations": []}', "lists no image: "),
        (lambda text: text.replace('"categories": [', '"categories": [], "was": ['), "lists no category: "),
        (lambda text: "[" * 100_000, "is not valid JSON"),
        (lambda text: "9" * 5000, "is not valid JSON"),
    ],
)  # fmt: skip
def test_rejects_other_files(tiny, change, message):
    path, folder, found = tiny
    path.write_text(change(json.dumps(found)))
    with pytest.raises(DataError, match=message) as caught:
        coco.read(path, folder, masks=True)
    assert coco.check(path, folder) == [str(caught.value)]
    assert "\n" not in str(caught.value)


def test_reports_invalid_images(tiny):
    for entry in tiny[2]["images"]:
        del entry["id"]
    assert len(check(tiny)) == 2 + 3  # each annotation lacks its image


def test_names_missing_files(tiny, tmp_path):
    read(tiny)
    path, folder, _ = tiny
    with pytest.raises(DataError, match=r"nowhere\.json cannot be read \(No such file or directory\): put COCO's"):
        coco.read(tmp_path / "nowhere.json", folder, masks=True)
    with pytest.raises(DataError, match=r"nowhere\.json cannot be read"):
        coco.prepare(tmp_path / "nowhere.json", folder, tmp_path / "prepared", masks=True)
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(DataError, match="is not text from byte 0 on: it is damaged"):
        coco.read(path, folder, masks=True)
    shutil.rmtree(folder)
    (sentence,) = check(tiny)
    assert sentence.startswith(f"{folder} is missing: put the images of")


def test_names_missing_pycocotools(tiny, monkeypatch):
    found = read(tiny)
    monkeypatch.setitem(__import__("sys").modules, "pycocotools", None)
    with pytest.raises(ConfigurationError, match="pip install pycocotools"):
        found.mask(0)


def test_checks_image_files(tiny):
    path, folder, entries = tiny
    for name in ("c.jpg", "d.jpg", "e.jpg", "f.jpg"):
        Image.effect_noise((40, 30), 90).save(folder / name)
    complete = (folder / "c.jpg").read_bytes()
    (folder / "c.jpg").write_bytes(complete[: len(complete) // 2])
    (folder / "d.jpg").write_bytes(b"no image")
    (folder / "e.jpg").write_bytes(complete + b"\0" * 500)  # complete, with trailing bytes
    entries["images"] += [image(20 + n, f"{name}.jpg", 40, 30) for n, name in enumerate("cdef")]
    entries["images"][1].update(width=40, height=30)
    assert check(tiny) == []
    found = read(tiny)
    (folder / "f.jpg").unlink()
    broken = "cannot be decoded: it is truncated or not an image; replace or remove it."
    assert coco.check_images(found) == [
        f"{folder}/b.png is 30x40 pixels, not 40x30 as {path} says of image 3: replace the image or correct the JSON.",
        *(f"{folder}/{name}.jpg {broken}" for name in "cdf"),
    ]


@pytest.mark.parametrize("masks", [True, False])
def test_prepared_file_is_reused_until_the_json_changes(tiny, tmp_path, masks):
    path, folder, entries = tiny
    found = read(tiny, masks=masks)
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


def test_rejected_json_leaves_no_prepared_file(tiny, tmp_path):
    path, folder, found = tiny
    found["annotations"][0]["image_id"] = 5
    path.write_text(json.dumps(found))
    with pytest.raises(DataError):
        coco.prepare(path, folder, tmp_path / "prepared", masks=True)
    assert not (tmp_path / "prepared").exists()


def test_reports_unwritable_folder(tiny, tmp_path):
    read(tiny)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"Cannot write .*npz.*name another place"):
        coco.prepare(tiny[0], tiny[1], tmp_path / "file/prepared", masks=True)


@pytest.mark.parametrize("damage", [lambda data: data[:300], lambda _: b"", lambda _: b"no archive"])
def test_names_damaged_prepared_file(tiny, tmp_path, damage):
    read(tiny)
    prepared = coco.prepare(tiny[0], tiny[1], tmp_path / "prepared", masks=True)
    prepared.write_bytes(damage(prepared.read_bytes()))
    with pytest.raises(DataError, match="remove it, and it is created again"):
        coco.load_prepared(prepared)


@pytest.mark.parametrize(
    ("height", "width", "share"), [(1, 9, 0.5), (9, 1, 0.5), (7, 12, 0.3), (12, 7, 0.8), (5, 5, 1)]
)
def test_edges_of_rle_are_the_horizontal_borders_of_the_mask(height, width, share):
    mask = np.random.default_rng(height).random((height, width)) < share
    flat = np.concatenate([[False], mask.T.ravel(), [False]])
    runs = np.diff(np.flatnonzero(flat[1:-1] != flat[:-2]), prepend=0, append=mask.size).astype(np.uint32)
    edges, last = coco_masks.edges([], runs, height)
    crossed = np.zeros((height + 1, width), int)
    for left, y, right in edges[:, :3].astype(int):
        crossed[y, left:right] += 1
    padded = np.pad(mask, [(1, 1), (0, 0)])
    assert np.array_equal(crossed, padded[1:] != padded[:-1])
    assert (edges[:, 1] == edges[:, 3]).all()
    assert last.tolist() == [False] * (len(edges) - 1) + [True]


def test_polygons_have_closed_edges():
    triangle, square = (
        np.array(points, np.float32) for points in ([(0, 0), (4, 0), (0, 3)], [(5, 5), (8, 5), (8, 9), (5, 9)])
    )
    edges, last = coco_masks.edges([triangle, square], np.zeros(0, np.uint32), 20)
    assert edges.tolist()[2:4] == [[0, 3, 0, 0], [5, 5, 8, 5]]
    assert edges.tolist()[-1] == [5, 9, 5, 5]
    assert np.flatnonzero(last).tolist() == [2, 6]


def test_edges_are_counted_as_they_are_drawn(scenes):
    dataset = coco.read(*scenes, masks=True)
    annotations = range(len(dataset.image))
    assert 0 < (dataset.run[:, 1] > dataset.run[:, 0]).sum() < len(annotations)  # crowds have runs, the others polygons
    drawn = np.zeros(len(dataset), int)
    np.add.at(drawn, dataset.image, [len(dataset.edges(annotation)[0]) for annotation in annotations])
    assert dataset.count_edges().tolist() == drawn.tolist()
    assert dataset.rles == [dataset.rle(annotation) for annotation in annotations]

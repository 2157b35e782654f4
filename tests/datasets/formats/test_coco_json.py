"""A sentence for every kind of invalid content of an instances JSON."""

import json

import pytest

from timetrial.datasets.formats import coco, coco_problems
from timetrial.runner.core.errors import DataError, Exit

SQUARE = [5.0, 5.0, 15.0, 5.0, 15.0, 15.0, 5.0, 15.0]


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
        (without("annotations", "category_id"), "annotation number 1 has no category_id: "),
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
def test_rejects_invalid_content(tiny_coco, change, message):
    change(tiny_coco.found)
    sentences = tiny_coco.check()
    assert len(sentences) <= 3  # an invalid image or category leaves its annotations without one
    with pytest.raises(DataError, match=message) as caught:
        tiny_coco.read()
    assert caught.value.exit_code == Exit.DATA
    assert str(tiny_coco.path) in str(caught.value)
    assert str(caught.value).startswith(sentences[0].removesuffix("."))


@pytest.mark.parametrize("segmentation", [None, []])
def test_segmentation_is_required_for_masks_only(tiny_coco, segmentation):
    tiny_coco.found["annotations"][0]["segmentation"] = segmentation
    del tiny_coco.found["annotations"][1]["segmentation"]
    assert tiny_coco.check() == []
    assert ["annotation 11" in line or "annotation 12" in line for line in tiny_coco.check(masks=True)] == [True, True]
    with pytest.raises(
        DataError, match=r"annotation 11 has no segmentation, which training masks .*; and 1 more: timetrial data"
    ):
        tiny_coco.read()


def test_reports_all_problems_at_once(tiny_coco):
    found = tiny_coco.found
    found["images"][0]["file_name"] = "gone.jpg"
    found["annotations"][0]["bbox"] = [0, 0, 100, 5]
    found["annotations"][1]["category_id"] = 77
    found["annotations"][2]["segmentation"]["counts"] = [1, 2]
    found["annotations"].append(tiny_coco.annotation(13, 99, 4, [1, 1, 5, 5], segmentation=[[1, 2]]))
    sentences = tiny_coco.check()
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
        tiny_coco.read()
    assert "\n" not in str(caught.value)


def test_many_problems_of_a_kind_are_counted(tiny_coco):
    tiny_coco.found["annotations"] += [
        tiny_coco.annotation(1000 + number, 500, 4, [1, 1, 5, 5]) for number in range(1234)
    ]
    sentences = tiny_coco.check()
    assert len(sentences) == coco_problems.MAX_SENTENCES + 1
    assert sentences[-1] == "1,214 more are like the last one."
    with pytest.raises(DataError, match=r"annotation 1000 has the image 500.*; and 1,233 more: "):
        tiny_coco.read()


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
def test_rejects_other_files(tiny_coco, change, message):
    path, folder, found = tiny_coco.path, tiny_coco.folder, tiny_coco.found
    path.write_text(change(json.dumps(found)))
    with pytest.raises(DataError, match=message) as caught:
        coco.read(path, folder, masks=True)
    assert coco.check(path, folder) == [str(caught.value)]
    assert "\n" not in str(caught.value)


def test_reports_invalid_images(tiny_coco):
    for entry in tiny_coco.found["images"]:
        del entry["id"]
    assert len(tiny_coco.check()) == 2 + 3  # each annotation lacks its image

"""What makers of detection sets publish becomes COCO's form, with the same images, boxes and masks."""

import io
import json
import random
import zipfile

import numpy as np
import pytest
from PIL import Image

from timetrial.datasets.build import conversions
from timetrial.datasets.build.dataset_builder import Workshop
from timetrial.datasets.download.worker_pool import Crew
from timetrial.datasets.formats import coco
from timetrial.datasets.registry.catalog import RawFile, Source
from timetrial.runner.core.errors import DataError


def picture(width, height, kind="PNG", shade=90):
    out = io.BytesIO()
    Image.fromarray(np.full((height, width, 3), shade, dtype=np.uint8)).save(out, kind)
    return out.getvalue()


@pytest.fixture
def converted(tmp_path):
    """Packs members into a zip, writes other files beside it, and converts: converted(options, content, ...)."""

    def convert(options, content, others=(), **facts):
        with zipfile.ZipFile(tmp_path / "raw.zip", "w") as archive:
            for name, data in content.items():
                archive.writestr(name, data)
        for name, data in others:
            (tmp_path / name).write_bytes(data)
        files = (RawFile("raw.zip", **facts), *(RawFile(name) for name, _ in others))
        source = Source("toy", "", "", "", "", "", files, {"images": None}, convert=options)
        shop = Workshop(tmp_path / "work", Crew(2, lambda *words: None), lambda more: None)
        conversions.convert(source, {file.name: tmp_path / file.name for file in files}, shop)
        shop.finish(tmp_path / "set", {}, source.makes)
        return tmp_path / "set"

    return convert


def opened(folder, side, masks):
    return coco.read(folder / "annotations" / f"instances_{side}.json", folder / "images", masks=masks)


def voc(*things):
    boxes = "".join(
        f"<object><name>{label}</name><bndbox><xmin>{x}</xmin><ymin>{y}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax>"
        "</bndbox></object>"
        for label, x, y, right, bottom in things
    )
    return f"<annotation><size><width>1</width></size>{boxes}</annotation>"


VOC = {
    "B-1/BCCD/JPEGImages/one.jpg": picture(64, 48, "JPEG"),
    "B-1/BCCD/JPEGImages/two.jpg": picture(30, 20, "JPEG"),
    "B-1/BCCD/Annotations/one.xml": voc(("WBC", 1, 2, 30, 40), ("RBC", 50, 40, 65, 49), ("RBC", 5, 5, 5, 9)),
    "B-1/BCCD/Annotations/two.xml": voc(("RBC", 0, 0, 30, 20)),
    "B-1/BCCD/ImageSets/Main/train.txt": "one\n",
    "B-1/BCCD/ImageSets/Main/val.txt": "two\n",
    "B-1/BCCD/ImageSets/Main/test.txt": "two\n",
    "B-1/README.md": "not wanted",
}
OF_VOC = {"members": ("*/BCCD/*",), "strip": 2}


def test_pascal_voc_becomes_coco(converted):
    folder = converted({"kind": "bccd"}, VOC, **OF_VOC)
    train, val = opened(folder, "train", False), opened(folder, "val", False)
    assert train.category_name.tolist() == ["RBC", "WBC"]
    assert train.boxes(0).tolist() == [[1, 2, 29, 38], [50, 40, 14, 8]]  # clipped, and the one without area is gone
    assert (train.category.tolist(), train.annotation_id.tolist()) == ([1, 0], [1, 2])
    assert (val.image_id.tolist(), val.boxes(0).tolist()) == ([2], [[0, 0, 30, 20]])
    assert (folder / "images/one.jpg").read_bytes() == VOC["B-1/BCCD/JPEGImages/one.jpg"]
    assert [coco.check_images(side) for side in (train, val)] == [[], []]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"B-1/BCCD/Annotations/two.xml": "<annotation>"}, r"raw\.zip is not of the form that it had \(ParseError"),
        ({"B-1/BCCD/Annotations/two.xml": "<a><object/></a>"}, "lacks name: remove the archive"),
        ({"B-1/BCCD/ImageSets/Main/val.txt": "three"}, r"is not of the form that it had \(KeyError\('three'"),
        ({"B-1/BCCD/JPEGImages/two.jpg": b"no image"}, r"two\.jpg in the archive is no image"),
        ({"B-1/BCCD/ImageSets/Main/test.txt": ""}, "lists no image"),
    ],
)
def test_what_is_not_as_it_was_is_refused(converted, change, words):
    with pytest.raises(DataError, match=words) as caught:
        converted({"kind": "bccd"}, VOC | change, **OF_VOC)
    assert "\n" not in str(caught.value)


def outlined(number, image, box, outline):
    return {
        "id": number, "image_id": image, "category_id": 2, "bbox": box, "area": box[2] * box[3] / 2, "iscrowd": 0,
        "segmentation": [outline],
    }  # fmt: skip


OUTLINES = {
    "info": {}, "licenses": [],
    "categories": [{"id": 1, "name": "ship"}, {"id": 2, "name": "harbor"}],
    "images": [
        {"id": 0, "file_name": "001.jpg", "width": 400, "height": 200},
        {"id": 1, "file_name": "002.jpg", "width": 80, "height": 100},
    ],
    "annotations": [
        outlined(7, 0, [10, 20, 101, 41], [10, 20, 110, 20, 110, 60, 10.333, 60]),
        outlined(9, 1, [0, 0, 81, 101], [0, 0, 80.5, 0, 80.5, 100.5]),
    ],
}  # fmt: skip
PHOTOGRAPHS = {
    "NWPU/positive image set/001.jpg": picture(400, 200, "JPEG"),
    "NWPU/positive image set/002.jpg": picture(80, 100, "JPEG"),
    "NWPU/negative image set/001.jpg": picture(10, 10, "JPEG"),
}
OF_NWPU = {"members": ("*positive image set/*.jpg",)}


def test_photographs_shrink_with_their_outlines(converted):
    options = {"kind": "nwpu", "longest": 100, "images": 2, "val": [2]}
    folder = converted(options, PHOTOGRAPHS, [("outlines.json", json.dumps(OUTLINES).encode())], **OF_NWPU)
    train, val = opened(folder, "train", True), opened(folder, "val", True)
    assert (train.image_id.tolist(), train.width.tolist(), train.height.tolist()) == ([0], [100], [50])
    assert train.boxes(0).tolist() == [[2.5, 5, 25.25, 10.25]]
    assert train.polygons(0)[0][0].round(2).tolist() == [[2.5, 5], [27.5, 5], [27.5, 15], [pytest.approx(2.58), 15]]
    assert train.area.tolist() == [round(101 * 41 / 2 / 16, 2)]
    assert val.boxes(0).tolist() == [[0, 0, 80, 100]]  # inside its image
    assert (folder / "images/002.jpg").read_bytes() == PHOTOGRAPHS["NWPU/positive image set/002.jpg"]
    assert coco.check_images(train) == []
    with Image.open(folder / "images/001.jpg") as image:
        assert image.size == (100, 50)


@pytest.mark.parametrize(
    ("images", "change"), [(3, {}), (2, {"images": OUTLINES["images"][:1]}), (2, {"annotations": [{}]})]
)
def test_photographs_and_outlines_must_fit(converted, images, change):
    options = {"kind": "nwpu", "longest": 100, "images": images, "val": [2]}
    with pytest.raises(DataError, match=r"same \d photographs|not of the form that it had"):
        converted(options, PHOTOGRAPHS, [("outlines.json", json.dumps(OUTLINES | change).encode())], **OF_NWPU)


def nuclei():
    """Four images with two nuclei each, and what they are."""
    generator, members, truth = random.Random(4), {}, {}
    for number in range(4):
        name = f"{number:x}" * 64
        width, height = generator.choice([(24, 16), (20, 20)])
        members[f"fixes-master/stage1_train/{name}/images/{name}.png"] = picture(width, height)
        for place in range(2):
            mask = np.zeros((height, width), np.uint8)
            mask[place * 8 + 1 : place * 8 + 6, number : number + 4 + place] = 255
            out = io.BytesIO()
            Image.fromarray(mask).save(out, "PNG")
            members[f"fixes-master/stage1_train/{name}/masks/{place}.png"] = out.getvalue()
            truth[name[:16], place] = mask > 0
    members["fixes-master/stage1_train/" + "0" * 64 + "/masks/9.png"] = picture(24, 16, shade=0)  # nothing inside
    members["fixes-master/README.rst"] = b"not wanted"
    return members, truth


OF_DSB = {"members": ("*/stage1_train/*/images/*.png", "*/stage1_train/*/masks/*.png"), "strip": 2}


def test_a_mask_an_image_becomes_runs(converted):
    members, truth = nuclei()
    folder = converted({"kind": "dsb2018", "images": 4, "val": 1}, members, **OF_DSB)
    order = [1, 2, 3, 4]
    random.Random(0).shuffle(order)
    sides = [opened(folder, side, True) for side in ("train", "val")]
    assert sides[1].image_id.tolist() == order[:1]
    assert sorted(sides[0].image_id.tolist()) == sorted(order[1:])
    for side in sides:
        for annotation in range(len(side.image)):
            name = str(side.file_name[side.image[annotation]]).removesuffix(".png")
            place = annotation - side.first[side.image[annotation]]
            mask = truth[name, place]
            assert (side.mask(annotation) == mask).all()
            rows, columns = np.nonzero(mask)
            low, high = np.array([columns.min(), rows.min()]), np.array([columns.max(), rows.max()]) + 1
            assert side.box[annotation].tolist() == [*low, *(high - low)]
            assert side.area[annotation] == mask.sum()
    assert sum(len(side.image) for side in sides) == 8
    name = "0" * 64
    whole = members[f"fixes-master/stage1_train/{name}/images/{name}.png"]
    assert (folder / "images" / f"{name[:16]}.png").read_bytes() == whole


def test_another_edition_of_the_nuclei_is_refused(converted):
    members, _ = nuclei()
    with pytest.raises(DataError, match="holds 4 images, not 5: it is another edition"):
        converted({"kind": "dsb2018", "images": 5, "val": 1}, members, **OF_DSB)

"""Detection datasets converted to COCO format keep their images, boxes and masks."""

import io
import json
import random
import zipfile

import numpy as np
import pytest
from PIL import Image

from timetrial.datasets.build import conversions
from timetrial.datasets.build.dataset_builder import DatasetBuilder
from timetrial.datasets.download.worker_pool import WorkerPool
from timetrial.datasets.formats import coco
from timetrial.datasets.registry.catalog import RawFile, Source
from timetrial.runner.core.errors import DataError
from timetrial.runner.core.progress import no_progress


def picture(width, height, kind="PNG", shade=90):
    out = io.BytesIO()
    Image.fromarray(np.full((height, width, 3), shade, dtype=np.uint8)).save(out, kind)
    return out.getvalue()


@pytest.fixture
def converted(tmp_path):
    """Return a function that packs members into a zip, writes other files beside it, and converts them."""

    def convert(options, content, others=(), **facts):
        with zipfile.ZipFile(tmp_path / "raw.zip", "w") as archive:
            for name, data in content.items():
                archive.writestr(name, data)
        for name, data in others:
            (tmp_path / name).write_bytes(data)
        files = (RawFile("raw.zip", **facts), *(RawFile(name) for name, _ in others))
        source = Source("toy", "", "", "", "", "", files, {"images": None}, conversion=options)
        builder = DatasetBuilder(tmp_path / "work", WorkerPool(2, no_progress), lambda num_bytes: None)
        conversions.convert(source, {file.name: tmp_path / file.name for file in files}, builder)
        builder.publish(tmp_path / "set", {}, source.outputs)
        return tmp_path / "set"

    return convert


def read_split(folder, split, masks):
    return coco.read(folder / "annotations" / f"instances_{split}.json", folder / "images", masks=masks)


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
    "B-1/README.md": "not selected",
}
VOC_FILE = {"members": ("*/BCCD/*",), "strip_components": 2}


def test_converts_pascal_voc(converted):
    folder = converted({"format": "bccd"}, VOC, **VOC_FILE)
    train, val = read_split(folder, "train", False), read_split(folder, "val", False)
    assert train.category_name.tolist() == ["RBC", "WBC"]
    assert train.boxes(0).tolist() == [[1, 2, 29, 38], [50, 40, 14, 8]]  # clipped; the box without area is dropped
    assert (train.category.tolist(), train.annotation_id.tolist()) == ([1, 0], [1, 2])
    assert (val.image_id.tolist(), val.boxes(0).tolist()) == ([2], [[0, 0, 30, 20]])
    assert (folder / "images/one.jpg").read_bytes() == VOC["B-1/BCCD/JPEGImages/one.jpg"]
    assert [coco.check_images(split) for split in (train, val)] == [[], []]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"B-1/BCCD/Annotations/two.xml": "<annotation>"}, r"raw\.zip has an unexpected format \(ParseError"),
        ({"B-1/BCCD/Annotations/two.xml": "<a><object/></a>"}, "has no name: remove the archive"),
        ({"B-1/BCCD/ImageSets/Main/val.txt": "three"}, r"has an unexpected format \(KeyError\('three'"),
        ({"B-1/BCCD/JPEGImages/two.jpg": b"no image"}, r"two\.jpg in the archive is not an image"),
        ({"B-1/BCCD/ImageSets/Main/test.txt": ""}, "lists no image"),
    ],
)
def test_rejects_unexpected_content(converted, change, message):
    with pytest.raises(DataError, match=message) as caught:
        converted({"format": "bccd"}, VOC | change, **VOC_FILE)
    assert "\n" not in str(caught.value)


def nwpu_annotation(number, image, box, polygon):
    return {
        "id": number, "image_id": image, "category_id": 2, "bbox": box, "area": box[2] * box[3] / 2, "iscrowd": 0,
        "segmentation": [polygon],
    }  # fmt: skip


NWPU_ANNOTATIONS = {
    "info": {}, "licenses": [],
    "categories": [{"id": 1, "name": "ship"}, {"id": 2, "name": "harbor"}],
    "images": [
        {"id": 0, "file_name": "001.jpg", "width": 400, "height": 200},
        {"id": 1, "file_name": "002.jpg", "width": 80, "height": 100},
    ],
    "annotations": [
        nwpu_annotation(7, 0, [10, 20, 101, 41], [10, 20, 110, 20, 110, 60, 10.333, 60]),
        nwpu_annotation(9, 1, [0, 0, 81, 101], [0, 0, 80.5, 0, 80.5, 100.5]),
    ],
}  # fmt: skip
NWPU_IMAGES = {
    "NWPU/positive image set/001.jpg": picture(400, 200, "JPEG"),
    "NWPU/positive image set/002.jpg": picture(80, 100, "JPEG"),
    "NWPU/negative image set/001.jpg": picture(10, 10, "JPEG"),
}
NWPU_FILE = {"members": ("*positive image set/*.jpg",)}


def test_scales_images_and_annotations_alike(converted):
    options = {"format": "nwpu", "max_edge": 100, "num_images": 2, "val_images": [2]}
    folder = converted(options, NWPU_IMAGES, [("annotations.json", json.dumps(NWPU_ANNOTATIONS).encode())], **NWPU_FILE)
    train, val = read_split(folder, "train", True), read_split(folder, "val", True)
    assert (train.image_id.tolist(), train.width.tolist(), train.height.tolist()) == ([0], [100], [50])
    assert train.boxes(0).tolist() == [[2.5, 5, 25.25, 10.25]]
    assert train.polygons(0)[0][0].round(2).tolist() == [[2.5, 5], [27.5, 5], [27.5, 15], [pytest.approx(2.58), 15]]
    assert train.area.tolist() == [round(101 * 41 / 2 / 16, 2)]
    assert val.boxes(0).tolist() == [[0, 0, 80, 100]]  # inside its image
    assert (folder / "images/002.jpg").read_bytes() == NWPU_IMAGES["NWPU/positive image set/002.jpg"]
    assert coco.check_images(train) == []
    with Image.open(folder / "images/001.jpg") as image:
        assert image.size == (100, 50)


@pytest.mark.parametrize(
    ("num_images", "change"), [(3, {}), (2, {"images": NWPU_ANNOTATIONS["images"][:1]}), (2, {"annotations": [{}]})]
)
def test_rejects_annotations_that_do_not_match_the_images(converted, num_images, change):
    options = {"format": "nwpu", "max_edge": 100, "num_images": num_images, "val_images": [2]}
    with pytest.raises(DataError, match=r"same \d images|has an unexpected format"):
        converted(
            options, NWPU_IMAGES, [("annotations.json", json.dumps(NWPU_ANNOTATIONS | change).encode())], **NWPU_FILE
        )


def nuclei():
    """Return the members of an archive of four images with two nuclei each, and the nuclei's masks."""
    generator, members, truth = random.Random(4), {}, {}
    for number in range(4):
        name = f"{number:x}" * 64
        width, height = generator.choice([(24, 16), (20, 20)])
        members[f"fixes-master/stage1_train/{name}/images/{name}.png"] = picture(width, height)
        for index in range(2):
            mask = np.zeros((height, width), np.uint8)
            mask[index * 8 + 1 : index * 8 + 6, number : number + 4 + index] = 255
            out = io.BytesIO()
            Image.fromarray(mask).save(out, "PNG")
            members[f"fixes-master/stage1_train/{name}/masks/{index}.png"] = out.getvalue()
            truth[name[:16], index] = mask > 0
    members["fixes-master/stage1_train/" + "0" * 64 + "/masks/9.png"] = picture(24, 16, shade=0)  # nothing inside
    members["fixes-master/README.rst"] = b"not selected"
    return members, truth


DSB_FILE = {"members": ("*/stage1_train/*/images/*.png", "*/stage1_train/*/masks/*.png"), "strip_components": 2}


def test_converts_mask_images_to_rle(converted):
    members, truth = nuclei()
    folder = converted({"format": "dsb2018", "num_images": 4, "num_val": 1}, members, **DSB_FILE)
    order = [1, 2, 3, 4]
    random.Random(0).shuffle(order)
    splits = [read_split(folder, split, True) for split in ("train", "val")]
    assert splits[1].image_id.tolist() == order[:1]
    assert sorted(splits[0].image_id.tolist()) == sorted(order[1:])
    for split in splits:
        for annotation in range(len(split.image)):
            name = str(split.file_name[split.image[annotation]]).removesuffix(".png")
            index = annotation - split.first[split.image[annotation]]
            mask = truth[name, index]
            assert (split.mask(annotation) == mask).all()
            rows, columns = np.nonzero(mask)
            low, high = np.array([columns.min(), rows.min()]), np.array([columns.max(), rows.max()]) + 1
            assert split.box[annotation].tolist() == [*low, *(high - low)]
            assert split.area[annotation] == mask.sum()
    assert sum(len(split.image) for split in splits) == 8
    name = "0" * 64
    whole = members[f"fixes-master/stage1_train/{name}/images/{name}.png"]
    assert (folder / "images" / f"{name[:16]}.png").read_bytes() == whole


def test_rejects_another_number_of_images(converted):
    members, _ = nuclei()
    with pytest.raises(DataError, match="contains 4 images, not 5: it is another version"):
        converted({"format": "dsb2018", "num_images": 5, "num_val": 1}, members, **DSB_FILE)

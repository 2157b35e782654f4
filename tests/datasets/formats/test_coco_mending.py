"""COCO files as other tools write them: mended where that is safe, and said."""

import json

import pytest
from PIL import Image

from timetrial.datasets.formats import coco
from timetrial.runner.core.errors import DataError


def write(folder, *, names, files, **left_out):
    (folder / "images").mkdir(parents=True)
    for name in files:
        path = folder / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 48)).save(path)
    images = [{"id": number, "file_name": name, "width": 64, "height": 48} for number, name in enumerate(names)]
    annotation = {"category_id": 1, "bbox": [4, 5, 20, 10], "area": 150, "iscrowd": 0}
    annotation = {key: value for key, value in annotation.items() if key not in left_out.get("keys", ())}
    annotations = [annotation | {"id": number + 1, "image_id": number} for number in range(len(names))]
    document = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "cell"}]}
    (folder / "instances.json").write_text(json.dumps(document))
    return folder / "instances.json", folder / "images"


def test_missing_crowd_and_area_are_taken_from_the_box(tmp_path):
    places = write(tmp_path, names=["a.png"], files=["a.png"], keys=("area", "iscrowd"))
    dataset = coco.read(*places, masks=False)
    assert (dataset.area.tolist(), dataset.crowd.tolist()) == ([200.0], [False])
    assert dataset.mended.tolist() == [
        "annotations without iscrowd, taken as single objects: 1",
        "annotations without area, taken from their box: 1",
    ]
    assert coco.check(*places, files=True) == []
    assert coco.load_prepared(coco.prepare(*places, tmp_path / "cache", masks=False)).mended.tolist() == [
        *dataset.mended.tolist()
    ]


def test_names_are_looked_up_with_slashes_in_any_case_and_folder(tmp_path):
    names = ["day\\a.png", "B.PNG", "old/place/c.png", "d.png"]
    dataset = coco.read(*write(tmp_path, names=names, files=["day/a.png", "b.png", "c.png", "d.png"]), masks=False)
    assert dataset.file_name.tolist() == ["day/a.png", "b.png", "c.png", "d.png"]
    assert dataset.mended.tolist() == [
        "file names with backslashes, read as slashes: 1",
        "file names in another case or folder than their files: 2",
    ]


def test_name_of_two_files_stays_missing(tmp_path):
    places = write(tmp_path, names=["A.png"], files=["one/a.png", "two/a.png"])
    with pytest.raises(DataError, match=r"A\.png is missing: put it back"):
        coco.read(*places, masks=False)


@pytest.mark.parametrize("names", [["a/1.png", "b/1.png"], ["c/1.png", "d/1.png"]])
def test_no_image_stands_in_for_another(tmp_path, names):
    places = write(tmp_path, names=names, files=["b/1.png"])
    with pytest.raises(DataError, match=r"1\.png is missing: put it back"):
        coco.read(*places, masks=False)


def test_missing_image_of_a_folder_stays_missing(tmp_path):
    """As in a folder that both splits share, of which this file lists one."""
    places = write(tmp_path, names=["train/1.png", "train/2.png"], files=["train/2.png", "val/1.png"])
    with pytest.raises(DataError, match=r"train/1\.png is missing: put it back"):
        coco.read(*places, masks=False)


def test_linked_folders_are_read_as_they_are(tmp_path):
    places = write(tmp_path, names=["link/a.png"], files=["real/a.png"])
    (places[1] / "link").symlink_to("real")
    dataset = coco.read(*places, masks=False)
    assert (dataset.file_name.tolist(), dataset.mended.tolist()) == (["link/a.png"], [])


def test_segmentations_are_checked_where_they_are_read(tmp_path):
    places = write(tmp_path, names=["a.png"], files=["a.png"])
    document = json.loads(places[0].read_text())
    document["annotations"][0]["segmentation"] = [[1, 2, 3, 4]]
    places[0].write_text(json.dumps(document))
    assert coco.check(*places, segmentations=False) == []
    assert "polygon of 4 numbers" in coco.check(*places, masks=True)[0]


def test_image_that_exif_turns_is_said(tmp_path):
    places = write(tmp_path, names=["a.jpg"], files=[])
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (48, 64)).save(places[1] / "a.jpg", exif=exif)
    (sentence,) = coco.check(*places, files=True)
    assert "is 48x64 pixels, not 64x48" in sentence
    assert "its EXIF orientation turns it" in sentence

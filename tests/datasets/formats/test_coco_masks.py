"""Masks: equal to pycocotools, exact to the pixel."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from timetrial.datasets.formats import coco, coco_masks

mask_api = pytest.importorskip("pycocotools.mask")
# raised by pycocotools' own `decode` with NumPy 2
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def test_masks_equal_pycocotools(coco_scenes, read_official):
    found, official = coco.read(*coco_scenes, masks=True), read_official(coco_scenes[0])
    assert found.crowd.sum() == 4
    for index, number in enumerate(found.annotation_id.tolist()):
        mask = found.mask(index)
        assert mask.dtype == bool
        assert (mask == official.annToMask(official.anns[number])).all()
        assert found.rle(index) == official.annToRLE(official.anns[number])


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
def test_compressed_rle_equals_pycocotools(tiny_coco, mask):
    height, width = mask.shape
    packed = mask_api.encode(np.asfortranarray(mask.astype(np.uint8)))
    Image.new("RGB", (width, height)).save(tiny_coco.folder / "a.png")
    segmentation = {"size": [height, width], "counts": packed["counts"].decode()}
    entry = tiny_coco.annotation(1, 1, 1, [0, 0, width, height], segmentation=segmentation)
    images, categories = [tiny_coco.image(1, "a.png", width, height)], [{"id": 1, "name": "a"}]
    tiny_coco.found = {"images": images, "annotations": [entry], "categories": categories}
    ours = tiny_coco.read()
    assert (ours.mask(0) == mask).all()
    assert ours.rle(0) == packed


@pytest.mark.parametrize(
    ("height", "width", "share"), [(1, 9, 0.5), (9, 1, 0.5), (7, 12, 0.3), (12, 7, 0.8), (5, 5, 1)]
)
def test_edges_of_rle_are_the_horizontal_borders_of_the_mask(height, width, share):
    mask = np.random.default_rng(height).random((height, width)) < share
    flat = np.concatenate([[False], mask.T.ravel(), [False]])
    runs = np.diff(np.flatnonzero(flat[1:-1] != flat[:-2]), prepend=0, append=mask.size).astype(np.uint32)
    ((edges, last),) = coco_masks.rle_edges(runs, np.array([[0, len(runs)]]), np.array([height]))
    crossed = np.zeros((height + 1, width), int)
    for left, y, right in edges[:, :3].astype(int):
        crossed[y, left:right] += 1
    padded = np.pad(mask, [(1, 1), (0, 0)])
    assert np.array_equal(crossed, padded[1:] != padded[:-1])
    assert (edges[:, 1] == edges[:, 3]).all()
    assert last.tolist() == [False] * (len(edges) - 1) + [True]


@pytest.fixture
def random_masks(monkeypatch):
    """Masks of several sizes, which are read in three parts: their sizes, and themselves as pycocotools' RLE."""
    monkeypatch.setattr(coco_masks, "_RLE_AT_ONCE", 3)
    draws = np.random.default_rng(5)
    sizes = [(1, 9), (9, 1), (7, 12), (12, 7), (5, 5), (30, 40), (8, 3)]
    masks = [draws.random(size) < share for size, share in zip(sizes, np.linspace(0, 1, len(sizes)), strict=True)]
    return np.array(sizes), [mask_api.encode(np.asfortranarray(mask.astype(np.uint8))) for mask in masks]


def test_masks_that_are_read_together_are_those_read_alone(random_masks):
    sizes, packed = random_masks
    rles = [{"size": size.tolist(), "counts": rle["counts"].decode()} for size, rle in zip(sizes, packed, strict=True)]
    rles[1]["counts"] = [9]  # a list among the texts
    rles[3]["counts"], rles[4]["counts"] = rles[3]["counts"] + "P", ""  # a number that does not end, and none
    reported = []
    found = coco_masks.flatten_segmentations(
        rles, sizes, lambda indices, describe: reported.extend(indices.tolist()), required=True
    )
    assert reported == [3, 4]
    valid = [0, 1, 2, 5, 6]
    for index in valid:
        runs = found.runs[slice(*found.run[index].tolist())]
        height, width = sizes[index].tolist()
        again = mask_api.frPyObjects({"size": [height, width], "counts": runs.tolist()}, height, width)
        assert again == (packed[index] if index != 1 else mask_api.encode(np.zeros((9, 1), np.uint8, order="F")))
    together = list(coco_masks.rle_edges(found.runs, found.run[valid], sizes[valid, 0]))
    assert len(together) == len(valid)
    for index, (edges, last) in zip(valid, together, strict=True):
        ((alone, _),) = coco_masks.rle_edges(found.runs, found.run[[index]], sizes[[index], 0])
        assert edges.tolist() == alone.tolist()
        assert np.flatnonzero(last).tolist() == [len(edges) - 1][: len(edges)]


def test_polygons_have_closed_edges():
    triangle, square = (
        np.array(points, np.float32) for points in ([(0, 0), (4, 0), (0, 3)], [(5, 5), (8, 5), (8, 9), (5, 9)])
    )
    edges, last = coco_masks.polygon_edges([triangle, square])
    assert edges.tolist()[2:4] == [[0, 3, 0, 0], [5, 5, 8, 5]]
    assert edges.tolist()[-1] == [5, 9, 5, 5]
    assert np.flatnonzero(last).tolist() == [2, 6]


def test_edges_are_counted_as_they_are_drawn(coco_scenes):
    dataset = coco.read(*coco_scenes, masks=True)
    annotations = range(len(dataset.image))
    assert 0 < (dataset.run[:, 1] > dataset.run[:, 0]).sum() < len(annotations)  # crowds have runs, the others polygons
    drawn = [[len(edges) for edges, _ in dataset.edges(image)] for image in range(len(dataset))]
    assert list(map(len, drawn)) == np.diff(dataset.first).tolist()
    assert dataset.count_edges().tolist() == list(map(sum, drawn))
    assert dataset.rles == [dataset.rle(annotation) for annotation in annotations]

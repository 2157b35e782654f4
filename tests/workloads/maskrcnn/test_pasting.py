"""Pasted masks: against a transcription of the reference pixel by pixel, and resized as PyTorch does."""

import sys

import numpy as np
import pytest
import torch

from timetrial.datasets.formats import coco_masks
from timetrial.runner.core.errors import ConfigurationError
from timetrial.workloads.common.detection.coco_evaluation import processes
from timetrial.workloads.maskrcnn.pasting import paste_masks

mask_api = pytest.importorskip("pycocotools.mask")


@pytest.fixture(scope="module")
def pool():
    with processes(2) as made:
        yield made


def packed(mask):
    return mask_api.encode(np.asfortranarray(mask.astype(np.uint8)))


def blobs(count, generator):
    """Probabilities of objects that nearly fill their boxes, float32 [count, 28, 28]."""
    y, x = (np.mgrid[:28, :28] - 13.5) / 13.5
    reach = np.hypot(x, y)[None] - generator.uniform(0.7, 1.2, (count, 1, 1))
    return (1 / (1 + np.exp(9 * reach + generator.normal(size=(count, 28, 28))))).astype(np.float32)


def transcribed(grid, box, height, width):
    """The reference's way in float64, pixel by pixel: probabilities [height, width], 0 outside of the box."""
    side = len(grid) + 2
    padded = np.zeros((side, side))
    padded[1:-1, 1:-1] = grid
    (left, right), (top, bottom) = (
        [int((low + high) / 2 + sign * (high - low) / 2 * side / len(grid)) for sign in (-1, 1)]
        for low, high in ((box[0], box[2]), (box[1], box[3]))
    )
    wide, high = max(right - left + 1, 1), max(bottom - top + 1, 1)
    made = np.zeros((height, width))
    for y in range(max(top, 0), min(bottom + 1, height)):
        for x in range(max(left, 0), min(right + 1, width)):
            v = max((y - top + 0.5) * side / high - 0.5, 0)
            u = max((x - left + 0.5) * side / wide - 0.5, 0)
            i, j = int(v), int(u)
            below, beside = min(i + 1, side - 1), min(j + 1, side - 1)
            upper = padded[i, j] * (1 - u + j) + padded[i, beside] * (u - j)
            lower = padded[below, j] * (1 - u + j) + padded[below, beside] * (u - j)
            made[y, x] = upper * (1 - v + i) + lower * (v - i)
    return made


BOXES = [
    (10, 8, 30, 22), (3.3, 2.7, 44.6, 36.1), (20, 20, 20, 20), (0, 0, 47, 37), (-9.5, -6.2, 12.7, 50.3),
    (25.2, 15.9, 80.4, 60.3), (5, -20, 9, 70), (30, 1, 46.9, 2.2), (12.5, 30, 12.4, 29.9), (60, 5, 80, 20),
    (-30, -30, -10, -5), (5, 40, 9, 60), (-0.9, -0.9, 0.9, 0.9), (20, 20, 5, 30), (20, 20, 30, 5),
]  # fmt: skip


def test_masks_are_pasted_as_the_reference_does():
    """Inside of the image, across its edges, beside it, of a pixel, of none."""
    grids = blobs(len(BOXES), np.random.default_rng(5))
    pasted = paste_masks(grids, np.array(BOXES), (38, 48))
    filled = []
    for grid, box, mask in zip(grids, BOXES, pasted, strict=True):
        expected, made = transcribed(grid.astype(np.float64), box, 38, 48), coco_masks.unpack(mask)
        clear = abs(expected - 0.5) > 1e-5
        assert clear.mean() > 0.99
        np.testing.assert_array_equal(made[clear], expected[clear] > 0.5)
        assert mask == packed(made)
        filled.append(int(made.sum()))
    assert min(filled[:7]) > 0
    assert filled[9:12] == [0, 0, 0]
    (even,) = paste_masks(np.full((1, 28, 28), 0.5), np.array(BOXES[:1]), (38, 48))
    assert not coco_masks.unpack(even).any()


def test_masks_are_resized_as_torch_does():
    """Also where probabilities are 0 and 1 alone, so that many pixels lie on the threshold."""
    generator = np.random.default_rng(6)
    for side in (29, 30, 45, 60, 61, 90, 133, 240):
        for grid in (blobs(1, generator)[0], (generator.random((28, 28)) < 0.6).astype(np.float32)):
            edge = (side - 1) / 30 * 28
            box = np.array([[5.001, 5.001, 5.001 + edge, 5.001 + edge * 0.7]], np.float32)
            mask = coco_masks.unpack(paste_masks(grid[None], box, (280, 290))[0])
            low, high = (box[0, :2] + box[0, 2:]) / 2, (box[0, 2:] - box[0, :2]) / 2 * np.float32(30 / 28)
            (left, top), (right, bottom) = (low - high).astype(int).tolist(), (low + high).astype(int).tolist()
            padded = torch.nn.functional.pad(torch.from_numpy(grid), (1, 1, 1, 1))[None, None]
            size = (bottom - top + 1, right - left + 1)
            whole = torch.nn.functional.interpolate(padded, size, mode="bilinear", align_corners=False)[0, 0].numpy()
            seen = whole[max(-top, 0) :, max(-left, 0) :]
            made = mask[max(top, 0) : bottom + 1, max(left, 0) : right + 1]
            clear = abs(seen - 0.5) > 1e-6
            np.testing.assert_array_equal(made[clear], seen[clear] > 0.5)


def test_pasting_takes_tensors_halves_and_processes(pool):
    generator = np.random.default_rng(7)
    grids = blobs(1100, generator).astype(np.float16)
    boxes = np.concatenate([generator.uniform(0, 20, (1100, 2)), generator.uniform(20, 50, (1100, 2))], 1)
    sizes = generator.integers(30, 50, (1100, 2))
    expected = paste_masks(grids.astype(np.float32), boxes, sizes)
    assert expected[7]["size"] == sizes[7].tolist()
    assert paste_masks(torch.from_numpy(grids), torch.from_numpy(boxes), torch.from_numpy(sizes)) == expected
    assert paste_masks(grids, boxes, sizes, pool) == expected
    assert paste_masks(grids[:0], boxes[:0], sizes[:0]) == []
    assert paste_masks(np.empty((0, 28, 28)), np.empty((0, 4)), (40, 50)) == []


def test_what_cannot_be_pasted_is_said():
    boxes = np.full((2, 4), 3.0)
    with pytest.raises(ValueError, match="Every mask needs a box of finite numbers"):
        paste_masks(np.ones((3, 28, 28)), boxes, (40, 50))
    boxes[1, 2] = np.nan
    with pytest.raises(ValueError, match="Every mask needs a box of finite numbers"):
        paste_masks(np.ones((2, 28, 28)), boxes, (40, 50))


def test_pasting_without_pycocotools_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    with pytest.raises(ConfigurationError, match="pip install pycocotools"):
        paste_masks(np.ones((1, 28, 28)), np.ones((1, 4)), (40, 50))

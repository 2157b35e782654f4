"""Pasted masks against a pixel-by-pixel transcription of the reference, and against PyTorch's resizing."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from timetrial.datasets.formats import coco_masks
from timetrial.runner.core.errors import ConfigurationError
from timetrial.workloads.maskrcnn import pasting
from timetrial.workloads.maskrcnn.pasting import paste_masks

mask_api = pytest.importorskip("pycocotools.mask")


def encode(mask):
    return mask_api.encode(np.asfortranarray(mask.astype(np.uint8)))


def blobs(count, generator):
    """Return probabilities of objects that nearly fill their boxes, float32 [count, 28, 28]."""
    y, x = (np.mgrid[:28, :28] - 13.5) / 13.5
    distance = np.hypot(x, y)[None] - generator.uniform(0.7, 1.2, (count, 1, 1))
    return (1 / (1 + np.exp(9 * distance + generator.normal(size=(count, 28, 28))))).astype(np.float32)


def paste_pixel_by_pixel(mask, box, height, width):
    """Return the reference's probabilities float64 [height, width], 0 outside of the box."""
    side = len(mask) + 2
    padded = np.zeros((side, side))
    padded[1:-1, 1:-1] = mask
    (left, right), (top, bottom) = (
        [int((low + high) / 2 + sign * (high - low) / 2 * side / len(mask)) for sign in (-1, 1)]
        for low, high in ((box[0], box[2]), (box[1], box[3]))
    )
    box_width, box_height = max(right - left + 1, 1), max(bottom - top + 1, 1)
    pasted = np.zeros((height, width))
    for y in range(max(top, 0), min(bottom + 1, height)):
        for x in range(max(left, 0), min(right + 1, width)):
            v = max((y - top + 0.5) * side / box_height - 0.5, 0)
            u = max((x - left + 0.5) * side / box_width - 0.5, 0)
            i, j = int(v), int(u)
            below, right_cell = min(i + 1, side - 1), min(j + 1, side - 1)
            upper = padded[i, j] * (1 - u + j) + padded[i, right_cell] * (u - j)
            lower = padded[below, j] * (1 - u + j) + padded[below, right_cell] * (u - j)
            pasted[y, x] = upper * (1 - v + i) + lower * (v - i)
    return pasted


BOXES = [
    (10, 8, 30, 22), (3.3, 2.7, 44.6, 36.1), (20, 20, 20, 20), (0, 0, 47, 37), (-9.5, -6.2, 12.7, 50.3),
    (25.2, 15.9, 80.4, 60.3), (5, -20, 9, 70), (30, 1, 46.9, 2.2), (12.5, 30, 12.4, 29.9), (60, 5, 80, 20),
    (-30, -30, -10, -5), (5, 40, 9, 60), (-0.9, -0.9, 0.9, 0.9), (20, 20, 5, 30), (20, 20, 30, 5),
]  # fmt: skip


def test_pastes_masks_as_the_reference_does():
    """Boxes inside the image, across its edges, outside of it, of one pixel and of none."""
    masks = blobs(len(BOXES), np.random.default_rng(5))
    pasted = paste_masks(masks, np.array(BOXES), (38, 48))
    areas = []
    for mask, box, rle in zip(masks, BOXES, pasted, strict=True):
        expected, result = paste_pixel_by_pixel(mask.astype(np.float64), box, 38, 48), coco_masks.decode_rle(rle)
        decided = abs(expected - 0.5) > 1e-5
        assert decided.mean() > 0.99
        np.testing.assert_array_equal(result[decided], expected[decided] > 0.5)
        assert rle == encode(result)
        areas.append(int(result.sum()))
    assert min(areas[:7]) > 0
    assert areas[9:12] == [0, 0, 0]
    (threshold,) = paste_masks(np.full((1, 28, 28), 0.5), np.array(BOXES[:1]), (38, 48))
    assert not coco_masks.decode_rle(threshold).any()


def test_resizes_masks_as_pytorch_does():
    """Includes binary masks, for which many pixels lie on the threshold."""
    generator = np.random.default_rng(6)
    for side in (29, 30, 45, 60, 61, 90, 133, 240):
        for mask in (blobs(1, generator)[0], (generator.random((28, 28)) < 0.6).astype(np.float32)):
            length = (side - 1) / 30 * 28
            box = np.array([[5.001, 5.001, 5.001 + length, 5.001 + length * 0.7]], np.float32)
            pasted = coco_masks.decode_rle(paste_masks(mask[None], box, (280, 290))[0])
            low, high = (box[0, :2] + box[0, 2:]) / 2, (box[0, 2:] - box[0, :2]) / 2 * np.float32(30 / 28)
            (left, top), (right, bottom) = (low - high).astype(int).tolist(), (low + high).astype(int).tolist()
            padded = torch.nn.functional.pad(torch.from_numpy(mask), (1, 1, 1, 1))[None, None]
            size = (bottom - top + 1, right - left + 1)
            resized = torch.nn.functional.interpolate(padded, size, mode="bilinear", align_corners=False)[0, 0].numpy()
            expected = resized[max(-top, 0) :, max(-left, 0) :]
            result = pasted[max(top, 0) : bottom + 1, max(left, 0) : right + 1]
            decided = abs(expected - 0.5) > 1e-6
            np.testing.assert_array_equal(result[decided], expected[decided] > 0.5)


def test_accepts_tensors_and_float16():
    generator = np.random.default_rng(7)
    masks = blobs(1100, generator).astype(np.float16)
    boxes = np.concatenate([generator.uniform(0, 20, (1100, 2)), generator.uniform(20, 50, (1100, 2))], 1)
    sizes = generator.integers(30, 50, (1100, 2))
    expected = paste_masks(masks.astype(np.float32), boxes, sizes)
    assert expected[7]["size"] == sizes[7].tolist()
    assert paste_masks(torch.from_numpy(masks), torch.from_numpy(boxes), torch.from_numpy(sizes)) == expected
    assert paste_masks(masks[:0], boxes[:0], sizes[:0]) == []
    assert paste_masks(np.empty((0, 28, 28)), np.empty((0, 4)), (40, 50)) == []


def test_rejects_masks_without_finite_boxes():
    boxes = np.full((2, 4), 3.0)
    with pytest.raises(ValueError, match=r"Each mask needs a box\."):
        paste_masks(np.ones((3, 28, 28)), boxes, (40, 50))
    boxes[1, 2] = np.nan
    with pytest.raises(ValueError, match="Each mask needs a box of finite numbers"):
        paste_masks(np.ones((2, 28, 28)), boxes, (40, 50))


INTERPRETED = """
import sys
import numpy as np
import torch
from timetrial.workloads.maskrcnn import pasting

sys.path.insert(0, sys.argv[1])
from test_pasting import BOXES, blobs

generator = np.random.default_rng(5)
for height, width in ((38, 48), (24, 31)):
    boxes = torch.tensor(BOXES, dtype=torch.float32)
    masks, sizes = torch.from_numpy(blobs(len(boxes), generator)), torch.tensor([[height, width]] * len(boxes))
    masks[::2] = torch.rand(masks[::2].shape)  # these change many times in a column
    valid = torch.arange(len(boxes)) != 2
    pasted = pasting.paste_by_kernel(masks, boxes, sizes, valid)
    rows = valid.nonzero()[:, 0].numpy()
    expected = pasting.paste_masks(masks[rows], boxes[rows], sizes[rows])
    assert pasted.rles(rows, sizes[rows].numpy()) == expected
    assert len(set(mask["counts"] for mask in expected)) > 7
    half = pasted._replace(changes=pasted.changes[: int(pasted.ends[-1]) // 2])
    assert half.rles(rows, sizes[rows].numpy()) == expected
"""


def test_kernel_equals_numpy(interpret):
    """Exactly, across the edges of the image, in the whole height of it, and with more changes than there is room."""
    interpret(INTERPRETED, str(Path(__file__).parent))


LARGE = """
import torch
from sparse_tensors import sparse_zeros
from timetrial.workloads.maskrcnn import pasting

count, side = 2**22, 28
masks, counts = sparse_zeros(count, side, side, dtype=torch.float32), sparse_zeros(count, dtype=torch.int64)
masks[-1] = 1.0
corners = torch.tensor([[2, 3, 8, 9]], dtype=torch.int32).expand(count, 4).contiguous()
pasting._paste[(count,)](
    probabilities_ptr=masks, corners_ptr=corners, image_sizes_ptr=torch.full((count, 2), 20), counts_ptr=counts,
    ends_ptr=counts, changes_ptr=corners, capacity=count, SIDE=side, BLOCK=1024, WRITE=False,
)
assert counts[-1] == 2 * 7  # two for each column of the box
"""


def test_offsets_beyond_32_bits(interpret_last_program):
    interpret_last_program(LARGE)


@pytest.mark.integration
@pytest.mark.parametrize("capability", [75, 80, 90])
@pytest.mark.parametrize("write", [False, True])
def test_kernel_compiles_for_gpus(compile_for_gpu, capability, write):
    types = {"probabilities_ptr": "*fp32", "corners_ptr": "*i32", "changes_ptr": "*i32"}
    types |= dict.fromkeys(("image_sizes_ptr", "counts_ptr", "ends_ptr"), "*i64")
    constants = {"SIDE": 28, "BLOCK": pasting._BLOCK, "WRITE": write}
    compile_for_gpu(pasting._paste, capability, types, constants)


def test_encodes_runs_as_pycocotools_does():
    """Runs of one to five characters, and masks that are empty, full, or begin with a pixel."""
    generator = np.random.default_rng(8)
    sizes = np.array([[3000, 5000], [4, 5], [4, 5], [4, 5], [700, 900], [1, 1]])
    changes = [np.unique(10 ** generator.uniform(0, 7.17, 400)), [], [0], [0, 19], np.arange(0, 630_000, 7), [0]]
    ends = np.cumsum([len(part) for part in changes])
    encoded = pasting._encode(np.concatenate(changes).astype(np.int32), ends - [len(c) for c in changes], ends, sizes)
    for rle, part, size in zip(encoded, changes, sizes.tolist(), strict=True):
        runs = np.diff(np.asarray(part, np.int64), prepend=0, append=size[0] * size[1]).tolist()
        assert rle == mask_api.frPyObjects({"size": size, "counts": runs}, *size)


def test_reports_missing_pycocotools(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    with pytest.raises(ConfigurationError, match="pip install pycocotools"):
        paste_masks(np.ones((1, 28, 28)), np.ones((1, 4)), (40, 50))

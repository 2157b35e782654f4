"""Mask R-CNN's crops: pixels, boxes and outlines agree, and padding is empty."""

import itertools
import json

import numpy as np
import pytest
import torch
from PIL import Image

from timetrial.datasets.formats import coco
from timetrial.datasets.synthetic import detection
from timetrial.datasets.synthetic.detection import DetectionSpec
from timetrial.workloads.common.detection.data import CocoSource
from timetrial.workloads.common.vision.pipeline import ImageDataset
from timetrial.workloads.maskrcnn.data import MaskRCNNData
from timetrial.workloads.maskrcnn.masks import SIDE, Outlines, mask_targets
from timetrial.workloads.maskrcnn.transforms import PAD_COLOR, TrainTransform, canvas_size, scaled_size


def test_batch_is_padded_with_the_mean_color_and_with_empty_boxes(maskrcnn_data):
    data = maskrcnn_data()
    color = torch.tensor(PAD_COLOR, dtype=torch.uint8)[:, None]
    most_edges = 0
    for batch in itertools.chain(*data.train_batches(1)):
        pixels, sizes, boxes, labels, outlines = batch.inputs
        assert pixels.is_contiguous(memory_format=torch.channels_last)
        assert (labels.shape, boxes.shape) == ((len(pixels), data.max_boxes), (len(pixels), data.max_boxes, 4))
        exists = labels > 0
        assert exists.any(1).all()
        assert (labels <= 3).all()
        assert torch.equal(outlines.begin.diff() > 0, exists.flatten())
        assert len(outlines.edges) == len(outlines.last) == len(pixels) * data.max_edges
        most_edges = max(most_edges, int(outlines.begin.diff().view(len(pixels), -1).sum(1).max()))
        assert (boxes[~exists] == 0).all()
        assert (boxes[exists][:, 2:] >= boxes[exists][:, :2]).all()
        assert (boxes >= 0).all()
        assert (boxes <= sizes.flip(1).repeat(1, 2)[:, None] - 1).all()
        for image, (height, width) in zip(pixels, sizes.tolist(), strict=True):
            assert (image[:, height:].flatten(1) == color).all()
            assert (image[:, :, width:].flatten(1) == color).all()
    assert most_edges == data.max_edges


def flip_pair(dataset, number):
    """The crops of an image without and with a flip, and its pixels on their canvas."""
    found, images = {}, dataset.source.dataset
    height, width = int(images.height[number]), int(images.width[number])
    pixels = torch.from_numpy(np.array(Image.open(images.path(number)).convert("RGB")))
    for epoch in range(40):
        crop = dataset.crop(number, height, width, epoch)
        found[crop.flipped] = crop, dataset.transform.cpu(pixels, crop)
    return found[False], found[True]


def test_flipped_image_has_flipped_boxes_outlines_and_pixels(maskrcnn_data):
    data = maskrcnn_data()
    for number in range(0, len(data.train_set), 5):
        (plain, pixels), (turned, flipped) = flip_pair(data.build_dataset(True), number)
        (height, width), boxes, labels, edges, last, counts = plain.targets
        assert torch.equal(pixels[:height, :width], flipped[:height, :width].flip(1))
        left, top, right, bottom = boxes[labels > 0].T
        turned_boxes = np.stack([width - right - 1, top, width - left - 1, bottom], 1)
        np.testing.assert_allclose(turned.targets[1][labels > 0], turned_boxes.clip(0), atol=1e-4)
        turned_edges = [width - 1, 0, width - 1, 0] + edges * [-1, 1, -1, 1]  # the reference's: a pixel to the left
        np.testing.assert_allclose(turned.targets[3], turned_edges, atol=1e-4)
        for one, other in zip((labels, last, counts), (turned.targets[2], *turned.targets[4:]), strict=True):
            assert np.array_equal(one, other)


def stretched(mask, height, width):
    """A mask's pixels of another size, the nearest ones."""
    rows = ((np.arange(height) + 0.5) * mask.shape[0] / height).astype(int)
    columns = ((np.arange(width) + 0.5) * mask.shape[1] / width).astype(int)
    return mask[rows][:, columns]


def filled(crop, height, width):
    """The masks of a crop's objects as pixels [objects, height, width], tile by tile."""
    labels, edges, last, counts = crop.targets[2:]
    outlines = Outlines(
        torch.from_numpy(edges), torch.from_numpy(last), torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
    )
    objects, rows, columns = int((labels > 0).sum()), -(-height // SIDE), -(-width // SIDE)
    tiles = torch.cartesian_prod(torch.arange(objects), torch.arange(rows), torch.arange(columns))
    corner = tiles[:, [2, 1]] * float(SIDE)
    made = mask_targets(outlines, tiles[:, 0], torch.cat([corner, corner + SIDE], 1)).bool()
    made = made.view(objects, rows, columns, SIDE, SIDE).transpose(2, 3).reshape(objects, rows * SIDE, columns * SIDE)
    made = made[:, :height, :width].numpy()
    return np.roll(made, 1, 2) if crop.flipped else made  # flipped outlines lie a pixel left of the pixels


def compare(dataset, numbers):
    """Outlines and boxes with the set's masks; returns how many objects there were."""
    compared, images = 0, dataset.source.dataset
    for number in numbers:
        for crop, _ in flip_pair(dataset, number):
            height, width = crop.targets[0].tolist()
            places = images.annotations_of(number)
            for annotation, mine, box in zip(
                range(places.start, places.stop), filled(crop, height, width), crop.targets[1], strict=False
            ):
                mask = stretched(images.mask(annotation), height, width)
                mask = mask[:, ::-1] if crop.flipped else mask
                if mask.sum() < 60:
                    continue
                assert (mask & mine).sum() / (mask | mine).sum() > 0.9
                rows, columns = (np.flatnonzero(mine.any(axis)) for axis in (1, 0))
                np.testing.assert_allclose(box, [columns[0], rows[0], columns[-1], rows[-1]], atol=2)
                compared += 1
    return compared


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # pycocotools, under NumPy 2
def test_outlines_and_boxes_are_where_the_masks_are(maskrcnn_data):
    data = maskrcnn_data()
    assert compare(data.build_dataset(True), range(0, len(data.train_set), 4)) > 15


def test_bright_shapes_lie_inside_their_outlines(maskrcnn_data):
    """Pixels against outlines, without the set's own masks."""
    scenes = {"num_train": 24, "num_val": 4, "num_classes": 3, "max_objects": 2, "seed": 6}
    data = maskrcnn_data(generate=DetectionSpec(**scenes, high_contrast=True))
    for number in range(0, len(data.train_set), 6):
        for crop, pixels in flip_pair(data.build_dataset(True), number):
            height, width = crop.targets[0].tolist()
            bright = pixels[:height, :width].amax(2).numpy() > 115
            mine = filled(crop, height, width).any(0)
            if mine.sum() > 200:
                assert bright[mine].mean() > 0.85
                assert bright[~mine].mean() < 0.15


def test_rle_masks_are_traced_with_their_holes(tmp_path):
    """A set whose masks are runs, some of them rings, in two parts, or up to the image's edge."""
    generator, images, annotations = np.random.default_rng(1), [], []
    for number in range(8):
        height, width = (int(edge) for edge in generator.integers(50, 90, 2))
        y, x = np.mgrid[:height, :width]
        far = np.hypot(y - height / 2, x - width / 2)
        masks = [(far < 22) & (far > 9), (far < 12) | (x < 8), (y > height - 9) | (x > width - 9) & (y % 20 > 7)]
        Image.fromarray(generator.integers(256, size=(height, width, 3), dtype=np.uint8)).save(
            tmp_path / f"{number}.jpg"
        )
        images.append({"id": number, "file_name": f"{number}.jpg", "height": height, "width": width})
        for mask in masks:
            made = detection._annotation(detection.SceneObject(0, True, mask), number, len(annotations) + 1)
            annotations.append(made | {"iscrowd": 0})
    categories = [{"id": 1, "name": "ring", "supercategory": "shape"}]
    text = json.dumps({"images": images, "annotations": annotations, "categories": categories})
    (tmp_path / "set.json").write_text(text)
    found = coco.read(tmp_path / "set.json", tmp_path, masks=True)
    assert (found.run[:, 1] > found.run[:, 0]).all()
    assert compare(ImageDataset(CocoSource(found), TrainTransform(100, 150, 3, 999), 0), range(8)) == 48


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((480, 640), (800, 1066)), ((640, 480), (1066, 800)), ((427, 640), (800, 1199)), ((800, 800), (800, 800)),
        ((360, 640), (750, 1333)), ((375, 500), (800, 1066)), ((100, 640), (208, 1331)), ((51, 2000), (34, 1333)),
        ((1, 5000), (1, 1333)),
    ],
)  # fmt: skip
def test_sizes_are_those_of_the_reference(size, expected):
    assert scaled_size(*size, 800, 1333) == expected
    assert canvas_size(800, 1333, True) == (800, 1344)
    assert canvas_size(800, 1333, False) == (1344, 800)


def test_rejects_edges_out_of_order():
    with pytest.raises(ValueError, match="short_edge must be 32 or more"):
        MaskRCNNData.Settings(short_edge=200, long_edge=100)

"""Mask R-CNN's batches from sets on disk: the same for any number of ranks; pixels, boxes and outlines agree."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
import torch
from PIL import Image

from timetrial.datasets.formats import coco
from timetrial.datasets.synthetic import detection
from timetrial.datasets.synthetic.detection import DetectionSpec
from timetrial.runner.config.validation import build_settings, validate
from timetrial.runner.core.errors import DataError
from timetrial.runner.training import seeds
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.common.detection.data import CocoSource, synthetic_coco_set
from timetrial.workloads.common.manifest import write_manifest
from timetrial.workloads.common.vision.pipeline import ImageDataset
from timetrial.workloads.maskrcnn.data import MaskRCNNData
from timetrial.workloads.maskrcnn.masks import SIDE, Outlines, mask_targets
from timetrial.workloads.maskrcnn.synthetic import SyntheticMaskRCNNData
from timetrial.workloads.maskrcnn.transforms import PAD_COLOR, TrainTransform, canvas_size, scaled_size

WHOLE = BatchSharding()
CPU = torch.device("cpu")
EDGES = {"short_edge": 90, "long_edge": 130}
SCENES = {"num_train": 40, "num_val": 11, "num_classes": 3, "max_objects": 3, "seed": 5}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("scenes")


def maskrcnn_data(place, sharding=WHOLE, batch=6, workers=0, **changes):
    settings = MaskRCNNData.Settings(
        train_images=f"{place}/scenes/train", cache_dir=f"{place}/prepared", workers=workers, **EDGES,
        **{"generate": DetectionSpec(**SCENES), "eval_batch_size": 4} | changes,
    )  # fmt: skip
    MaskRCNNData.prepare_data(settings, lambda *progress: None)
    data = MaskRCNNData(settings, global_batch_size=batch, sharding=sharding, device=CPU, seeds=seeds.derive_streams(3))
    data.open()
    return data


def joined(batches):
    """The four tensors of micro-batches, and each object's outline: edges and which are last."""
    *tensors, ragged = zip(*(batch.inputs for batch in batches), strict=True)
    tensors, outlines = [torch.cat(parts) for parts in tensors], []
    for edges, last, begin in ragged:
        assert begin[0] == 0
        assert begin[-1] <= len(edges) == len(last)
        outlines += [(edges[a:b].tolist(), last[a:b].tolist()) for a, b in itertools.pairwise(begin.tolist())]
    assert len(outlines) == tensors[3].numel()
    return tensors, outlines


def test_ranks_micro_batches_and_workers_split_the_same_global_batches(place):
    whole = [joined(step) for step in maskrcnn_data(place).train_batches(2)]
    split = [maskrcnn_data(place, BatchSharding(rank, 2, 2), workers=rank) for rank in range(2)]
    assert 0 < len(whole) == split[0].steps_per_epoch
    for (tensors, outlines), *parts in zip(whole, *(data.train_batches(2) for data in split), strict=True):
        together, theirs = joined(itertools.chain(*parts))
        assert all(torch.equal(one, other) for one, other in zip(tensors, together, strict=True))
        assert theirs == outlines
        assert {batch.global_samples for part in parts for batch in part} == {len(tensors[0])}
    first, second = (maskrcnn_data(place).train_plan(epoch) for epoch in (1, 2))
    assert first != second


@pytest.mark.parametrize("sharding", [WHOLE, BatchSharding(1, 3, 2)], ids=["alone", "many"])
@pytest.mark.parametrize("batch", [6, 7])
def test_steps_are_full_wide_or_not_and_have_every_image(place, batch, sharding):
    """No image is dropped on many ranks; the last step of each shape repeats the first images of its order."""
    ranks = [maskrcnn_data(place, dataclasses.replace(sharding, rank=rank), batch) for rank in range(sharding.ranks)]
    wide = ranks[0].train_set.is_wide()
    steps_per_epoch = -(-int(wide.sum()) // batch) - (-int((~wide).sum()) // batch)
    for epoch in (1, 2):
        plans = [data.train_plan(epoch) for data in ranks]
        seen = []
        for number in range(steps_per_epoch):
            places = slice(number * sharding.accumulation, (number + 1) * sharding.accumulation)
            step = [index for plan in plans for part in plan[places] for index in part]
            assert len(step) == len(set(step)) == batch
            assert len(set(wide[step])) == 1
            seen += step
        assert sorted(set(seen)) == list(range(len(wide)))
        assert len(seen) - len(wide) < 2 * batch
    assert (ranks[0].train_size, ranks[0].steps_per_epoch) == (len(wide), steps_per_epoch)


def test_rejects_fewer_images_than_micro_batches(place):
    with pytest.raises(DataError, match="train on fewer GPUs"):
        maskrcnn_data(place, BatchSharding(0, 50, 1), 64)


@pytest.mark.parametrize(("wide", "updates"), [(80_000, 7330), (90_000, 7330), (80_001, 7331)])
def test_reference_epoch_has_the_updates_of_the_reference(compose, tmp_path, wide, updates):
    """117,266 // 16 + 1 = 7,330, or one more if both shapes have a rest; constructing needs the manifest alone."""
    recipe = validate(compose("workload=maskrcnn", "scale=reference", "round=v07", f"data_dir={tmp_path}")).recipe
    settings = build_settings(MaskRCNNData, recipe.data, "recipe.data")
    counts = {"train_size": 117_266, "eval_size": 5000, "num_classes": 80, "max_boxes": 93, "dropped": 2}
    counts |= {"wide": wide, "eval_wide": 3700, "max_edges": 900}
    write_manifest(MaskRCNNData._manifest_path(settings), counts)
    sizes = {"global_batch_size": recipe.global_batch_size, "sharding": BatchSharding(0, 8, 1)}
    data = MaskRCNNData(settings, **sizes, device=CPU, seeds=seeds.derive_streams(3))
    assert (data.train_size, data.eval_size, data.steps_per_epoch) == (117_266, 5000, updates)


@pytest.mark.integration
def test_no_data_file_is_opened_before_the_clock_starts(data_files_opened_before_run_start):
    scenes = "{num_train: 6, num_val: 3, num_classes: 2, max_objects: 1}"
    small = [f"recipe.data.generate={scenes}", "recipe.global_batch_size=2", "recipe.first_eval_epoch=1"]
    assert data_files_opened_before_run_start(["workload=maskrcnn", *small]) == []


def test_wide_and_other_batches_are_shuffled(place):
    orders = set()
    data = maskrcnn_data(place)
    for epoch in range(1, 9):
        orders.add(tuple(data.train_set.is_wide()[part[0]] for part in data.train_plan(epoch)))
    assert len(orders) > 1


def test_every_image_is_evaluated_once_on_its_canvas(place):
    seen = []
    for rank in range(2):
        data = maskrcnn_data(place, BatchSharding(rank, 2, 1))
        for pixels, sizes, numbers in (batch.inputs for batch in data.eval_batches()):
            assert len(numbers) <= 4
            assert {pixels.shape[2:]} == {canvas_size(90, 130, data.val_set.is_wide()[number]) for number in numbers}
            assert pixels.is_contiguous(memory_format=torch.channels_last)
            for size, number in zip(sizes.tolist(), numbers, strict=True):
                assert tuple(size) == scaled_size(data.val_set.height[number], data.val_set.width[number], 90, 130)
            seen += numbers.tolist()
    assert sorted(seen) == list(range(data.eval_size)) == list(range(11))
    assert len(data.train_set) < 40  # images without boxes are evaluated, but not trained on
    assert data.val_set.crowd.sum() + maskrcnn_data(place).truth.crowd.sum() > 0
    assert not data.train_set.crowd.any()


def test_sets_are_counted_once(tmp_path, monkeypatch):
    settings, counted = maskrcnn_data(tmp_path).settings, []
    count = MaskRCNNData._count
    monkeypatch.setattr(MaskRCNNData, "_count", lambda *sets: counted.append(sets) or count(*sets))
    MaskRCNNData.prepare_data(settings, lambda *progress: None)
    assert not counted
    manifest = MaskRCNNData._manifest_path(settings)
    for text in (manifest.read_text().replace('"version": "1"', '"version": "0"'), "damaged"):
        before = manifest.read_text()
        manifest.write_text(text)
        MaskRCNNData.prepare_data(settings, lambda *progress: None)
        assert manifest.read_text() == before
    assert len(counted) == 2


@pytest.mark.parametrize("batch_size", [2, 4, 64])
def test_warm_up_knows_every_shape_of_the_evaluation(place, batch_size):
    """Also that of the last batch of either canvas; convolutions are tuned for each."""
    data = maskrcnn_data(place, eval_batch_size=batch_size)
    warm = list(data.warm_up_eval_batches())
    shapes = [batch.inputs[0].shape for batch in warm]
    assert len(shapes) == len(set(shapes))
    assert {batch.inputs[0].shape for batch in data.eval_batches()} <= set(shapes)


def test_batch_is_padded_with_the_mean_color_and_with_empty_boxes(place):
    data = maskrcnn_data(place)
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


def test_flipped_image_has_flipped_boxes_outlines_and_pixels(place):
    data = maskrcnn_data(place)
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
def test_outlines_and_boxes_are_where_the_masks_are(place):
    data = maskrcnn_data(place)
    assert compare(data.build_dataset(True), range(0, len(data.train_set), 4)) > 15


def test_bright_shapes_lie_inside_their_outlines(place):
    """Pixels against outlines, without the set's own masks."""
    scenes = {"num_train": 24, "num_val": 4, "num_classes": 3, "max_objects": 2, "seed": 6}
    data = maskrcnn_data(place, generate=DetectionSpec(**scenes, high_contrast=True))
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


@pytest.mark.parametrize("sharding", [WHOLE, BatchSharding(1, 2, 2)], ids=["alone", "many"])
def test_synthetic_batches_have_the_shapes_of_real_ones(place, sharding):
    chosen = SyntheticMaskRCNNData.Settings(
        **EDGES, train_count=26, val_count=11, boxes=3, classes=5, eval_batch_size=4
    )
    made = SyntheticMaskRCNNData(
        chosen, global_batch_size=8, sharding=sharding, device=CPU, seeds=seeds.derive_streams(3)
    )
    made.open()
    assert (made.train_size, made.steps_per_epoch) == (26, 4)
    real = maskrcnn_data(place, sharding, batch=8)
    for data in (made, real):
        steps = [[batch.weight for batch in step] for step in made.train_batches(1)]
        assert len(steps) == made.steps_per_epoch
        for batch in itertools.chain.from_iterable(data.warm_up_steps()):
            pixels, sizes, boxes, labels, outlines = batch.inputs
            wide = pixels.shape[3] > pixels.shape[2]
            assert pixels.shape == (
                8 / (sharding.ranks * sharding.accumulation),
                3,
                *((96, 160) if wide else (160, 96)),
            )
            assert labels.min() >= 1
            masks = mask_targets(outlines, torch.arange(labels.numel()), boxes.flatten(0, 1))
            assert masks.mean() > 0.8  # a rectangle fills its box, whose widths are inclusive: 9 of 10 pixels at worst
            assert torch.equal(sizes, torch.tensor([[90, 120] if wide else [120, 90]] * len(pixels)))
        # A set of both kinds is prepared for both.
        canvases = {(96, 160)} if data is made else {(96, 160), (160, 96)}
        full = [batch for batch in data.warm_up_eval_batches() if not batch.is_partial]
        for batches in (itertools.chain.from_iterable(data.warm_up_steps()), full):
            assert {batch.inputs[0].shape[2:] for batch in batches} == canvases
        assert [part.shape[1:] for part in next(data.warm_up_eval_batches()).inputs] == [(3, 96, 160), (2,), ()]
    share_of = sharding.shard(11)
    numbers = torch.cat([batch.inputs[2] for batch in made.eval_batches()])
    assert numbers.tolist() == list(range(share_of.start, share_of.stop))


def test_one_pixel_box_is_not_trained_on():
    whole = synthetic_coco_set(images=2, boxes=2, classes=1)
    whole.box[:, 2:] = [[1.0, 9.0], [1.1, 9.0], [9.0, 1.0], [0.5, 0.5]]
    seen = MaskRCNNData.select_images(whole, True)
    assert (seen.image_id.tolist(), seen.annotation_id.tolist()) == ([0], [2])
    assert len(MaskRCNNData.select_images(whole, False).box) == 4

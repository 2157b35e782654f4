"""Mask R-CNN's batches from sets on disk: the same for any number of ranks, and in the shapes of the warm-up."""

import dataclasses
import itertools

import pytest
import torch

from timetrial.runner.config.validation import build_settings, validate
from timetrial.runner.core.errors import DataError
from timetrial.runner.training import seeds
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.common.detection.data import synthetic_coco_set
from timetrial.workloads.common.manifest import write_manifest
from timetrial.workloads.maskrcnn.data import MaskRCNNData
from timetrial.workloads.maskrcnn.masks import mask_targets
from timetrial.workloads.maskrcnn.synthetic import SyntheticMaskRCNNData
from timetrial.workloads.maskrcnn.transforms import canvas_size, scaled_size

WHOLE = BatchSharding()
CPU = torch.device("cpu")
EDGES = {"short_edge": 90, "long_edge": 130}
SCENES = {"num_train": 40, "num_val": 11, "num_classes": 3, "max_objects": 3, "seed": 5}


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


def test_ranks_micro_batches_and_workers_split_the_same_global_batches(maskrcnn_data):
    whole = [joined(step) for step in maskrcnn_data().train_batches(2)]
    split = [maskrcnn_data(BatchSharding(rank, 2, 2), workers=rank) for rank in range(2)]
    assert 0 < len(whole) == split[0].steps_per_epoch
    for (tensors, outlines), *parts in zip(whole, *(data.train_batches(2) for data in split), strict=True):
        together, theirs = joined(itertools.chain(*parts))
        assert all(torch.equal(one, other) for one, other in zip(tensors, together, strict=True))
        assert theirs == outlines
        assert {batch.global_samples for part in parts for batch in part} == {len(tensors[0])}
    first, second = (maskrcnn_data().train_plan(epoch) for epoch in (1, 2))
    assert first != second


@pytest.mark.parametrize("sharding", [WHOLE, BatchSharding(1, 3, 2)], ids=["alone", "many"])
@pytest.mark.parametrize("batch", [6, 7])
def test_steps_are_full_wide_or_not_and_have_every_image(maskrcnn_data, batch, sharding):
    """No image is dropped on many ranks; the last step of each shape repeats the first images of its order."""
    ranks = [maskrcnn_data(dataclasses.replace(sharding, rank=rank), batch) for rank in range(sharding.ranks)]
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


def test_rejects_fewer_images_than_micro_batches(maskrcnn_data):
    with pytest.raises(DataError, match="train on fewer GPUs"):
        maskrcnn_data(BatchSharding(0, 50, 1), 64)


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


def test_wide_and_other_batches_are_shuffled(maskrcnn_data):
    orders = set()
    data = maskrcnn_data()
    for epoch in range(1, 9):
        orders.add(tuple(data.train_set.is_wide()[part[0]] for part in data.train_plan(epoch)))
    assert len(orders) > 1


def test_every_image_is_evaluated_once_on_its_canvas(maskrcnn_data):
    seen = []
    for rank in range(2):
        data = maskrcnn_data(BatchSharding(rank, 2, 1))
        for pixels, sizes, numbers in (batch.inputs for batch in data.eval_batches()):
            assert len(numbers) <= 4
            assert {pixels.shape[2:]} == {canvas_size(90, 130, data.val_set.is_wide()[number]) for number in numbers}
            assert pixels.is_contiguous(memory_format=torch.channels_last)
            for size, number in zip(sizes.tolist(), numbers, strict=True):
                assert tuple(size) == scaled_size(data.val_set.height[number], data.val_set.width[number], 90, 130)
            seen += numbers.tolist()
    assert sorted(seen) == list(range(data.eval_size)) == list(range(11))
    assert len(data.train_set) < 40  # images without boxes are evaluated, but not trained on
    assert data.val_set.crowd.sum() + maskrcnn_data().truth.crowd.sum() > 0
    assert not data.train_set.crowd.any()


def test_sets_are_counted_once(tmp_path, monkeypatch, maskrcnn_data):
    settings, counted = maskrcnn_data(folder=tmp_path).settings, []
    count = MaskRCNNData._count
    monkeypatch.setattr(MaskRCNNData, "_count", lambda *sets: counted.append(sets) or count(*sets))
    MaskRCNNData.prepare_data(settings, lambda *progress: None)
    assert not counted
    manifest = MaskRCNNData._manifest_path(settings)
    for text in (manifest.read_text().replace('"version": "2"', '"version": "1"'), "damaged"):
        before = manifest.read_text()
        manifest.write_text(text)
        MaskRCNNData.prepare_data(settings, lambda *progress: None)
        assert manifest.read_text() == before
    assert len(counted) == 2


@pytest.mark.parametrize("batch_size", [2, 4, 64])
def test_warm_up_knows_every_shape_of_the_evaluation(maskrcnn_data, batch_size):
    """Also that of the last batch of either canvas; convolutions are tuned for each."""
    data = maskrcnn_data(eval_batch_size=batch_size)
    warm = list(data.warm_up_eval_batches())
    shapes = [batch.inputs[0].shape for batch in warm]
    assert len(shapes) == len(set(shapes))
    assert {batch.inputs[0].shape for batch in data.eval_batches()} <= set(shapes)


@pytest.mark.parametrize("sharding", [WHOLE, BatchSharding(1, 2, 2)], ids=["alone", "many"])
def test_synthetic_batches_have_the_shapes_of_real_ones(maskrcnn_data, sharding):
    chosen = SyntheticMaskRCNNData.Settings(
        **EDGES, train_count=26, val_count=11, boxes=3, classes=5, eval_batch_size=4
    )
    made = SyntheticMaskRCNNData(
        chosen, global_batch_size=8, sharding=sharding, device=CPU, seeds=seeds.derive_streams(3)
    )
    made.open()
    assert (made.train_size, made.steps_per_epoch) == (26, 4)
    real = maskrcnn_data(sharding, batch=8)
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

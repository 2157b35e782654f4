"""SSD's batches from a set on disk: the same for any number of ranks, with boxes where the objects are."""

import itertools

import numpy as np
import pytest
import torch

from timetrial.datasets.synthetic.detection import DetectionSpec
from timetrial.runner.core.errors import DataError
from timetrial.runner.training import seeds
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.ssd.data import SSDData

SIZE = 64
WHOLE = BatchSharding()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("scenes")


def ssd_data(place, sharding=WHOLE, batch=8, workers=0, **changes):
    settings = SSDData.Settings(
        train_images=f"{place}/scenes/train", cache_dir=f"{place}/prepared", image_size=SIZE, workers=workers,
        generate=DetectionSpec(num_train=32, num_val=9, num_classes=3, max_objects=3, seed=5), eval_batch_size=4,
        **changes,
    )  # fmt: skip
    device = torch.device("cpu")
    SSDData.prepare_data(settings, lambda *progress: None)
    data = SSDData(settings, global_batch_size=batch, sharding=sharding, device=device, seeds=seeds.derive_streams(3))
    data.open()
    return data


def tensors(batches):
    return [torch.cat(parts) for parts in zip(*(batch.inputs for batch in batches), strict=True)]


def test_ranks_micro_batches_and_workers_split_the_same_global_batches(place):
    whole = [tensors(step) for step in ssd_data(place).train_batches(2)]
    split = [ssd_data(place, BatchSharding(rank, 2, 2), workers=rank) for rank in range(2)]
    for step, *parts in zip(whole, *(data.train_batches(2) for data in split), strict=True):
        together = tensors(itertools.chain(*parts))
        assert all(torch.equal(one, other) for one, other in zip(step, together, strict=True))
        assert {batch.global_samples for part in parts for batch in part} == {len(step[0])}
    first, second = (next(iter(ssd_data(place).train_batches(epoch)))[0].inputs[0] for epoch in (1, 2))
    assert not torch.equal(first, second)


def test_every_image_with_a_box_is_trained_on_and_evaluated_once(place):
    data = ssd_data(place)
    order = list(itertools.chain(*data.train_plan(1)))
    assert sorted(order[: data.train_size]) == list(range(len(data.train_set)))
    assert [batch.weight for step in data.train_batches(1) for batch in step] == [8] * 4
    assert 28 <= data.train_size < 32
    numbers = torch.cat([batch.inputs[1] for batch in data.eval_batches()])
    assert sorted(numbers.tolist()) == list(range(data.eval_size))
    shares = [ssd_data(place, BatchSharding(rank, 2, 1)).eval_batches() for rank in range(2)]
    assert sorted(torch.cat([b.inputs[1] for share in shares for b in share]).tolist()) == list(range(data.eval_size))


def test_every_crop_has_a_box_inside(place):
    data = ssd_data(place)
    for step in data.train_batches(1):
        for batch in step:
            pixels, boxes, labels = batch.inputs
            assert pixels.shape[1:] == (3, SIZE, SIZE)
            assert ((boxes >= 0) & (boxes <= 1)).all()
            assert (labels <= 3).all()
            exists = labels > 0
            assert exists.any(1).all()
            assert (boxes[..., 2:] > boxes[..., :2]).all(2)[exists].all()
            assert (boxes[~exists] == 0).all()


def test_flipped_crop_has_flipped_boxes(place, monkeypatch):
    """The same crop with either flip: pixels and boxes are flipped too."""
    data = ssd_data(place)
    dataset = data.build_dataset(True)
    pixels = torch.arange(30 * 40 * 3, dtype=torch.int64).view(30, 40, 3).remainder(256).to(torch.uint8)
    monkeypatch.setattr("timetrial.workloads.ssd.color_jitter.jitter_image", lambda pixels, factors, order: pixels)
    found = {}
    height, width = int(data.train_set.height[0]), int(data.train_set.width[0])
    for epoch in range(40):
        crop = dataset.crop(0, height, width, epoch)
        if crop.box == (0, 0, height, width):
            found[crop.flipped] = crop._replace(box=(0, 0, 30, 40))
    one, other = (found[flipped] for flipped in (False, True))
    assert torch.equal(dataset.transform.cpu(pixels, one), dataset.transform.cpu(pixels, other).flip(1))
    real = one.targets[1] > 0
    boxes, flipped = (crop.targets[0][real] for crop in (one, other))
    np.testing.assert_allclose(flipped, np.stack([1 - boxes[:, 2], boxes[:, 1], 1 - boxes[:, 0], boxes[:, 3]], 1))


def test_image_of_another_size_is_named(place):
    data = ssd_data(place)
    path = data.train_set.path(0)
    kept = path.read_bytes()
    try:
        path.write_bytes(data.train_set.path(1).read_bytes())
        with pytest.raises(DataError, match=r"pixels, not .* says of image 1"):
            list(data.train_batches(1))
    finally:
        path.write_bytes(kept)


def test_half_of_the_crops_are_flipped_and_color_factors_span_the_references_ranges(place):
    data = ssd_data(place)
    dataset, height, width = data.build_dataset(True), int(data.train_set.height[0]), int(data.train_set.width[0])
    drawn = [dataset.crop(0, height, width, epoch) for epoch in range(2000)]
    assert np.mean([crop.flipped for crop in drawn]) == pytest.approx(0.5, abs=0.04)
    factors = np.array([crop.params[0] for crop in drawn])
    np.testing.assert_allclose(factors.min(0), [0.875, 0.5, 0.5, -0.05], atol=2e-3)
    np.testing.assert_allclose(factors.max(0), [1.125, 1.5, 1.5, 0.05], atol=2e-3)

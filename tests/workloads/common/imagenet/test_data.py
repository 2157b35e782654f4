"""What all ImageNet loaders share: the order of an epoch, and its split over ranks and micro-batches."""

import collections
import gc
import itertools
import math
import multiprocessing
import time

import numpy as np
import pytest
import torch

from timetrial.datasets.formats.imagenet import ImageSet
from timetrial.datasets.synthetic.images import ClassificationSpec
from timetrial.runner.core.errors import ConfigurationError, DataError
from timetrial.runner.training import seeds
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.common.imagenet.synthetic import SyntheticImageNetData
from timetrial.workloads.common.imagenet.torch_loader import TorchImageNetData

CPU = torch.device("cpu")


@pytest.fixture
def build(tmp_path):
    def built(*, kind=TorchImageNetData, sharding=None, batch=12, seed=1, form="folders", **changed):
        shapes = ClassificationSpec(5, 5, 3, 40, layout=form)  # 25 and 15 images
        chosen = {"folder": str(tmp_path / "shapes"), "generate": shapes, "image_size": 32, "eval_batch_size": 4}
        chosen |= {"workers": 0, "cache_dir": str(tmp_path / "prepared")} | changed
        kind.prepare_data(kind.Settings(**chosen), lambda *progress: None)
        data = kind(
            kind.Settings(**chosen),
            global_batch_size=batch,
            sharding=sharding or BatchSharding(),
            device=CPU,
            seeds=seeds.derive_streams(seed),
        )
        data.open()
        return data

    return built


def synthetic(*, batch=12, sharding=None, **changed):
    chosen = {"folder": "nowhere", "image_size": 32, "eval_batch_size": 4, "train_images": 25, "val_images": 15}
    data = SyntheticImageNetData(
        SyntheticImageNetData.Settings(**chosen | {"classes": 7} | changed),
        global_batch_size=batch,
        sharding=sharding or BatchSharding(),
        device=CPU,
        seeds=seeds.derive_streams(1),
    )
    data.open()
    return data


def pixels(batches):
    return torch.cat([batch.inputs[0] for batch in batches])


def labels(batches):
    return torch.cat([batch.inputs[1] for batch in batches])


def steps(data, epoch=1):
    """Pixels and labels of every step's micro-batches."""
    return [(pixels(step), labels(step)) for step in data.train_batches(epoch)]


def same(first, second):
    pairs = zip(itertools.chain(*first), itertools.chain(*second), strict=True)
    return all(torch.equal(left, right) for left, right in pairs)


def test_epoch_has_every_image_once_and_is_padded_from_its_start_to_full_steps(build):
    plan = build().train_plan(1)
    assert [len(indices) for indices in plan] == [12, 12, 12]
    order = list(itertools.chain(*plan))
    assert sorted(order[:25]) == list(range(25))
    assert order[25:] == order[:11]
    assert torch.cat([part for _, part in steps(build())[:2]]).bincount(minlength=5).max() <= 5


def test_order_and_crops_depend_on_seed_and_epoch_only(build):
    one = steps(build())
    assert same(steps(build()), one)
    assert not same(steps(build(), 2), one)
    assert not same(steps(build(seed=2)), one)
    assert build().train_plan(1) != build().train_plan(2)
    assert build().train_plan(1) != build(seed=2).train_plan(1)


def test_image_is_cropped_differently_in_each_epoch(build):
    first, second = (build().build_dataset(True).encoded_batch(epoch, range(25)) for epoch in (1, 2))
    assert torch.equal(first.data, second.data)
    assert (first.boxes != second.boxes).any(1).float().mean() > 0.9
    assert 0.2 < (first.flipped != second.flipped).float().mean() < 0.8


def test_decoder_is_selected_and_logged(build):
    assert (
        build().mlperf_params()["timetrial_decoder"]
        == build(decoder="workers").mlperf_params()["timetrial_decoder"]
        == "workers"
    )
    with pytest.raises(ConfigurationError, match="decoder=gpu needs an NVIDIA GPU and custom kernels: use workers"):
        build(decoder="gpu")


def test_batches_do_not_depend_on_worker_processes(build):
    alone, helped = build(), build(workers=2)
    for epoch in (1, 2):
        assert same(steps(helped, epoch), steps(alone, epoch))
    assert torch.equal(pixels(helped.eval_batches()), pixels(alone.eval_batches()))


def test_worker_processes_end_with_their_loader_even_in_a_garbage_cycle(build, monkeypatch):
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 600)  # it waits for a process
    before = set(multiprocessing.active_children())
    helped = build(workers=2)
    next(iter(steps := helped.train_batches(1)))
    assert len(set(multiprocessing.active_children()) - before) == 4  # two to train, two to evaluate
    helped.itself = helped, steps
    del helped, steps
    started = time.monotonic()
    gc.collect()
    assert time.monotonic() - started < 300  # else they were not told and are waited for
    assert not set(multiprocessing.active_children()) - before


def test_aborted_epoch_leaves_no_batches_for_the_next(build):
    helped = build(workers=2)
    aborted = iter(helped.train_batches(1))
    next(aborted)
    following = helped.train_batches(2)
    first = next(iter(following))
    del aborted
    assert same([(pixels(step), labels(step)) for step in (first, *following)], steps(build(), 2))
    assert same(steps(helped, 2), steps(build(), 2))


def test_first_batches_of_an_epoch_are_requested_in_the_one_before(build, monkeypatch):
    data, planned = build(workers=2), []
    plan_of = data.train_plan
    monkeypatch.setattr(data, "train_plan", lambda epoch: planned.append(epoch) or plan_of(epoch))
    for epoch in (1, 2):
        assert same(steps(data, epoch), steps(build(), epoch))
        assert planned == [*range(1, epoch + 3)]  # 3 batches an epoch, 4 ahead, and never started over


@pytest.mark.parametrize(("ranks", "accumulation"), [(1, 3), (2, 1), (2, 2), (3, 1)])
def test_ranks_and_micro_batches_split_one_global_batch(build, ranks, accumulation):
    whole = steps(build(batch=11))  # parts of different sizes
    shares = [
        list(build(batch=11, sharding=BatchSharding(rank, ranks, accumulation)).train_batches(1))
        for rank in range(ranks)
    ]
    assert [len(share) for share in shares] == [3] * ranks
    for number, (expected, classes) in enumerate(whole):
        together = [batch for share in shares for batch in share[number]]
        assert len(together) == ranks * accumulation
        assert torch.equal(pixels(together), expected)
        assert torch.equal(labels(together), classes)
        assert {(batch.global_samples, batch.global_weight) for batch in together} == {(len(classes),) * 2}
        assert [batch.weight for batch in together] == [len(batch.inputs[1]) for batch in together]


@pytest.mark.parametrize(("ranks", "accumulation"), [(1, 1), (2, 1), (3, 2), (12, 1)])
def test_no_image_is_dropped_and_every_step_is_full_on_any_number_of_ranks(build, ranks, accumulation):
    plans = [build(sharding=BatchSharding(rank, ranks, accumulation)).train_plan(1) for rank in range(ranks)]
    sizes = np.array([[len(indices) for indices in plan] for plan in plans]).reshape(ranks, 3, accumulation)
    assert sizes.sum((0, 2)).tolist() == [12, 12, 12]
    trained = collections.Counter(itertools.chain(*itertools.chain(*plans)))
    assert sorted(trained.values()) == [1] * 14 + [2] * 11


def test_batch_larger_than_the_dataset_is_the_dataset(build):
    data = build(batch=40)
    assert (data.steps_per_epoch, len(data.train_plan(1))) == (1, 1)
    assert sorted(*data.train_plan(1)) == list(range(25))


def test_rejects_fewer_images_than_micro_batches(build):
    with pytest.raises(DataError, match="25 training images are too few for 26 micro-batches"):
        build(batch=40, sharding=BatchSharding(0, 13, 2))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_evaluation_has_every_image_once(build, ranks):
    shares = [build(sharding=BatchSharding(rank, ranks)) for rank in range(ranks)]
    numbers = itertools.chain(*itertools.chain(*(share.eval_plan() for share in shares)))
    assert list(numbers) == list(range(15))
    batches = [batch for share in shares for batch in share.eval_batches()]
    assert torch.equal(pixels(batches), pixels(build(eval_batch_size=15).eval_batches()))
    assert labels(batches).bincount().tolist() == [3] * 5
    assert {batch.global_samples for batch in batches} == {15}


@pytest.mark.parametrize(("most", "sizes"), [(4, [4, 4, 4, 3]), (5, [5, 5, 5]), (15, [15]), (99, [15])])
def test_evaluation_batches_have_the_requested_size_except_the_last(build, most, sizes):
    assert [len(batch.inputs[1]) for batch in build(eval_batch_size=most).eval_batches()] == sizes


def test_some_ranks_have_no_batch_if_there_are_more_ranks_than_images(build):
    shares = [build(batch=20, sharding=BatchSharding(rank, 20)) for rank in range(20)]
    assert sorted(len(list(share.eval_batches())) for share in shares) == [0] * 5 + [1] * 15


def test_pixels_are_uint8_in_channels_last_format(build):
    for batch in (next(iter(build().train_batches(1)))[0], next(iter(build().eval_batches()))):
        content, classes = batch.inputs
        assert (content.dtype, content.shape[1:], classes.dtype) == (torch.uint8, (3, 32, 32), torch.int64)
        assert content.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("sharding", [BatchSharding(), BatchSharding(1, 2, 2)])
def test_synthetic_batches_have_the_shapes_of_real_ones(build, sharding):
    for data in (build(sharding=sharding), synthetic(sharding=sharding)):
        for real, made in zip(
            next(iter(build(sharding=sharding).train_batches(1))), next(data.warm_up_steps()), strict=True
        ):
            assert [part.shape for part in made.inputs] == [part.shape for part in real.inputs]
            assert [part.stride() for part in made.inputs] == [part.stride() for part in real.inputs]
            assert [part.dtype for part in made.inputs] == [part.dtype for part in real.inputs]
            assert (made.weight, made.global_samples) == (real.weight, real.global_samples)
        real, made = next(iter(build(sharding=sharding).eval_batches())), next(data.warm_up_eval_batches())
        assert [part.shape for part in made.inputs] == [part.shape for part in real.inputs]


@pytest.mark.parametrize("sharding", [BatchSharding(), BatchSharding(1, 2, 2)])
def test_warm_up_knows_every_shape_of_the_evaluation(build, sharding):
    """Also that of the last batch; convolutions are tuned for each."""
    data = build(sharding=sharding)
    warm = list(data.warm_up_eval_batches())
    assert {len(batch.inputs[0]) for batch in data.eval_batches()} == {len(batch.inputs[0]) for batch in warm}


def test_synthetic_loader_yields_full_batches_in_every_epoch():
    data = synthetic()
    assert (data.train_size, data.eval_size, data.num_classes, data.image_size) == (25, 15, 7, 32)
    for epoch in (1, 2, 1000):
        batches = list(data.train_batches(epoch))
        assert len(batches) == data.steps_per_epoch == 3
        assert {batch.inputs[0].shape for step in batches for batch in step} == {(12, 3, 32, 32)}
    assert [batch.inputs[0].shape for batch in data.eval_batches()] == [(4, 3, 32, 32)] * 4
    classes = next(synthetic(train_images=4000, batch=2000).warm_up_steps())[0].inputs[1]
    assert classes.unique().tolist() == list(range(7))


def test_synthetic_loader_defaults_to_the_size_of_imagenet():
    settings = SyntheticImageNetData.Settings(folder="nowhere")
    assert (settings.train_images, settings.val_images, settings.classes) == (1_281_167, 50_000, 1000)


@pytest.mark.parametrize("form", ["folders", "tfrecord", "webdataset"])
def test_construction_reads_no_image_and_logs_the_data_form(build, form, monkeypatch):
    monkeypatch.setattr(ImageSet, "read", None)
    data = build(form=form)
    assert (data.train_size, data.eval_size, data.num_classes) == (25, 15, 5)
    assert data.steps_per_epoch == math.ceil(25 / 12)
    assert data.mlperf_params() == {
        "timetrial_loader": "torch", "timetrial_data_form": form, "timetrial_image_size": 32,
        "timetrial_decoder": "workers",
    }  # fmt: skip


def test_all_data_forms_give_the_same_batches(build):
    one = build(form="folders")
    for form in ("tfrecord", "webdataset"):
        other = build(form=form)
        assert same(steps(other), steps(one))
        assert torch.equal(pixels(other.eval_batches()), pixels(one.eval_batches()))


def test_rejects_missing_folder(build, tmp_path):
    with pytest.raises(DataError, match=r"nowhere/train is missing"):
        build(folder=str(tmp_path / "nowhere"), generate=None)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"image_size": 31}, "image_size must be 32 or more"),
        ({"eval_batch_size": 0}, "eval_batch_size 1 or more"),
        ({"min_crop_area": 0.0}, "min_crop_area must be above 0"),
        ({"min_crop_area": 1.1}, "min_crop_area must be above 0"),
        ({"workers": -1}, "workers 0 or more"),
    ],
)
def test_rejects_invalid_settings(changed, words):
    for kind in (TorchImageNetData, SyntheticImageNetData):
        with pytest.raises(ValueError, match=words):
            kind.Settings(folder="nowhere", **changed)


@pytest.mark.parametrize("name", ["classes", "train_images", "val_images"])
def test_rejects_empty_synthetic_set(name):
    with pytest.raises(ValueError, match="must be 1 or more"):
        SyntheticImageNetData.Settings(folder="nowhere", **{name: 0})

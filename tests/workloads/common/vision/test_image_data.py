"""What image data do before the clock starts, and what they read ahead."""

import itertools
import threading

import psutil
import pytest
import torch

from timetrial.datasets.synthetic.detection import DetectionSpec
from timetrial.datasets.synthetic.images import ClassificationSpec
from timetrial.runner.callbacks.throughput import LimitedBatches
from timetrial.runner.training import seeds
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.common.imagenet.torch_loader import TorchImageNetData
from timetrial.workloads.common.vision import decode_workers, image_data
from timetrial.workloads.common.vision.pipeline import GpuDecoder
from timetrial.workloads.maskrcnn.data import MaskRCNNData
from timetrial.workloads.maskrcnn.synthetic import SyntheticMaskRCNNData
from timetrial.workloads.ssd.data import SSDData

CPU = torch.device("cpu")


def build(data_class, place, /, workers=0, **settings):
    chosen = data_class.Settings(cache_dir=f"{place}/prepared", eval_batch_size=4, workers=workers, **settings)
    data_class.prepare_data(chosen, lambda *progress: None)
    sharding = BatchSharding(0, 1, 2)
    return data_class(chosen, global_batch_size=8, sharding=sharding, device=CPU, seeds=seeds.derive_streams(1))


def detection(data_class, folder, **settings):
    scenes = DetectionSpec(num_train=12, num_val=6, num_classes=3, max_objects=3, seed=5)
    return build(data_class, folder, train_images=f"{folder}/scenes/train", generate=scenes, **settings)


BUILD = {
    "classification": lambda folder: build(
        TorchImageNetData, folder, folder=f"{folder}/shapes", image_size=32, generate=ClassificationSpec(3, 5, 2, 48)
    ),
    "ssd": lambda folder: detection(SSDData, folder, image_size=64),
    "maskrcnn": lambda folder: detection(MaskRCNNData, folder, short_edge=64, long_edge=96),
}


def shapes(batch):
    """Of the targets and parameters of each image, and the number of images."""
    same = [tensor.shape for tensor in batch.targets if len(tensor) == len(batch.lengths)]
    return same, [param.shape for param in batch.params], len(batch.lengths)


@pytest.mark.parametrize("kind", BUILD)
def test_decoders_are_warmed_up_on_batches_like_the_real_ones(kind, tmp_path, monkeypatch):
    data = BUILD[kind](tmp_path)
    warmed = []
    monkeypatch.setattr(data, "build_decoder", lambda transform, train: GpuDecoder(transform, CPU))
    monkeypatch.setattr(GpuDecoder, "warm_up", lambda decoder, batch: warmed.append(batch))
    list(data.warm_up_steps())
    data.open()
    real = [data.build_dataset(train).encoded_batch(1, [0, 1, 2, 3]) for train in (True, False)]
    assert [shapes(batch) for batch in warmed] == [shapes(batch) for batch in real]


@pytest.mark.parametrize("times_algorithms", [False, True])
def test_decoders_start_beside_the_steps_unless_these_are_timed(times_algorithms, tmp_path, monkeypatch):
    data, begun = BUILD["classification"](tmp_path), threading.Event()

    def fail():
        assert times_algorithms or begun.wait(60)
        raise RuntimeError("no engine")

    monkeypatch.setattr(torch.backends.cudnn, "benchmark", times_algorithms)
    monkeypatch.setattr(data, "_warm_up_decoders", fail)
    monkeypatch.setattr(data, "random_steps", lambda: (begun.set(), iter([["step"]]))[1])
    with pytest.raises(RuntimeError, match="no engine"):
        list(data.warm_up_steps())
    assert begun.is_set() != times_algorithms


def test_synthetic_images_need_no_decoder(tmp_path, monkeypatch):
    settings = {"train_count": 12, "val_count": 6, "boxes": 2, "classes": 3}
    data = build(SyntheticMaskRCNNData, tmp_path, short_edge=64, long_edge=96, **settings)
    monkeypatch.setattr(data, "build_decoder", None)
    list(data.warm_up_steps())


@pytest.mark.parametrize(("decodes", "requested", "processes"), [(True, None, 2), (False, None, 9), (True, 5, 5)])
def test_few_processes_read_few_images(decodes, requested, processes, tmp_path, monkeypatch):
    """Each takes milliseconds to start; images that they decode themselves need all of them."""
    started = []
    monkeypatch.setattr(decode_workers.os, "sched_getaffinity", lambda pid: range(9))
    monkeypatch.setattr(image_data, "ImageLoader", lambda *, workers, **_: started.append(workers))
    data = build(
        TorchImageNetData,
        tmp_path,
        folder=f"{tmp_path}/shapes",
        image_size=32,
        generate=ClassificationSpec(3, 20, 2, 48),
    )
    data.settings.workers = requested
    monkeypatch.setattr(data, "build_decoder", lambda transform, train: GpuDecoder(transform, CPU) if decodes else None)
    data.start_processes()
    assert (data.train_size, started) == (60, [processes, 2])


@pytest.fixture
def opened(tmp_path):
    """Images that a number of processes read: 6 for the evaluation, in batches of 4 and 2."""

    def open_with(workers):
        images = ClassificationSpec(3, 5, 2, 48)
        data = build(
            TorchImageNetData, tmp_path, folder=f"{tmp_path}/shapes", image_size=32, generate=images, workers=workers
        )
        data.open()
        return data

    return open_with


@pytest.mark.integration
def test_processes_start_before_the_data_are_opened(tmp_path):
    images = ClassificationSpec(3, 5, 2, 48)
    data = build(TorchImageNetData, tmp_path, folder=f"{tmp_path}/shapes", image_size=32, generate=images, workers=2)
    before = set(psutil.Process().children())
    data.start_processes()
    started = set(psutil.Process().children()) - before
    data.open()
    assert len(list(data.train_batches(1))) == data.steps_per_epoch
    assert eval_pixels(data).shape == (6, 3, 32, 32)
    assert len(started) == 4
    assert set(psutil.Process().children()) - before == started


@pytest.mark.integration
def test_engine_is_built_with_its_processes(build_engine):
    before = set(psutil.Process().children())
    engine = build_engine("workload=resnet50", "recipe.data.workers=2")
    started = set(psutil.Process().children()) - before
    engine.open_data()
    next(iter(engine.data.train_batches(1)))
    assert started
    assert set(psutil.Process().children()) - before == started


def eval_pixels(data):
    return torch.cat([batch.inputs[0] for batch in data.eval_batches()])


def test_evaluations_are_read_ahead(opened, monkeypatch):
    data, planned, expected = opened(2), [], eval_pixels(opened(0))
    plan = data.eval_plan
    monkeypatch.setattr(data, "eval_plan", lambda: planned.append(None) or plan())
    for evaluation in (1, 2, 3):
        assert torch.equal(eval_pixels(data), expected)
        # Each counts its 2 batches. The first requests them and, 4 ahead, those of two more evaluations.
        assert len(planned) == 2 * evaluation + 2


def test_first_evaluation_is_read_during_the_first_epoch(opened, monkeypatch):
    data, planned, expected = opened(2), [], eval_pixels(opened(0))
    plan = data.eval_plan
    monkeypatch.setattr(data, "eval_plan", lambda: planned.append(None) or plan())
    steps = iter(data.train_batches(1))
    next(steps)
    assert not planned  # the first training batch is not delayed
    next(steps)
    assert len(planned) == 2  # 4 batches ahead
    list(steps)
    assert torch.equal(eval_pixels(data), expected)


def test_aborted_evaluation_leaves_no_batches_for_the_next(opened):
    data = opened(2)
    aborted = iter(data.eval_batches())
    next(aborted)
    del aborted
    assert torch.equal(eval_pixels(data), eval_pixels(opened(0)))


def test_rank_without_evaluation_images_plans_nothing(opened, monkeypatch):
    data, plans = opened(0), [[]]
    monkeypatch.setattr(data, "eval_plan", lambda: plans.pop())  # a second time, it fails
    assert list(image_data._eval_plans(data, 1)) == []


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_blocks_of_throughput_are_read_ahead(steps, opened, monkeypatch):
    data, begun, plans = opened(2), [], image_data._train_plans
    evaluations, eval_plans = [], image_data._eval_plans
    monkeypatch.setattr(
        data._batch_source._eval, "_plans", lambda data, number: evaluations.append(number) or eval_plans(data, number)
    )
    monkeypatch.setattr(
        data._batch_source._train, "_plans", lambda data, epoch: begun.append(epoch) or plans(data, epoch)
    )
    limited, blocks = LimitedBatches(data, steps), []
    for block in (1, 2, 3):
        begun_evaluations = len(evaluations)
        blocks.append(list(limited.train_batches(block)))
        assert len(evaluations) <= max(begun_evaluations, 1)  # an evaluation that begins would delay the block
        assert len(list(limited.eval_batches())) == min(steps, 2)
    assert list(map(len, blocks)) == [min(steps, 2)] * 3
    assert begun == [1]
    undivided = itertools.chain.from_iterable(opened(0).train_batches(epoch) for epoch in (1, 2, 3))
    for step, same_step in zip(itertools.chain.from_iterable(blocks), undivided, strict=False):
        for batch, same in zip(step, same_step, strict=True):
            assert torch.equal(batch.inputs[0], same.inputs[0])

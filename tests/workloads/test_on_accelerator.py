"""What only an accelerator can show: fused kernels, steps that never wait, whole runs. `pytest -m gpu`."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torchvision.ops import roi_align

from timetrial.datasets.synthetic.detection import DetectionSpec
from timetrial.runner.config import schema
from timetrial.runner.core.errors import Exit
from timetrial.runner.hardware import devices
from timetrial.runner.launch import worker
from timetrial.runner.launch.launcher import launch
from timetrial.runner.training import seeds
from timetrial.runner.training.distributed import World
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.common.detection.nms import batched_nms
from timetrial.workloads.common.imagenet.torch_loader import TorchImageNetData
from timetrial.workloads.maskrcnn import kernels as maskrcnn_kernels
from timetrial.workloads.maskrcnn import masks
from timetrial.workloads.ssd.data import SSDData

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator here"),
    pytest.mark.filterwarnings("default"),
]


@pytest.mark.parametrize("samples", [150_000, 2_000])  # tables projected; rows looked up first
@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 0.12), (torch.float16, 0.05)])
def test_ncf_gradients_are_those_of_a_float64_transcription(samples, dtype, bound, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "ncf"))
    test = pytest.importorskip("test_model")
    device = torch.accelerator.current_accelerator()
    model = test.NeuMF(20_000, 5_000, 64, (256, 256, 128, 64))
    with torch.no_grad():
        for table in (model.gmf_user, model.gmf_item, model.mlp_user, model.mlp_item):
            table.weight.mul_(30)
    batch = test.make_batch(samples, 20_000, 5_000)
    expected, gradients = test.oracle(model, *batch[:3])
    model.to(device)
    found = []
    for _ in range(2):
        model.zero_grad()
        with torch.autocast(device.type, dtype=dtype):
            loss = model(*(tensor.to(device) for tensor in batch))
        (loss * 1e-6).backward()  # a scale that fp16 gradients would not survive
        found.append({name: value.grad.cpu() * 1e6 for name, value in model.named_parameters()})
    assert test.relative_error(loss.cpu(), expected) < 1e-3
    for name, value in found[0].items():
        assert test.relative_error(value, gradients[name]) < bound, name
        assert torch.equal(value, found[1][name]), name
    sys.modules.pop("test_model", None)


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 2e-3), ("bf16", 0.05), ("fp16", 0.02)])
@pytest.mark.parametrize("words", [("workload=gnmt",), ("workload=transformer", "recipe.training.hidden_size=128")])
def test_translators_gradients_are_those_of_the_processor(words, precision, bound, compose, tmp_path):
    """Packed LSTMs, attention's and the loss's kernels against dense float64; dropout is off."""
    device, grown = torch.accelerator.current_accelerator(), []
    for place, kind in ((torch.device("cpu"), "fp32"), (torch.device(device.type, 0), precision)):
        chosen = [*words, "recipe.training.dropout=0", f"precision={kind}", f"data_dir={tmp_path}"]
        engine = worker.build_engine(schema.check(compose(*chosen)), World(), place)
        wide = engine.unwrapped_model.double() if place.type == "cpu" else engine.unwrapped_model
        (batch,) = next(iter(engine.data.train_batches(1)))
        with engine.precision.autocast():
            loss = engine.workload.compute_loss(wide, batch)
        lift = 1024.0 if kind == "fp16" else 1.0  # what loss scaling is for
        (loss * (lift / batch.weight)).backward()
        gradients = {name: weight.grad.double().cpu() / lift for name, weight in wide.named_parameters()}
        grown.append((loss.item(), gradients))
    (expected, right), (found, ours) = grown
    assert found == pytest.approx(expected, rel=5e-3)
    for name, gradient in right.items():
        assert (ours[name] - gradient).norm() <= bound * gradient.norm() + 1e-6, name


@pytest.mark.parametrize("decoder", ["gpu", "workers"])
def test_images_from_the_card_are_those_of_the_processor(tmp_path, decoder):
    """Whole chroma, which decoders spread alike; one image is progressive, which engines refuse."""
    generator = np.random.default_rng(1)
    for number in range(70):
        small = Image.fromarray(generator.integers(256, size=(6, 8, 3), dtype=np.uint8))
        path = tmp_path / ("train" if number < 60 else "val") / str(number % 2) / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = small.resize(
            (int(generator.integers(90, 300)), int(generator.integers(90, 300))), Image.Resampling.BICUBIC
        )
        whole.save(path, quality=95, subsampling=0, progressive=number == 7)
    cards, processors = (
        TorchImageNetData(
            TorchImageNetData.Settings(str(tmp_path), image_size=64, eval_batch_size=7, workers=2, decoder=chosen),
            global_batch_size=16,
            sharding=BatchSharding(),
            device=torch.device(kind),
            seeds=seeds.derive_streams(1),
        )
        for kind, chosen in (("cuda:0", decoder), ("cpu", None))
    )
    batches = [[*itertools.chain(*data.train_batches(1)), *data.eval_batches()] for data in (cards, processors)]
    for mine, theirs in zip(*batches, strict=True):
        assert torch.equal(mine.inputs[1].cpu(), theirs.inputs[1])
        difference = (mine.inputs[0].cpu().float() - theirs.inputs[0].float()).abs()
        assert difference.mean() < (1 if decoder == "gpu" else 1e-9)
        assert difference.amax((1, 2, 3)).max() < 40


def test_photographs_from_the_card_are_those_of_the_processor(tmp_path):
    """Crops, mirrors, antialiasing and colours, on chroma that decoders spread in their own ways."""
    chosen = {"train_images": f"{tmp_path}/scenes/train", "cache_dir": f"{tmp_path}/prepared", "image_size": 96}
    scenes = DetectionSpec(num_train=40, num_val=9, num_classes=3, max_objects=3, width_range=(200, 400), height_range=(150, 300), seed=5)
    cards, processors = (
        SSDData(
            SSDData.Settings(**chosen, generate=scenes, eval_batch_size=4, workers=1),
            global_batch_size=8,
            sharding=BatchSharding(),
            device=torch.device(kind),
            seeds=seeds.derive_streams(1),
        )
        for kind in ("cuda:0", "cpu")
    )
    batches = [[*itertools.chain(*data.train_batches(1)), *data.eval_batches()] for data in (cards, processors)]
    for mine, theirs in zip(*batches, strict=True):
        assert all(torch.equal(a.cpu(), b) for a, b in zip(mine.inputs[1:], theirs.inputs[1:], strict=True))
        difference = (mine.inputs[0].cpu().float() - theirs.inputs[0].float()).abs()
        assert difference.mean() < 2


def boxes_of(count, edge=1300):
    random = np.random.default_rng(count)
    low = random.uniform(0, edge - 10, (count, 2))
    extent = np.exp(random.uniform(1.5, 6, (count, 2)))
    return torch.from_numpy(np.concatenate([low, np.minimum(low + extent, edge)], 1)).float()


def test_boxes_are_suppressed_as_the_processor_does():
    device = torch.accelerator.current_accelerator()
    boxes = torch.stack([boxes_of(2000), boxes_of(1999)[torch.arange(2000) % 1999]])
    counts = torch.tensor([2000, 1500])
    for overlap in (0.3, 0.7):
        found = batched_nms(boxes.to(device), overlap, counts.to(device), pixel_offset=1.0).cpu()
        expected = batched_nms(boxes, overlap, counts, pixel_offset=1.0)
        assert (found != expected).sum() <= 2  # overlaps at the very bound may round either way


def test_mask_rcnn_pools_as_torchvision_does():
    device = torch.accelerator.current_accelerator()
    maps = [torch.randn(2, 32, 320 // scale, 448 // scale, device=device, requires_grad=True) for scale in (1, 2, 4, 8)]
    found, image = boxes_of(300, 1280).to(device), torch.arange(300, device=device) % 2
    flat = torch.cat([image[:, None].float(), found], 1)
    levels = torch.arange(300, device=device) // 2 % 4
    scales = torch.tensor([1 / 4, 1 / 8, 1 / 16, 1 / 32], device=device)
    given = torch.randn(300, 32, 7, 7, device=device)
    pooled = maskrcnn_kernels.roi_align(maps, scales, flat, levels.int(), 7)
    gradients = torch.autograd.grad(pooled, maps, given)
    expected = torch.zeros_like(pooled)
    for level, (x, scale) in enumerate(zip(maps, scales.tolist(), strict=True)):
        some = (levels == level).nonzero()[:, 0]
        expected = expected.index_copy(0, some, roi_align(x, flat[some], 7, scale, 2, aligned=False))
    torch.testing.assert_close(pooled, expected, rtol=1e-4, atol=1e-4)
    for mine, theirs in zip(gradients, torch.autograd.grad(expected, maps, given), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


def test_mask_rcnn_draws_masks_as_the_processor_does():
    device = torch.accelerator.current_accelerator()
    random = np.random.default_rng(1)
    points = torch.from_numpy(random.uniform(0, 200, (40, 12, 2))).float()
    edges = torch.cat([points, points.roll(-1, 1)], 2).flatten(0, 1)
    last = (torch.arange(12) % 6 == 5).repeat(40)
    outlines = masks.Outlines(edges, last, torch.arange(41) * 12)
    objects, where = torch.arange(160) % 40, boxes_of(160, 200)
    expected = masks.mask_targets(outlines, objects, where)
    found = masks.mask_targets(masks.Outlines(*(part.to(device) for part in outlines)), objects.to(device), where.to(device))
    assert (found.cpu() != expected).double().mean() < 1e-3  # middles of pixels on an edge


@pytest.mark.parametrize("workload", ["ncf", "gnmt", "transformer", "ssd", "maskrcnn"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_no_step_waits_for_the_device(compose, tmp_path, precision, workload):
    name = devices.detect_accelerator()
    chosen = [f"workload={workload}", f"accelerator={name}", f"precision={precision}", f"data_dir={tmp_path}"]
    if workload in ("ssd", "maskrcnn"):  # their loader's thread may wait, and the check is for all threads
        chosen += ["data=synthetic", "recipe.data.generate=null"]
    settings = schema.check(compose(*chosen))
    engine = worker.build_engine(settings, World(), devices.select_device(name, 0))
    engine.warm_up()
    steps = iter(engine.data.train_batches(1))
    engine._step(next(steps))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            engine._step(next(steps))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    engine.synchronize()


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_every_precision_reaches_the_embedded_target(compose, tmp_path, precision):
    places = [f"data_dir={tmp_path}", f"runs={tmp_path}/runs", "launcher=inline"]
    overrides = [f"accelerator={devices.detect_accelerator()}", f"precision={precision}", *places]
    code, folder = launch(compose(*overrides), Console(quiet=True))
    assert code == Exit.TARGET_REACHED, folder.status()["error"]
    assert folder.status()["peak_memory_bytes"] > 0

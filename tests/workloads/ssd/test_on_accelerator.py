"""SSD's images on a GPU."""

import itertools

import pytest
import torch

from timetrial.datasets.synthetic.detection import DetectionSpec
from timetrial.runner.training import seeds
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.ssd.data import SSDData

pytestmark = pytest.mark.gpu


def test_ssd_images_of_the_gpu_equal_those_of_the_cpu(tmp_path):
    """Crops, flips, antialiasing and colors, with chroma subsampling."""
    settings = {"train_images": f"{tmp_path}/scenes/train", "cache_dir": f"{tmp_path}/prepared", "image_size": 96}
    sizes = {"width_range": (200, 400), "height_range": (150, 300)}
    scenes = DetectionSpec(num_train=40, num_val=9, num_classes=3, max_objects=3, **sizes, seed=5)
    chosen = SSDData.Settings(**settings, generate=scenes, eval_batch_size=4, workers=1)
    SSDData.prepare_data(chosen, lambda *progress: None)
    datasets = [
        SSDData(
            chosen,
            global_batch_size=8,
            sharding=BatchSharding(),
            device=torch.device(kind),
            seeds=seeds.derive_streams(1),
        )
        for kind in ("cuda:0", "cpu")
    ]
    for data in datasets:
        data.open()
    batches = [[*itertools.chain(*data.train_batches(1)), *data.eval_batches()] for data in datasets]
    for on_gpu, on_cpu in zip(*batches, strict=True):
        assert all(torch.equal(a.cpu(), b) for a, b in zip(on_gpu.inputs[1:], on_cpu.inputs[1:], strict=True))
        difference = (on_gpu.inputs[0].cpu().float() - on_cpu.inputs[0].float()).abs()
        assert difference.mean() < 2

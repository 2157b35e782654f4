"""Sets of scenes on disk."""

import pytest
import torch

from timetrial.datasets.synthetic.detection import DetectionSpec
from timetrial.runner.training import seeds
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.maskrcnn.data import MaskRCNNData

WHOLE = BatchSharding()
CPU = torch.device("cpu")
EDGES = {"short_edge": 90, "long_edge": 130}
SCENES = {"num_train": 40, "num_val": 11, "num_classes": 3, "max_objects": 3, "seed": 5}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder of the scenes, which the tests of a module share."""
    return tmp_path_factory.mktemp("scenes")


@pytest.fixture
def maskrcnn_data(place):
    """Open the data of scenes: maskrcnn_data(sharding, global batch size, **settings).

    `folder` is that of another set, which is written if it is empty.
    """

    def build(sharding=WHOLE, batch=6, workers=0, folder=place, **changes):
        settings = MaskRCNNData.Settings(
            train_images=f"{folder}/scenes/train", cache_dir=f"{folder}/prepared", workers=workers, **EDGES,
            **{"generate": DetectionSpec(**SCENES), "eval_batch_size": 4} | changes,
        )  # fmt: skip
        MaskRCNNData.prepare_data(settings, lambda *progress: None)
        data = MaskRCNNData(
            settings, global_batch_size=batch, sharding=sharding, device=CPU, seeds=seeds.derive_streams(3)
        )
        data.open()
        return data

    return build

"""Image workloads open no file of their datasets before the clock starts, with any loader."""

from importlib.util import find_spec

import pytest

dali = pytest.mark.skipif(not find_spec("nvidia") or not find_spec("nvidia.dali"), reason="needs NVIDIA DALI")
IMAGES = "++recipe.data.generate={num_classes: 3, train_per_class: 12, val_per_class: 4, width: 40, layout: %s}"
CLASSIFIER = ["recipe.first_eval_epoch=1", "recipe.global_batch_size=12"]
DETECTOR = ["recipe.first_eval_epoch=1", "recipe.global_batch_size=8"]
DETECTOR += ["recipe.data.generate={num_train: 16, num_val: 4, num_classes: 2, max_objects: 2, high_contrast: true}"]


def images(layout):
    return [*CLASSIFIER, IMAGES % layout]


@pytest.mark.integration
@pytest.mark.parametrize(
    "overrides",
    [
        ["workload=resnet50", *images("folders")],
        ["workload=resnet50", *images("tfrecord"), "recipe.data.workers=0"],
        ["workload=resnet50", *images("webdataset")],
        pytest.param(["workload=resnet50", "data=dali", *images("tfrecord")], marks=dali),
        pytest.param(["workload=resnet50", "data=tfdata", *images("tfrecord")], marks=pytest.mark.tensorflow),
        pytest.param(["workload=resnet50", "engine=tensorflow", *images("folders")], marks=pytest.mark.tensorflow),
        ["workload=cnn", *images("folders")],
        ["workload=cifar10", *CLASSIFIER],
        ["workload=cifar10", "recipe.training.network=airbench", *CLASSIFIER],
        ["workload=ssd", *DETECTOR],
        pytest.param(["workload=ssd", "data=dali", *DETECTOR], marks=dali),
    ],
    ids=" ".join,
)
def test_no_data_file_is_opened_before_the_clock_starts(data_files_opened_before_run_start, overrides):
    assert data_files_opened_before_run_start(overrides) == []


@pytest.mark.integration
def test_files_that_a_constructor_opens_are_found(data_files_opened_before_run_start, tmp_path, monkeypatch):
    (tmp_path / "early.py").write_text(
        "from timetrial.workloads.common.imagenet.torch_loader import TorchImageNetData\n"
        "class EarlyData(TorchImageNetData):\n"
        "    def __init__(self, *args, **kwargs):\n"
        "        super().__init__(*args, **kwargs)\n"
        "        self.open()\n"
        "        next(iter(self.train_batches(1)))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    early = ["workload=resnet50", "workload.loaders.torch=early.EarlyData", "recipe.data.workers=1"]
    opened = data_files_opened_before_run_start([*early, *images("folders")])
    assert {path.suffix for path in opened} == {".npz", ".jpg"}  # the index, and images in a worker process

"""The loader of tf.data: worker processes, and damaged files."""

import subprocess
import sys

import pytest
import torch

from timetrial.datasets.synthetic.images import ClassificationSpec
from timetrial.runner.core.errors import DataError
from timetrial.runner.training import seeds
from timetrial.runner.training.workload import BatchSharding

pytestmark = pytest.mark.tensorflow
READ_BATCHES = """
import hashlib, sys, torch
from timetrial.datasets.synthetic.images import ClassificationSpec
from timetrial.runner.training import seeds
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.common.imagenet.tfdata_loader import TfDataImageNetData
spec, workers = ClassificationSpec(3, 10, 3, 40), int(sys.argv[2])
settings = TfDataImageNetData.Settings(sys.argv[1], spec, sys.argv[1] + "-prepared", image_size=32, workers=workers)
TfDataImageNetData.prepare_data(settings, lambda *progress: None)
images = TfDataImageNetData(
    settings, global_batch_size=7, sharding=BatchSharding(), device=torch.device("cpu"), seeds=seeds.derive_streams(1)
)
images.open()
digest = hashlib.sha256()
for epoch in (1, 2):
    for (batch,) in images.train_batches(epoch):
        for tensor in batch.inputs:
            digest.update(tensor.contiguous().numpy().tobytes())
print(digest.hexdigest())
"""


def test_worker_processes_do_not_change_batches(tmp_path):
    """Runs in a new process, because one that has used TensorFlow has threads and must not be forked."""
    digests = []
    for workers in (0, 2):
        done = subprocess.run(
            [sys.executable, "-P", "-c", READ_BATCHES, str(tmp_path), str(workers)],
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        digests.append(done.stdout)
    assert len(digests[0]) == 65
    assert digests[0] == digests[1]


@pytest.mark.parametrize("end", [b"", b"\xff\xd9"])
def test_names_a_damaged_file(tmp_path, end):
    from timetrial.workloads.common.imagenet.tfdata_loader import TfDataImageNetData

    folder, prepared, shapes = f"{tmp_path}/shapes", f"{tmp_path}/prepared", ClassificationSpec(3, 10, 3, 40)
    settings = TfDataImageNetData.Settings(folder, shapes, prepared, image_size=32, workers=0)
    TfDataImageNetData.prepare_data(settings, lambda *progress: None)
    sizes = {"global_batch_size": 12, "sharding": BatchSharding(), "seeds": seeds.derive_streams(1)}
    images = TfDataImageNetData(settings, **sizes, device=torch.device("cpu"))
    images.open()
    path = sorted(tmp_path.rglob("train/*/*.*"))[5]
    data_bytes = path.read_bytes()
    path.write_bytes(data_bytes[: len(data_bytes) // 2] + end)  # with an end marker, only a decoder notices
    with pytest.raises(DataError, match=f"{path.parent.name}/{path.name} cannot be decoded"):
        list(images.tensorflow_batches(True, ((1, indices) for indices in images.train_plan(1))))

"""Batches between worker processes and the rank."""

import dataclasses
import gc
import os
import pickle
import shutil
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest
import torch

from timetrial.runner.core.errors import Exit
from timetrial.runner.hardware.error_translation import to_run_error
from timetrial.workloads.common.vision import decode_workers
from timetrial.workloads.common.vision.batches import EncodedBatch, ImageBatch
from timetrial.workloads.common.vision.decode_workers import BatchWorkers


def encoded_batch(epoch, indices):
    size = epoch * len(indices)  # bytes
    return EncodedBatch(
        data=(torch.arange(size) + epoch).to(torch.uint8),
        lengths=torch.full((len(indices),), epoch),
        sizes=torch.tensor([(epoch, index) for index in indices], dtype=torch.int32),
        boxes=torch.tensor([(0, 1, index, 3) for index in indices], dtype=torch.int32),
        flipped=torch.tensor([index % 2 == 0 for index in indices]),
        targets=(torch.tensor(indices), torch.rand(len(indices), 4, generator=torch.Generator().manual_seed(epoch))),
        params=(),
        indices=indices,
    )


def image_batch(epoch, indices):
    return ImageBatch(torch.full((len(indices), 5, 5, 3), epoch % 200, dtype=torch.uint8), (torch.tensor(indices),))


def open_workers(make_batch, workers, **options):
    opened = BatchWorkers(workers, **options)
    opened.open(make_batch)
    return opened


def assert_equal(one, other):
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        for x, y in zip(a, b, strict=True) if isinstance(a, tuple) else [(a, b)]:
            assert torch.equal(x, y) and x.dtype == y.dtype if isinstance(x, torch.Tensor) else x == y


@pytest.mark.integration
@pytest.mark.parametrize("make_batch", [encoded_batch, image_batch])
def test_workers_send_batches_of_any_size_unchanged(make_batch):
    """By value, and in shared memory from a megabyte on."""
    plan = [(epoch, [epoch, 2, 7]) for epoch in (3, 400_000)]
    workers = open_workers(make_batch, 2)
    received = list(workers.run(plan))
    assert len(received) == 2
    for key, batch in zip(plan, received, strict=True):
        assert_equal(make_batch(*key), batch)
    if make_batch is encoded_batch:
        assert [batch.data.is_shared() for batch in received] == [False, True]


@pytest.mark.integration
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_in_reused_memory_are_unchanged_until_the_next_one(workers, monkeypatch):
    """More batches than buffers, one too large for them, and a plan that follows one that was left."""
    monkeypatch.setattr(decode_workers, "_BUFFER_BYTES", 100_000)
    plan = [(1000 * number if number != 11 else 50_000, [number, 2, 7]) for number in range(1, 31)]
    batches = open_workers(encoded_batch, workers, reuse_memory=True)
    next(batches.run(plan[15:]))
    addresses = set()
    for key, batch in zip(plan, batches.run(plan), strict=True):
        assert_equal(encoded_batch(*key), batch)
        addresses.add(batch.data.data_ptr())
    assert workers == 0 or len(addresses) == 3 * workers + 1


@pytest.mark.integration
def test_batches_are_sent_where_no_address_space_is_left(monkeypatch):
    monkeypatch.setattr(decode_workers, "_BUFFER_BYTES", 1 << 62)
    batches = open_workers(encoded_batch, 1, reuse_memory=True)
    for batch in batches.run([(5, [1, 2])]):
        assert_equal(encoded_batch(5, [1, 2]), batch)


class Annotations:
    """What batches are made of: arrays of which one is empty, one small and one larger than a pipe holds."""

    def __init__(self):
        self.arrays = [np.arange(count, dtype=dtype) for count, dtype in ((0, "u1"), (3, "u1"), (1 << 20, "i8"))]

    def make_batch(self, epoch, indices):
        assert [len(array) for array in self.arrays] == [0, 3, 1 << 20]
        assert all(array.ctypes.data % 64 == 0 for array in self.arrays)
        self.arrays[2][indices] += epoch
        return self.arrays[1].tolist() + self.arrays[2][indices].tolist()


@pytest.mark.integration
def test_processes_get_what_is_opened_after_they_started():
    """Each can write to its arrays, which the others do not see."""
    workers, annotations = BatchWorkers(2), Annotations()
    workers.open(annotations.make_batch)
    assert list(workers.run([(5, [7]), (5, [7]), (5, [7])])) == [[0, 1, 2, value] for value in (12, 12, 17)]
    assert annotations.arrays[2][7] == 7


@pytest.mark.integration
def test_object_is_handed_over_by_a_file_where_python_has_none_in_memory(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    assert list(open_workers(Annotations().make_batch, 1).run([(5, [7])])) == [[0, 1, 2, 12]]


@pytest.mark.integration
def test_processes_that_are_not_forked_early_start_when_they_are_told_the_function(monkeypatch):
    """As on macOS."""
    monkeypatch.setattr(decode_workers, "_FORKS", False)
    before = set(psutil.Process().children())
    workers = BatchWorkers(2)
    assert set(psutil.Process().children()) <= before
    workers.open(parent)
    assert len(set(psutil.Process().children()) - before) == 2
    assert list(workers.run([(5, [7]), (6, [7])])) == [os.getpid()] * 2


def parent(epoch, indices):
    return os.getppid()


def test_workers_are_children_of_this_process():
    """So that they end with it; the default of Python 3.14 starts a server between them."""
    assert list(open_workers(parent, 1).run([(1, [0])])) == [os.getpid()]


def test_objects_that_a_rank_has_set_aside_stay_there():
    try:
        BatchWorkers(1)
        assert gc.get_freeze_count() == 0
        gc.freeze()
        BatchWorkers(1)
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def die(epoch, indices):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.integration
def test_killed_worker_is_a_lost_process_and_no_defect():
    workers = open_workers(die, 1)
    with pytest.raises(RuntimeError) as killed:
        next(workers.run([(1, [0])]))
    error = to_run_error(killed.value)
    assert error.exit_code == Exit.LOST_RANK
    assert "lower recipe.data.workers" in str(error)


_OPEN_WORKERS = """
from timetrial.workloads.common.vision.decode_workers import BatchWorkers
if __name__ == "__main__":
    try:
        BatchWorkers(1)
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.integration
def test_read_only_shared_memory_is_said():
    isolate = ["unshare", "-m", *(["-r"] if os.getuid() else [])]
    mount = "mount -t tmpfs -o ro tmpfs /dev/shm"
    if shutil.which("unshare") is None or subprocess.run([*isolate, "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("mounts are not allowed here")
    command = [*isolate, "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-P", "-c", _OPEN_WORKERS]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=100).stdout
    assert printed.startswith("ConfigurationError Processes that load data share memory in /dev/shm"), printed
    assert "(Read-only file system)" in printed


def test_pickled_batch_can_be_written():
    """As those of shared memory can."""
    batch = pickle.loads(pickle.dumps(image_batch(1, [4, 5])))
    batch.pixels += 1
    assert batch.pixels.unique().tolist() == [2]


AT_EXIT = """
import threading
from timetrial.workloads.common.vision.decode_workers import BatchWorkers

def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

if __name__ == "__main__":
    workers = BatchWorkers(2)
    threading.Thread.start = refuse
"""


@pytest.mark.integration
def test_workers_end_with_a_process_that_starts_no_thread_at_its_exit(tmp_path):
    """As Python 3.12 does."""
    (tmp_path / "program.py").write_text(AT_EXIT)
    command = [sys.executable, "-P", str(tmp_path / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")

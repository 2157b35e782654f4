"""The torch loader: equal batches for any ranks and workers, each validation image once, broken files named."""

import pytest
import torch

from timetrial.datasets.generate.images import Shapes
from timetrial.runner import seeds
from timetrial.runner.errors import DataError
from timetrial.runner.workload import Share
from timetrial.workloads.resnet50.data import MEANS, ImageFolder


@pytest.fixture
def data(tmp_path):
    def build(*, workers=0, share=None, batch=12):
        settings = ImageFolder.Settings(
            str(tmp_path / "shapes"), Shapes(3, 10, 5, 40), image_size=32, eval_batch_size=4, workers=workers
        )
        return ImageFolder(
            settings,
            global_batch_size=batch,
            share=share or Share(),
            device=torch.device("cpu"),
            seeds=seeds.derive(1),
        )

    return build


def pixels(steps):
    return torch.cat([batch.content[0] for batches in steps for batch in batches])


def test_an_epoch_is_every_image_once_and_another_the_next_time(data):
    loader = data()
    one, again, two = (pixels(loader.train(epoch)) for epoch in (1, 1, 2))
    assert one.shape == (30, 3, 32, 32)
    assert torch.equal(one, again)
    assert not torch.equal(one, two)
    assert one.is_contiguous(memory_format=torch.channels_last)
    assert (one + torch.tensor(MEANS).view(1, 3, 1, 1)).min() >= 0


def test_workers_and_ranks_change_nothing(data):
    whole = list(data().train(1))
    with_workers = list(data(workers=2).train(1))
    assert torch.equal(pixels(whole), pixels(with_workers))
    ranks = [list(data(share=Share(rank, 2, 2)).train(1)) for rank in range(2)]
    for step, batches in enumerate(whole):
        parts = [batch.content[0] for rank in ranks for batch in rank[step]]
        assert torch.equal(torch.cat(parts), batches[0].content[0])


def test_every_validation_image_counts_once(data):
    labels = [batch.content[1] for rank in range(4) for batch in data(share=Share(rank, 4)).eval()]
    assert torch.cat(labels).bincount().tolist() == [5, 5, 5]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_file_ends_the_epoch_by_name(data, tmp_path, workers):
    loader = data(workers=workers)
    victim = next(tmp_path.rglob("train/disc/*.jpg"))
    victim.write_bytes(victim.read_bytes()[:200])
    with pytest.raises(DataError, match=victim.name):
        list(loader.train(1))

"""What the last step of an epoch leaves in the running statistics of batch norms, at 1,632 images a batch."""

import copy
import math

import pytest
import torch
from torch import nn

from timetrial.runner.training import seeds
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.common.imagenet.synthetic import SyntheticImageNetData

CHANNELS, UPDATES_BEFORE = 400, 64  # older updates have 0.1% of the weight
REMAINDER = 47  # images of 1,281,167 that do not fill a batch of 1,632


def last_steps(ranks, accumulation):
    """Return the sizes of each rank's micro-batches in the steps before the last, in the last, and of a remainder."""
    data = [
        SyntheticImageNetData(
            SyntheticImageNetData.Settings(folder="nowhere"),
            global_batch_size=1632,
            sharding=BatchSharding(rank, ranks, accumulation),
            device=torch.device("cpu"),
            seeds=seeds.derive_streams(1),
        )
        for rank in range(ranks)
    ]
    steps = [[part.stop - part.start for part in list(rank.steps())[-1]] for rank in data]
    remainder = [
        [part.stop - part.start for part in rank.sharding.micro_batches(data[0].train_size % 1632)] for rank in data
    ]
    full = [[1632 // (ranks * accumulation)] * accumulation] * ranks
    return full, steps, remainder


def running_statistics(full, last):
    """Return the share of the last step in the running mean, and the standard error of the running mean.

    Pixels are standard normal; the ranks' statistics are averaged, as before an evaluation.
    """
    generator = torch.Generator().manual_seed(1)
    shares, means = [], []
    for before, sizes in zip(copy.deepcopy(full), last, strict=True):
        norm = nn.BatchNorm1d(1 + CHANNELS, affine=False)  # the first channel marks the last step, the others are noise
        before *= UPDATES_BEFORE // len(before)
        for size, marker in [*((size, 0.0) for size in before), *((size, 1.0) for size in sizes)]:
            noise = torch.randn(size, CHANNELS, generator=generator)
            norm(torch.cat([torch.full((size, 1), marker), noise], 1))
        shares.append(norm.running_mean[0])
        means.append(norm.running_mean[1:])
    return float(torch.stack(shares).mean()), float(torch.stack(means).mean(0).std())


@pytest.mark.parametrize(
    ("ranks", "accumulation", "remainder_share", "remainder_error", "error"),
    [(1, 8, 1 - 0.9**8, 0.086, 0.0161), (8, 1, 0.1, 0.0151, 0.0057)],
)
def test_a_full_last_step_keeps_the_error_of_the_statistics(
    ranks, accumulation, remainder_share, remainder_error, error
):
    full, last, remainder = last_steps(ranks, accumulation)
    assert sum(map(sum, remainder)) == REMAINDER
    assert last == full  # the last step is like any other
    share, with_remainder = running_statistics(full, remainder)
    assert share == pytest.approx(remainder_share, abs=1e-4)
    assert with_remainder == pytest.approx(remainder_error, rel=0.12)
    share, now = running_statistics(full, last)
    assert share == pytest.approx(remainder_share, abs=1e-4)  # of 1,632 images instead of 47
    assert now == pytest.approx(error, rel=0.12)
    per_rank = 1632 // (ranks * accumulation)
    assert now == pytest.approx(math.sqrt(0.1 / 1.9 / per_rank / ranks), rel=0.12)  # of an exponential average

"""A toy task with everything that tells engines apart: batch norm, dropout, uneven weights."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from timetrial.runner.training.workload import Batch, BatchSharding, Data


@dataclass
class ToyData(Data):
    sharding: BatchSharding = field(default_factory=BatchSharding)
    samples: int = 50
    global_batch_size: int = 16
    weighted: bool = False
    poison: int | None = None

    def __post_init__(self):
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(self.samples, 5, generator=generator)
        self.y = self.x @ torch.randn(5, 1, generator=generator)
        self.w = 1 + torch.arange(self.samples) % 3 if self.weighted else torch.ones(self.samples)
        if self.poison is not None:
            self.y[self.poison] = float("nan")
        self.train_size, self.eval_size = self.samples, self.samples
        self.steps_per_epoch = -(-self.samples // self.global_batch_size)

    def open(self):
        pass

    def train_batches(self, epoch):
        order = torch.randperm(self.samples, generator=torch.Generator().manual_seed(epoch))
        for start in range(0, self.samples, self.global_batch_size):
            chosen = order[start : start + self.global_batch_size]
            yield [self._batch(chosen[part], len(chosen)) for part in self.sharding.micro_batches(len(chosen))]

    def _batch(self, chosen, size):
        weight = self.w[chosen]
        content = (self.x[chosen], self.y[chosen], weight)
        return Batch(content, float(weight.sum()), size, None if self.weighted else size)

    def eval_batches(self):
        mine = self.sharding.shard(self.samples)
        yield Batch((self.x[mine], self.y[mine]), mine.stop - mine.start, self.samples, self.samples)

    def warm_up_steps(self):
        parts = self.sharding.micro_batches(self.global_batch_size)
        sizes = [part.stop - part.start for part in parts]
        size = self.global_batch_size
        yield [Batch((torch.randn(n, 5), torch.randn(n, 1), torch.ones(n)), n, size, size) for n in sizes]

    def warm_up_eval_batches(self):
        yield Batch((torch.randn(8, 5), torch.randn(8, 1)), 8, 8, 8)
        yield Batch((torch.randn(3, 5), torch.randn(3, 1)), 3, 8, 8, is_partial=True)

    def mlperf_params(self):
        return {}


@dataclass
class ToyWorkload:
    dropout: float = 0.0
    batch_norm: bool = False
    learning_rate: float = 0.05
    capturable: ClassVar[bool] = False

    def build_model(self):
        middle = [nn.BatchNorm1d(8)] if self.batch_norm else []
        return nn.Sequential(nn.Linear(5, 8), *middle, nn.Dropout(self.dropout), nn.ReLU(), nn.Linear(8, 1))

    def build_optimizer(self, model, steps_per_epoch):
        optimizer = torch.optim.SGD(model.parameters(), self.learning_rate, momentum=0.9)
        return optimizer, LambdaLR(optimizer, lambda step: 1 / (1 + step / steps_per_epoch))

    def compute_loss(self, model, batch):
        x, y, weight = batch.inputs
        return ((model(x).float() - y).square().squeeze(1) * weight).sum()

    def predict(self, model, batches):
        return sum(float((model(x).float() - y).square().sum()) for x, y in (batch.inputs for batch in batches))

    def score(self, parts):
        return {"fit": 1 / (1 + sum(parts))}

    def mlperf_params(self):
        return {"opt_name": "sgd"}


@pytest.fixture
def toy_data():
    return ToyData


@pytest.fixture
def toy_workload():
    return ToyWorkload


@pytest.fixture
def toy_engine():
    """engine(workload, data, **options) on the CPU, seed 1."""
    from timetrial.runner.hardware.precision import Precision
    from timetrial.runner.training import seeds
    from timetrial.runner.training.distributed import World
    from timetrial.runner.training.torch_engine import TorchEngine

    def build(workload, data, *, precision="fp32", world=None, seed=1, **options):
        return TorchEngine(
            workload,
            data,
            global_batch_size=data.global_batch_size,
            accumulation=data.sharding.accumulation,
            precision=Precision(precision, torch.device("cpu")),
            run_seeds=seeds.derive_streams(seed),
            world=world or World(),
            **options,
        )

    return build

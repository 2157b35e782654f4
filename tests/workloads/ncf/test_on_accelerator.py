"""NCF on a GPU: its fused model, and the sampling of its batches."""

import itertools
import sys
from pathlib import Path

import pytest
import torch

from timetrial.workloads.ncf import data as ncf_data
from timetrial.workloads.ncf import sampling
from timetrial.workloads.ncf.epochs_ahead import EpochsAhead

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("samples", [150_000, 2_000])  # tables projected; rows looked up first
@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 0.12), (torch.float16, 0.05)])
def test_ncf_gradients_equal_a_float64_reference(samples, dtype, bound, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    test = pytest.importorskip("test_model")
    device = torch.accelerator.current_accelerator()
    model = test.NeuMF(20_000, 5_000, 64, (256, 256, 128, 64))
    with torch.no_grad():
        for table in (model.gmf_user, model.gmf_item, model.mlp_user, model.mlp_item):
            table.weight.mul_(30)
    batch = test.make_batch(samples, 20_000, 5_000)
    counts = torch.arange(samples) < samples - 1000  # those of another rank do not
    batch[2][~counts] = test.IGNORED
    expected, gradients = test.oracle(model, *(tensor[counts] for tensor in batch[:3]))
    model.to(device)
    runs = []
    for _ in range(2):
        model.zero_grad()
        with torch.autocast(device.type, dtype=dtype):
            loss = model(*(tensor.to(device) for tensor in batch))
        (loss * 1e-6).backward()  # a scale that fp16 gradients would not survive
        runs.append({name: value.grad.cpu() * 1e6 for name, value in model.named_parameters()})
    assert test.relative_error(loss.cpu(), expected) < 1e-3
    for name, value in runs[0].items():
        assert test.relative_error(value, gradients[name]) < bound, name
        assert torch.equal(value, runs[1][name]), name
    sys.modules.pop("test_model", None)


def test_ncf_epoch_is_that_of_the_cpu():
    """To the bit: samples are functions of the seed."""
    device, cpu = torch.accelerator.current_accelerator(), torch.device("cpu")
    users, items = (torch.randint(500, (40_000,)).int() for _ in range(2))
    pairs = torch.unique(torch.stack([users, items], 1), dim=0)
    users, items = pairs[:, 0].contiguous(), pairs[:, 1].contiguous()
    bits = sampling.build_bitset(users, items, 500, 500)
    ratings = (users, items, bits)
    num_samples, first_sample = 5 * len(users), 30_000
    for batch_size in (20_000, 64):
        for own in (range(num_samples), range(first_sample, 70_000)):
            shuffles = [
                sampling.shuffle_into_batches(own, num_samples, batch_size, 1, where) for where in (cpu, device)
            ]
            assert all(torch.equal(on_cpu, on_gpu.cpu()) for on_cpu, on_gpu in zip(*shuffles, strict=True))
            some = shuffles[0][0][:40_000].view(-1, 20_000).sort(1).values
            counts, first_user = None, 0
            if own.start:
                counts, first_user = torch.tensor([[15_000], [20_000]]), int(users[first_sample // 5])
            batches = [
                sampling.gather_batches(
                    some.to(where), *(tensor.to(where) for tensor in ratings), 500 - first_user, 500,
                    negatives=4, seed=2, counts=None if counts is None else counts.to(where), first_user=first_user,
                )
                for where in (cpu, device)
            ]  # fmt: skip
            assert all(torch.equal(on_cpu, on_gpu.cpu()) for on_cpu, on_gpu in zip(*batches, strict=True))


@pytest.mark.parametrize("slow", ["steps", "batches"])
def test_ncf_batches_gathered_during_steps_are_those_of_the_cpu(
    build_engine, build_on_accelerator, tmp_path, monkeypatch, slow
):
    """A batch is complete when a step reads it, and stays as it is until the step has ended."""

    def late(batches):
        while True:
            torch.cuda._sleep(20_000_000)
            if (batch := next(batches, None)) is None:
                return
            yield batch

    monkeypatch.setattr(ncf_data, "_SAMPLES_AT_A_TIME", 1)  # gathers each batch on its own
    epochs = []
    engines = build_on_accelerator("workload=ncf"), build_engine("workload=ncf", f"data_dir={tmp_path}")
    for engine, on_gpu in zip(engines, (True, False), strict=True):
        data = engine.data
        if on_gpu and slow == "batches":
            gather = data._gather_from
            data._epochs = EpochsAhead(data._side_stream, lambda epoch, gather=gather: late(gather(epoch)))
        steps = []
        for step in itertools.chain(data.train_batches(1), data.train_batches(2)):
            if on_gpu and slow == "steps":
                torch.cuda._sleep(20_000_000)
            steps.append([tensor.clone() for batch in step for tensor in batch.inputs])
        epochs.append(steps)
    assert len(epochs[0]) > 10
    for on_gpu, on_cpu in zip(*epochs, strict=True):
        assert all(torch.equal(mine.cpu(), other) for mine, other in zip(on_gpu, on_cpu, strict=True))

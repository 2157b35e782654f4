"""The micro-benchmarks: their stated operations are those that torch's FLOP counter counts."""

import itertools

import pytest
import torch

from timetrial.runner.benchmarks import microbenchmarks
from timetrial.runner.training import flops

CPU = torch.device("cpu")
SMALL = {
    kind: next(iter(microbenchmarks.KINDS[kind](True)))[0] for kind in ("gemm", "convolution", "lstm", "attention")
}


@pytest.mark.parametrize("case", SMALL.values(), ids=SMALL)
def test_stated_operations_match_the_flop_counter(case, monkeypatch):
    # torch's FLOP counter tracks modules, which it does not support under autograd.grad.
    monkeypatch.setattr(torch.autograd, "grad", lambda out, inputs, grad_out: out.backward(grad_out))
    call = case.make(CPU)
    counter, _ = flops.make_counters()
    with counter:
        call()
    assert counter.get_total_flops() == case.operations


def test_training_convolutions_and_converted_products():
    for series in itertools.islice(microbenchmarks.convolution(True), 2):
        counter, _ = flops.make_counters()
        call = series[0].make(CPU)
        with counter:
            call()
        assert counter.get_total_flops() == series[0].operations
    (case,) = (
        series[0] for series in microbenchmarks.gemm(True) if (series[0].storage, series[0].compute) == ("bf16", "fp32")
    )
    out = case.make(CPU)()
    assert out.dtype == torch.bfloat16
    assert float(out.std()) == pytest.approx(512**0.5, rel=0.05)  # a sum of 512 products of normal numbers


def test_storage_and_compute_formats():
    formats = {(case.storage, case.compute) for series in microbenchmarks.gemm(False) for case in series}
    assert formats == {("fp32", "fp32"), ("fp32", "tf32"), ("bf16", "bf16"), ("fp16", "fp16"),
                       ("bf16", "fp32"), ("fp16", "fp32")}  # fmt: skip


def test_least_memory_traffic():
    assert microbenchmarks._gemm("bf16", "bf16", 2, 3, 5).moved_bytes == 2 * (10 + 15 + 6)
    forward, training = (
        microbenchmarks._convolution("fp32", "fp32", 2, 4, 8, 6, 3, 1, is_training=is_training)
        for is_training in (False, True)
    )
    x, w, y = 2 * 4 * 36, 8 * 4 * 9, 2 * 8 * 36
    assert (forward.moved_bytes, training.moved_bytes) == (4 * (x + w + y), 4 * (3 * x + 3 * w + 2 * y))
    assert microbenchmarks._attention("fp32", "fp32", 2, 128).moved_bytes == 12 * 4 * 2 * 16 * 128 * 64
    assert microbenchmarks._transfer(16, True, True).moved_bytes == 16 * 2**20
    assert microbenchmarks._copy(64).moved_bytes == 2 * 64 * 2**20


def test_cases_with_cheaper_algorithms_are_marked():
    def convolution(kernel):
        return microbenchmarks._convolution("fp32", "fp32", 2, 4, 8, 6, kernel, 1, is_training=False)

    assert (convolution(3).is_minimal, convolution(1).is_minimal) == (False, True)
    assert not microbenchmarks._attention("fp32", "fp32", 2, 128).is_minimal


def test_converted_operands_are_multiplied_in_fp32(monkeypatch):
    dtypes, conv2d = [], microbenchmarks.F.conv2d
    recording = lambda x, w, **options: (dtypes.append((x.dtype, w.dtype)), conv2d(x, w, **options))[1]  # noqa: E731
    monkeypatch.setattr(microbenchmarks.F, "conv2d", recording)
    case = microbenchmarks._convolution("bf16", "fp32", 1, 4, 4, 6, 3, 1, is_training=False)
    assert case.make(CPU)().dtype == torch.bfloat16
    assert dtypes == [(torch.float32, torch.float32)]
    monkeypatch.setattr(torch, "mm", None)
    assert microbenchmarks._gemm("bf16", "fp32", 4, 4, 4).make(CPU)().dtype == torch.bfloat16

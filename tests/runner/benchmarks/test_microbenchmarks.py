"""The cases: their stated operations are those that torch's counter sees."""

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
def test_stated_operations_are_those_that_are_counted(case, monkeypatch):
    # torch's counter watches modules, and says itself that it cannot do so under autograd.grad.
    monkeypatch.setattr(torch.autograd, "grad", lambda out, inputs, given: out.backward(given))
    call = case.make(CPU)
    counter, _ = flops.counters()
    with counter:
        call()
    assert counter.get_total_flops() == case.operations


def test_training_convolutions_and_widened_products():
    for series in itertools.islice(microbenchmarks.convolution(True), 2):
        counter, _ = flops.counters()
        call = series[0].make(CPU)
        with counter:
            call()
        assert counter.get_total_flops() == series[0].operations
    (case,) = (one[0] for one in microbenchmarks.gemm(True) if (one[0].storage, one[0].compute) == ("bf16", "fp32"))
    out = case.make(CPU)()
    assert out.dtype == torch.bfloat16
    assert float(out.std()) == pytest.approx(512**0.5, rel=0.05)  # of sums of products of normal numbers


def test_the_switch_of_matrix_units_is_apart_from_storage():
    formats = {(case.storage, case.compute) for series in microbenchmarks.gemm(False) for case in series}
    assert formats == {("fp32", "fp32"), ("fp32", "tf32"), ("bf16", "bf16"), ("fp16", "fp16"),
                       ("bf16", "fp32"), ("fp16", "fp32")}  # fmt: skip


def test_bytes_that_are_moved_at_least():
    assert microbenchmarks._gemm("bf16", "bf16", 2, 3, 5).moved_bytes == 2 * (10 + 15 + 6)
    one, trained = (microbenchmarks._convolution("fp32", "fp32", 2, 4, 8, 6, 3, 1, trains=on) for on in (False, True))
    x, w, y = 2 * 4 * 36, 8 * 4 * 9, 2 * 8 * 36
    assert (one.moved_bytes, trained.moved_bytes) == (4 * (x + w + y), 4 * (3 * x + 3 * w + 2 * y))
    assert microbenchmarks._attention("fp32", "fp32", 2, 128).moved_bytes == 12 * 4 * 2 * 16 * 128 * 64
    assert microbenchmarks._transfer(16, True, True).moved_bytes == 16 * 2**20
    assert microbenchmarks._copy(64).moved_bytes == 2 * 64 * 2**20


def test_what_can_be_had_with_fewer_operations_says_so():
    def of(edge):
        return microbenchmarks._convolution("fp32", "fp32", 2, 4, 8, 6, edge, 1, trains=False)

    assert (of(3).fewest, of(1).fewest) == (False, True)
    assert not microbenchmarks._attention("fp32", "fp32", 2, 128).fewest


def test_widened_numbers_are_multiplied_in_fp32(monkeypatch):
    seen, plain = [], microbenchmarks.F.conv2d
    watched = lambda x, w, **how: (seen.append((x.dtype, w.dtype)), plain(x, w, **how))[1]  # noqa: E731
    monkeypatch.setattr(microbenchmarks.F, "conv2d", watched)
    case = microbenchmarks._convolution("bf16", "fp32", 1, 4, 4, 6, 3, 1, trains=False)
    assert case.make(CPU)().dtype == torch.bfloat16
    assert seen == [(torch.float32, torch.float32)]
    monkeypatch.setattr(torch, "mm", None)
    assert microbenchmarks._gemm("bf16", "fp32", 4, 4, 4).make(CPU)().dtype == torch.bfloat16

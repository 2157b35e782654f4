"""The cases: their stated operations are those that torch's counter sees."""

import itertools

import pytest
import torch

from timetrial.runner import microbenchmarks, operations

CPU = torch.device("cpu")
SMALL = {
    kind: next(iter(microbenchmarks.KINDS[kind](True)))[0] for kind in ("gemm", "convolution", "lstm", "attention")
}


@pytest.mark.parametrize("case", SMALL.values(), ids=SMALL)
def test_stated_operations_are_those_that_are_counted(case, monkeypatch):
    # torch's counter watches modules, and says itself that it cannot do so under autograd.grad.
    monkeypatch.setattr(torch.autograd, "grad", lambda out, inputs, given: out.backward(given))
    call = case.make(CPU)
    flops, _ = operations.counters()
    with flops:
        call()
    assert flops.get_total_flops() == case.operations


def test_training_convolutions_and_widened_products():
    for series in itertools.islice(microbenchmarks.convolution(True), 2):
        flops, _ = operations.counters()
        call = series[0].make(CPU)
        with flops:
            call()
        assert flops.get_total_flops() == series[0].operations
    (case,) = (one[0] for one in microbenchmarks.gemm(True) if (one[0].storage, one[0].compute) == ("bf16", "fp32"))
    out = case.make(CPU)()
    assert out.dtype == torch.bfloat16
    assert float(out.std()) == pytest.approx(512**0.5, rel=0.05)  # of sums of products of normal numbers


def test_the_switch_of_matrix_units_is_apart_from_storage():
    formats = {(case.storage, case.compute) for series in microbenchmarks.gemm(False) for case in series}
    assert formats == {("fp32", "fp32"), ("fp32", "tf32"), ("bf16", "bf16"), ("fp16", "fp16"),
                       ("bf16", "fp32"), ("fp16", "fp32")}  # fmt: skip

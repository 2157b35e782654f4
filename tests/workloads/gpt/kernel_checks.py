"""Comparison of GPT's kernels with PyTorch, for programs of Triton's interpreter."""

import copy

import torch


def check(module, function, layer, tensors, name, make_grad=torch.randn):
    """Compare results and gradients of the module's kernels with those of PyTorch's operations in float64."""
    wide_layer = copy.deepcopy(layer).double()
    wide = [None if x is None else x.detach().double().requires_grad_() for x in tensors]
    expected = function(wide_layer, *wide)
    module.triton_available = lambda tensor: True
    results = function(layer, *tensors)
    module.triton_available = lambda tensor: False
    assert name in type(results[-1].grad_fn).__name__
    for result, other in zip(results, expected, strict=True):
        torch.testing.assert_close(result.double(), other, rtol=1e-4, atol=1e-5)
    grads = [make_grad(other.shape) for other in expected]
    every = [*range(len(results))]
    for used in (every, *([number] for number in every)):  # a result may have no gradient of its own
        inputs, wide_inputs = (
            [*(x for x in some if x is not None), *of.parameters()]
            for some, of in ((tensors, layer), (wide, wide_layer))
        )
        mine = torch.autograd.grad(
            [results[i] for i in used], inputs, [grads[i] for i in used], retain_graph=True, allow_unused=True
        )
        reference = torch.autograd.grad(
            [expected[i] for i in used],
            wide_inputs,
            [grads[i].double() for i in used],
            retain_graph=True,
            allow_unused=True,
        )
        for one, other in zip(mine, reference, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-3)


def transposed(shape):  # gradients that are not contiguous
    return torch.randn(*shape[:-2], shape[-1], shape[-2]).mT


def expanded(shape):  # a gradient of a mean has strides of 0
    return torch.randn(1).expand(shape)


def empty_but_end(rows, width):
    """Return a tensor fp16 [1, R, D] of which only the last 1,024 rows have values and take memory."""
    tensor = torch.empty(1, rows, width, dtype=torch.float16)
    tensor[:, -1024:] = torch.randn(1, 1024, width)
    return tensor

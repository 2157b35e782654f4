"""One LSTM layer over packed sentences, forward and backward: large matrix products, with Triton kernels between them.

Reasons for not using cuDNN: under bf16 autocast PyTorch runs cuDNN's LSTM in fp16, without the loss scaling that fp16
gradients need. It also sums the gradient of the recurrent weight step by step, at half the rate of one product over all
tokens. Shapes: T tokens, time step by time step, of sentences in order of descending length; I inputs, H hidden units;
gates i, f, g, o in the order of nn.LSTM.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..common.nn.autocast import matmul_dtype
from ..common.nn.triton_support import tl, triton

_BLOCK = 1024  # units of one program


def packed_lstm(layer: nn.Module, x: Tensor, batch_sizes: Sequence[int]) -> Tensor:
    """Apply the nn.LSTM `layer`, of one layer, to packed x [T, I] from a zero state; return the outputs [T, H].

    `batch_sizes` are the sentences that reach each time step. The result has the dtype of matrix products: that of
    autocast, or that of x.
    """
    dtype = matmul_dtype(x)
    weight_ih, weight_hh, bias_ih, bias_hh = layer.parameters()
    with torch.autocast(x.device.type, enabled=False):
        weights = weight_ih.to(dtype), weight_hh.to(dtype)
        return _PackedLSTM.apply(x.to(dtype), *weights, (bias_ih + bias_hh).to(dtype), batch_sizes)


class _PackedLSTM(torch.autograd.Function):
    """c_t = f * c_(t-1) + i * g and h_t = o * tanh(c_t) (Hochreiter and Schmidhuber 1997; f: Gers et al. 2000).

    i, f and o are sigmoids, and g the tanh, of W_ih x_t + W_hh h_(t-1) + b. Matrix products are rounded to the dtype of
    x; cells and their gradients stay in float32.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor, batch_sizes: Sequence[int]
    ) -> Tensor:
        hidden_size = weight_hh.shape[1]
        gates = torch.addmm(bias, x, weight_ih.T)
        h = x.new_empty(len(x), hidden_size)
        c = torch.empty(len(x), hidden_size, dtype=torch.float32, device=x.device)
        step_gates, step_h, step_c = gates.split(batch_sizes), h.split(batch_sizes), c.split(batch_sizes)
        recurrent_weight = weight_hh.T
        for step, count in enumerate(batch_sizes):
            previous = max(0, step - 1)
            if step:
                step_gates[step].addmm_(step_h[previous][:count], recurrent_weight)
            _cell_forward[(triton.cdiv(count * hidden_size, _BLOCK),)](
                gates_ptr=step_gates[step],
                c_ptr=step_c[step],
                previous_c_ptr=step_c[previous],
                h_ptr=step_h[step],
                num_sentences=count,
                H=hidden_size,
                FIRST=not step,
                BLOCK=_BLOCK,
            )
        ctx.batch_sizes = batch_sizes
        ctx.save_for_backward(x, weight_ih, weight_hh, gates, c, h)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        x, weight_ih, weight_hh, gates, c, h = ctx.saved_tensors
        batch_sizes, hidden_size = ctx.batch_sizes, weight_hh.shape[1]
        if dh.stride(1) != 1:
            dh = dh.contiguous()
        dgates, dc = torch.empty_like(gates), c.new_empty(batch_sizes[0], hidden_size)
        recurrent_dh = h.new_empty(batch_sizes[0], hidden_size)
        step_gates, step_c, step_dh, step_dgates = (tensor.split(batch_sizes) for tensor in (gates, c, dh, dgates))
        next_count = 0
        for step in range(len(batch_sizes) - 1, -1, -1):
            if next_count:
                torch.mm(step_dgates[step + 1], weight_hh, out=recurrent_dh[:next_count])
            count = batch_sizes[step]
            _cell_backward[(triton.cdiv(count * hidden_size, _BLOCK),)](
                gates_ptr=step_gates[step],
                c_ptr=step_c[step],
                previous_c_ptr=step_c[max(0, step - 1)],
                dh_ptr=step_dh[step],
                recurrent_dh_ptr=recurrent_dh,
                dc_ptr=dc,
                dgates_ptr=step_dgates[step],
                num_sentences=count,
                num_next_sentences=next_count,
                dh_stride=dh.stride(0),
                H=hidden_size,
                FIRST=not step,
                BLOCK=_BLOCK,
            )
            next_count = count
        starts = [0, *accumulate(batch_sizes)]
        previous_h = torch.cat(
            [h[:0], *(h[start : start + count] for start, count in zip(starts, batch_sizes[1:], strict=False))]
        )
        dweight_hh = dgates[batch_sizes[0] :].T @ previous_h
        return dgates @ weight_ih, dgates.T @ x, dweight_hh, dgates.sum(0), None


@triton.jit(do_not_specialize=["num_sentences"])
def _cell_forward(
    gates_ptr, c_ptr, previous_c_ptr, h_ptr, num_sentences, H: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr
):
    """One time step; the gates' pre-activations are overwritten with their activations."""
    unit, gate, mask = _unit_indices(num_sentences, H, BLOCK)
    i = _sigmoid(tl.load(gates_ptr + gate, mask=mask, other=0.0).to(tl.float32))
    f = _sigmoid(tl.load(gates_ptr + gate + H, mask=mask, other=0.0).to(tl.float32))
    g = _tanh(tl.load(gates_ptr + gate + 2 * H, mask=mask, other=0.0).to(tl.float32))
    o = _sigmoid(tl.load(gates_ptr + gate + 3 * H, mask=mask, other=0.0).to(tl.float32))
    c = i * g
    if not FIRST:
        c += f * tl.load(previous_c_ptr + unit, mask=mask, other=0.0)
    tl.store(c_ptr + unit, c, mask=mask)
    tl.store(h_ptr + unit, (o * _tanh(c)).to(h_ptr.dtype.element_ty), mask=mask)
    dtype = gates_ptr.dtype.element_ty
    tl.store(gates_ptr + gate, i.to(dtype), mask=mask)
    tl.store(gates_ptr + gate + H, f.to(dtype), mask=mask)
    tl.store(gates_ptr + gate + 2 * H, g.to(dtype), mask=mask)
    tl.store(gates_ptr + gate + 3 * H, o.to(dtype), mask=mask)


@triton.jit(do_not_specialize=["num_sentences", "num_next_sentences"])
def _cell_backward(
    gates_ptr, c_ptr, previous_c_ptr, dh_ptr, recurrent_dh_ptr, dc_ptr, dgates_ptr, num_sentences, num_next_sentences,
    dh_stride, H: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One time step.

    `recurrent_dh_ptr` and `dc_ptr` are gradients from the next time step, whose sentences are the first
    `num_next_sentences` of this step; dc is overwritten.
    """
    unit, gate, mask = _unit_indices(num_sentences, H, BLOCK)
    has_next = unit < num_next_sentences.to(tl.int64) * H
    i = tl.load(gates_ptr + gate, mask=mask, other=0.0).to(tl.float32)
    f = tl.load(gates_ptr + gate + H, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(gates_ptr + gate + 2 * H, mask=mask, other=0.0).to(tl.float32)
    o = tl.load(gates_ptr + gate + 3 * H, mask=mask, other=0.0).to(tl.float32)
    tanh_c = _tanh(tl.load(c_ptr + unit, mask=mask, other=0.0))
    dh = tl.load(dh_ptr + unit // H * dh_stride + unit % H, mask=mask, other=0.0).to(tl.float32)
    dh += tl.load(recurrent_dh_ptr + unit, mask=has_next, other=0.0).to(tl.float32)
    dc = tl.load(dc_ptr + unit, mask=has_next, other=0.0)
    dc += dh * o * (1.0 - tanh_c * tanh_c)
    dtype = dgates_ptr.dtype.element_ty
    tl.store(dgates_ptr + gate, (dc * g * i * (1.0 - i)).to(dtype), mask=mask)
    if FIRST:
        tl.store(dgates_ptr + gate + H, tl.zeros((BLOCK,), dtype), mask=mask)
    else:
        previous_c = tl.load(previous_c_ptr + unit, mask=mask, other=0.0)
        tl.store(dgates_ptr + gate + H, (dc * previous_c * f * (1.0 - f)).to(dtype), mask=mask)
        tl.store(dc_ptr + unit, dc * f, mask=mask)
    tl.store(dgates_ptr + gate + 2 * H, (dc * i * (1.0 - g * g)).to(dtype), mask=mask)
    tl.store(dgates_ptr + gate + 3 * H, (dh * tanh_c * o * (1.0 - o)).to(dtype), mask=mask)


@triton.jit
def _unit_indices(num_sentences, H: tl.constexpr, BLOCK: tl.constexpr):
    """Return the program's units over all sentences, the offset of each unit's first gate, and the mask."""
    unit = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return unit, unit // H * 4 * H + unit % H, unit < num_sentences.to(tl.int64) * H


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0

"""One LSTM layer over packed sentences, forward and backward: large matrix products, with Triton kernels between them.

Reasons for not using cuDNN: under bf16 autocast PyTorch runs cuDNN's LSTM in fp16, without the loss scaling that fp16
gradients need. It also sums the gradient of the recurrent weight step by step, at half the rate of one product over all
tokens. Shapes: T tokens, time step by time step, of sentences in order of descending length; I inputs, H hidden units;
gates i, f, g, o in the order of nn.LSTM.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..common.nn.autocast import matmul_dtype

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch's CPU wheels come without Triton
    triton = None

_BLOCK = 1024  # units of one program

if triton is not None:

    @triton.jit
    def _sigmoid(x):
        return 1.0 / (1.0 + tl.exp(-x))

    @triton.jit
    def _tanh(x):
        return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0

    @triton.jit
    def _unit_indices(sentences, H: tl.constexpr, BLOCK: tl.constexpr):
        """Return the program's units over all sentences, the offset of each unit's first gate, and the mask."""
        unit = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        return unit, unit // H * 4 * H + unit % H, unit < sentences * H

    @triton.jit(do_not_specialize=["sentences"])
    def _cell_forward(
        gates, cells, previous_cells, out, sentences, H: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr
    ):
        """One time step; the gates' pre-activations are overwritten with their activations."""
        unit, gate, mask = _unit_indices(sentences, H, BLOCK)
        i = _sigmoid(tl.load(gates + gate, mask=mask, other=0.0).to(tl.float32))
        f = _sigmoid(tl.load(gates + gate + H, mask=mask, other=0.0).to(tl.float32))
        g = _tanh(tl.load(gates + gate + 2 * H, mask=mask, other=0.0).to(tl.float32))
        o = _sigmoid(tl.load(gates + gate + 3 * H, mask=mask, other=0.0).to(tl.float32))
        cell = i * g
        if not FIRST:
            cell += f * tl.load(previous_cells + unit, mask=mask, other=0.0)
        tl.store(cells + unit, cell, mask=mask)
        tl.store(out + unit, (o * _tanh(cell)).to(out.dtype.element_ty), mask=mask)
        dtype = gates.dtype.element_ty
        tl.store(gates + gate, i.to(dtype), mask=mask)
        tl.store(gates + gate + H, f.to(dtype), mask=mask)
        tl.store(gates + gate + 2 * H, g.to(dtype), mask=mask)
        tl.store(gates + gate + 3 * H, o.to(dtype), mask=mask)

    @triton.jit(do_not_specialize=["sentences", "next_sentences"])
    def _cell_backward(
        gates, cells, previous_cells, grad_out, next_grad_hidden, grad_cell, grad_gates, sentences, next_sentences,
        grad_out_stride, H: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """One time step.

        `next_grad_hidden` and `grad_cell` are gradients from the next time step, whose `next_sentences` sentences are
        the first ones of this step; `grad_cell` is overwritten.
        """
        unit, gate, mask = _unit_indices(sentences, H, BLOCK)
        has_next = unit < next_sentences * H
        i = tl.load(gates + gate, mask=mask, other=0.0).to(tl.float32)
        f = tl.load(gates + gate + H, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(gates + gate + 2 * H, mask=mask, other=0.0).to(tl.float32)
        o = tl.load(gates + gate + 3 * H, mask=mask, other=0.0).to(tl.float32)
        tanh_cell = _tanh(tl.load(cells + unit, mask=mask, other=0.0))
        grad_hidden = tl.load(grad_out + unit // H * grad_out_stride + unit % H, mask=mask, other=0.0).to(tl.float32)
        grad_hidden += tl.load(next_grad_hidden + unit, mask=has_next, other=0.0).to(tl.float32)
        grad = tl.load(grad_cell + unit, mask=has_next, other=0.0)
        grad += grad_hidden * o * (1.0 - tanh_cell * tanh_cell)
        dtype = grad_gates.dtype.element_ty
        tl.store(grad_gates + gate, (grad * g * i * (1.0 - i)).to(dtype), mask=mask)
        if FIRST:
            tl.store(grad_gates + gate + H, tl.zeros((BLOCK,), dtype), mask=mask)
        else:
            previous = tl.load(previous_cells + unit, mask=mask, other=0.0)
            tl.store(grad_gates + gate + H, (grad * previous * f * (1.0 - f)).to(dtype), mask=mask)
            tl.store(grad_cell + unit, grad * f, mask=mask)
        tl.store(grad_gates + gate + 2 * H, (grad * i * (1.0 - g * g)).to(dtype), mask=mask)
        tl.store(grad_gates + gate + 3 * H, (grad_hidden * tanh_cell * o * (1.0 - o)).to(dtype), mask=mask)


class _PackedLSTM(torch.autograd.Function):
    """Matrix products are rounded to the dtype of x; cells and their gradients stay in fp32."""

    @staticmethod
    def forward(ctx, x, weight_ih, weight_hh, bias, batch_sizes):
        H = weight_hh.shape[1]
        gates = torch.addmm(bias, x, weight_ih.T)
        out = x.new_empty(len(x), H)
        cells = torch.empty(len(x), H, dtype=torch.float32, device=x.device)
        step_gates, step_out, step_cells = gates.split(batch_sizes), out.split(batch_sizes), cells.split(batch_sizes)
        recurrent_weight = weight_hh.T
        for step, count in enumerate(batch_sizes):
            previous = max(0, step - 1)
            if step:
                step_gates[step].addmm_(step_out[previous][:count], recurrent_weight)
            _cell_forward[(triton.cdiv(count * H, _BLOCK),)](
                step_gates[step], step_cells[step], step_cells[previous], step_out[step], count, H, not step, _BLOCK
            )
        ctx.batch_sizes = batch_sizes
        ctx.save_for_backward(x, weight_ih, weight_hh, gates, cells, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        x, weight_ih, weight_hh, gates, cells, out = ctx.saved_tensors
        batch_sizes, H = ctx.batch_sizes, weight_hh.shape[1]
        if grad_out.stride(1) != 1:
            grad_out = grad_out.contiguous()
        grad_gates, grad_cell = torch.empty_like(gates), cells.new_empty(batch_sizes[0], H)
        next_grad_hidden = out.new_empty(batch_sizes[0], H)
        step_gates, step_cells, step_grad_out, step_grad_gates = (
            tensor.split(batch_sizes) for tensor in (gates, cells, grad_out, grad_gates)
        )
        next_count = 0
        for step in range(len(batch_sizes) - 1, -1, -1):
            if next_count:
                torch.mm(step_grad_gates[step + 1], weight_hh, out=next_grad_hidden[:next_count])
            count = batch_sizes[step]
            _cell_backward[(triton.cdiv(count * H, _BLOCK),)](
                step_gates[step], step_cells[step], step_cells[max(0, step - 1)], step_grad_out[step],
                next_grad_hidden, grad_cell, step_grad_gates[step], count, next_count, grad_out.stride(0), H, not step,
                _BLOCK,
            )  # fmt: skip
            next_count = count
        starts = [0, *accumulate(batch_sizes)]
        previous_hidden = torch.cat(
            [out[:0], *(out[start : start + count] for start, count in zip(starts, batch_sizes[1:], strict=False))]
        )
        grad_weight_hh = grad_gates[batch_sizes[0] :].T @ previous_hidden
        return grad_gates @ weight_ih, grad_gates.T @ x, grad_weight_hh, grad_gates.sum(0), None


def packed_lstm(layer: nn.Module, x: Tensor, batch_sizes: Sequence[int]) -> Tensor:
    """Apply the nn.LSTM `layer`, of one layer, to packed x [T, I] from a zero state; return [T, H].

    `batch_sizes` are the sentences that reach each time step.
    """
    dtype = matmul_dtype(x)
    weight_ih, weight_hh, bias_ih, bias_hh = layer.parameters()
    with torch.autocast(x.device.type, enabled=False):
        weights = weight_ih.to(dtype), weight_hh.to(dtype)
        return _PackedLSTM.apply(x.to(dtype), *weights, (bias_ih + bias_hh).to(dtype), batch_sizes)

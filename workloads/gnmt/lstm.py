"""One LSTM layer over packed sentences, forward and back: matrix products as large as they can be, kernels between.

cuDNN's in PyTorch computes in fp16 under bf16's autocast, without the scaling that fp16 gradients need, and sums the
recurrent weight's gradient step by step at half the rate of one product over all pieces. Shapes: T pieces, position
after position, of sentences in order of falling length; I units in, H units; gates i, f, g, o as nn.LSTM has them.
"""

from itertools import accumulate

import torch
from torch import Tensor, nn

from ..common.nn.triton_support import available
from ..common.translation.fused_linear_cross_entropy import product_dtype

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU wheels come without
    triton = None

__all__ = ["available", "packed_lstm"]

_BLOCK = 1024  # units of one program

if triton is not None:

    @triton.jit
    def _sigmoid(x):
        return 1.0 / (1.0 + tl.exp(-x))

    @triton.jit
    def _tanh(x):
        return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0

    @triton.jit
    def _units(sentences, H: tl.constexpr, BLOCK: tl.constexpr):
        """Number of each unit of the program among all sentences' units, where its gates begin, and which exist."""
        unit = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        return unit, unit // H * 4 * H + unit % H, unit < sentences * H

    @triton.jit(do_not_specialize=["sentences"])
    def _cell(gates, cells, before, out, sentences, H: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr):
        """One position: gates are bent where they are; `before` are the cells of the position before."""
        unit, at, some = _units(sentences, H, BLOCK)
        i = _sigmoid(tl.load(gates + at, mask=some, other=0.0).to(tl.float32))
        f = _sigmoid(tl.load(gates + at + H, mask=some, other=0.0).to(tl.float32))
        g = _tanh(tl.load(gates + at + 2 * H, mask=some, other=0.0).to(tl.float32))
        o = _sigmoid(tl.load(gates + at + 3 * H, mask=some, other=0.0).to(tl.float32))
        cell = i * g
        if not FIRST:
            cell += f * tl.load(before + unit, mask=some, other=0.0)
        tl.store(cells + unit, cell, mask=some)
        tl.store(out + unit, (o * _tanh(cell)).to(out.dtype.element_ty), mask=some)
        kind = gates.dtype.element_ty
        tl.store(gates + at, i.to(kind), mask=some)
        tl.store(gates + at + H, f.to(kind), mask=some)
        tl.store(gates + at + 2 * H, g.to(kind), mask=some)
        tl.store(gates + at + 3 * H, o.to(kind), mask=some)

    @triton.jit(do_not_specialize=["sentences", "later"])
    def _cell_back(
        gates,
        cells,
        before,
        given,
        for_cell,
        slopes,
        sentences,
        later,
        H: tl.constexpr,
        FIRST: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        """`for_cell` holds what the next position left for the first `later` sentences, then what this one leaves."""
        unit, at, some = _units(sentences, H, BLOCK)
        i = tl.load(gates + at, mask=some, other=0.0).to(tl.float32)
        f = tl.load(gates + at + H, mask=some, other=0.0).to(tl.float32)
        g = tl.load(gates + at + 2 * H, mask=some, other=0.0).to(tl.float32)
        o = tl.load(gates + at + 3 * H, mask=some, other=0.0).to(tl.float32)
        bent = _tanh(tl.load(cells + unit, mask=some, other=0.0))
        hidden = tl.load(given + unit, mask=some, other=0.0).to(tl.float32)
        cell = tl.load(for_cell + unit, mask=unit < later * H, other=0.0) + hidden * o * (1.0 - bent * bent)
        kind = slopes.dtype.element_ty
        tl.store(slopes + at, (cell * g * i * (1.0 - i)).to(kind), mask=some)
        if FIRST:
            tl.store(slopes + at + H, tl.zeros((BLOCK,), kind), mask=some)
        else:
            past = tl.load(before + unit, mask=some, other=0.0)
            tl.store(slopes + at + H, (cell * past * f * (1.0 - f)).to(kind), mask=some)
            tl.store(for_cell + unit, cell * f, mask=some)
        tl.store(slopes + at + 2 * H, (cell * i * (1.0 - g * g)).to(kind), mask=some)
        tl.store(slopes + at + 3 * H, (hidden * bent * o * (1.0 - o)).to(kind), mask=some)


class _PackedLSTM(torch.autograd.Function):
    """Sums of products are rounded to the type of x; cells and their gradients stay in fp32."""

    @staticmethod
    def forward(ctx, x, in_weight, own_weight, bias, alive):
        H = own_weight.shape[1]
        gates = torch.addmm(bias, x, in_weight.T)
        out = x.new_empty(len(x), H)
        cells = torch.empty(len(x), H, dtype=torch.float32, device=x.device)
        gates_at, out_at, cells_at = gates.split(alive), out.split(alive), cells.split(alive)
        for position, count in enumerate(alive):
            past = max(0, position - 1)
            if position:
                gates_at[position].addmm_(out_at[past][:count], own_weight.T)
            _cell[(triton.cdiv(count * H, _BLOCK),)](
                gates_at[position], cells_at[position], cells_at[past], out_at[position], count, H, not position, _BLOCK
            )
        ctx.alive = alive
        ctx.save_for_backward(x, in_weight, own_weight, gates, cells, out)
        return out

    @staticmethod
    def backward(ctx, given):
        x, in_weight, own_weight, gates, cells, out = ctx.saved_tensors
        alive, H = ctx.alive, own_weight.shape[1]
        given, slopes = given.clone(memory_format=torch.contiguous_format), torch.empty_like(gates)
        for_cell = torch.empty(alive[0], H, dtype=torch.float32, device=x.device)
        sides = [side.split(alive) for side in (gates, cells, given, slopes)]
        later = 0
        for position in range(len(alive) - 1, -1, -1):
            gates_at, cells_at, given_at, slopes_at = (side[position] for side in sides)
            if later:
                given_at[:later].addmm_(sides[3][position + 1], own_weight)
            count = alive[position]
            _cell_back[(triton.cdiv(count * H, _BLOCK),)](
                gates_at, cells_at, sides[1][max(0, position - 1)], given_at, for_cell, slopes_at, count, later, H,
                not position, _BLOCK,
            )  # fmt: skip
            later = count
        starts = [0, *accumulate(alive)]
        before = torch.cat(
            [out[:0], *(out[start : start + count] for start, count in zip(starts, alive[1:], strict=False))]
        )
        for_own = slopes[alive[0] :].T @ before
        return slopes @ in_weight, slopes.T @ x, for_own, slopes.sum(0), None


def packed_lstm(layer: nn.Module, x: Tensor, alive: Tensor) -> Tensor:
    """[T, H] of x [T, I] by an nn.LSTM of one layer, from no state.

    `alive` int64 on the CPU says how many sentences reach each position.
    """
    dtype = product_dtype(x)
    in_weight, own_weight, in_bias, own_bias = layer.parameters()
    with torch.autocast(x.device.type, enabled=False):
        matrices = in_weight.to(dtype), own_weight.to(dtype)
        return _PackedLSTM.apply(x.to(dtype), *matrices, (in_bias + own_bias).to(dtype), alive.tolist())

"""What the Triton kernels of `tile_kernels.py` and `sentence_kernels.py` share: dropout masks, and rows in memory."""

from ..common.nn.dropout import pack_kept
from ..common.nn.triton_support import tl, triton


@triton.jit
def draw_masks(seed, rows, columns, head, threshold):
    """Return int32 for each pair whose bits say in which of eight heads, beginning at a multiple of 8, it is kept."""
    counter = tl.zeros((rows.shape[0], columns.shape[0]), tl.int32)
    group = counter + head // 8
    a, b, c, d = tl.philox(seed, counter + rows[:, None], counter + columns[None], group, counter)
    return pack_kept(a, b, c, d, threshold)


@triton.jit
def is_kept(masks, head):
    """Return the mask of a head."""
    return (masks >> (head % 8) & 1) == 1


@triton.jit
def row_pointers(base_ptr, rows, stride):
    """Return a pointer to each row; the offsets are 64 bits wide, because those of many tokens pass 2**31."""
    return base_ptr + rows.to(tl.int64) * stride


@triton.jit
def load_rows(base_ptr, rows, mask, stride, D: tl.constexpr):
    """Return the D values of each row, 0 where they are masked."""
    pointers = row_pointers(base_ptr, rows, stride)[:, None] + tl.arange(0, D)[None]
    return tl.load(pointers, mask=mask[:, None], other=0.0)


@triton.jit
def store_rows(base_ptr, rows, mask, stride, value, D: tl.constexpr):
    """Store the D values of each row, except where they are masked."""
    pointers = row_pointers(base_ptr, rows, stride)[:, None] + tl.arange(0, D)[None]
    tl.store(pointers, value.to(base_ptr.dtype.element_ty), mask=mask[:, None])

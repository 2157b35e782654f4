"""What the Triton kernels of `tile_kernels.py` and `sentence_kernels.py` share: random numbers, and rows in memory."""

from ..common.nn.triton_support import tl, triton


@triton.jit
def random_24_bits(seed, head, row, column, STOCK: tl.constexpr):
    """Return a random number below 2**24 for each pair; STOCK: by Triton's Philox, else by a faster hash.

    Key and counter of Philox are (seed, head) and (row, column). The hash has the constants of Wellons' lowbias32.
    """
    if STOCK:
        key = seed.to(tl.int64) | (head.to(tl.int64) << 32)
        counter = (row.to(tl.int64) << 32)[:, None] | column.to(tl.int64)[None]
        x = tl.randint(key, counter).to(tl.uint32)
    else:
        x = (row.to(tl.uint32) * 0x9E3779B1)[:, None] ^ (column.to(tl.uint32) * 0x85EBCA77)[None]
        x ^= (seed + head * 0x27D4EB2F).to(tl.uint32)
        x ^= x >> 16
        x *= 0x7FEB352D
        x ^= x >> 15
        x *= 0x846CA68B
        x ^= x >> 16
    return (x >> 8).to(tl.int32)


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

"""What the Triton kernels of `tile_kernels.py` and `sentence_kernels.py` share: random numbers, and rows in memory."""

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch's CPU wheels come without Triton
    triton = None

if triton is not None:

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
    def load_rows(base, rows, mask, stride, D: tl.constexpr):
        """Return the D values of each row, 0 where they are masked."""
        pointers = base + rows.to(tl.int64)[:, None] * stride + tl.arange(0, D)[None]
        return tl.load(pointers, mask=mask[:, None], other=0.0)

    @triton.jit
    def store_rows(base, rows, mask, stride, value, D: tl.constexpr):
        """Store the D values of each row, except where they are masked."""
        pointers = base + rows.to(tl.int64)[:, None] * stride + tl.arange(0, D)[None]
        tl.store(pointers, value.to(base.dtype.element_ty), mask=mask[:, None])

"""Philox4x32-10 (Salmon et al. 2011) in NumPy, which tests of dropout compare Triton's with."""

import numpy as np

MULTIPLIERS, KEY_STEPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)


def philox(seed, c0, c1=0, c2=0):
    """Four words uint64 [...] below 2**32 of the counters (c0, c1, c2, 0) [...]."""
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    words = [np.asarray(c, np.uint64) for c in np.broadcast_arrays(c0, c1, c2, 0)]
    for _ in range(10):
        products = [np.uint64(m) * word for m, word in zip(MULTIPLIERS, words[::2], strict=True)]
        high, low = [product >> np.uint64(32) for product in products], [p & np.uint64(0xFFFFFFFF) for p in products]
        words = [high[1] ^ words[1] ^ np.uint64(keys[0]), low[1], high[0] ^ words[3] ^ np.uint64(keys[1]), low[0]]
        keys = [(key + step) & 0xFFFFFFFF for key, step in zip(keys, KEY_STEPS, strict=True)]
    return words


def eight_masks(seed, p, *counters):
    """The eight masks bool [8, ...] of calls: which of the 16-bit halves, lower first, are p * 2**16 or more."""
    halves = [half for word in philox(seed, *counters) for half in (word & np.uint64(0xFFFF), word >> np.uint64(16))]
    return np.stack(halves) >= round(p * 2**16)

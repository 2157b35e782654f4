"""Which of many boxes stay that overlap no better one: of many groups at once, in shapes that depend on no data.

Shapes: G groups of K boxes; boxes are left, top, right, bottom.
"""

import torch
from torch import Tensor
from torchvision.ops import nms

from ..nn.triton_support import available

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU wheels come without
    triton = None

if triton is not None:

    @triton.jit
    def _suppress(boxes, counts, kept, most, overlap, EDGE: tl.constexpr, BLOCK: tl.constexpr):
        group = tl.program_id(0)
        place = tl.arange(0, BLOCK)
        inside = place < most
        at = boxes + (group.to(tl.int64) * most + place) * 4
        left, top = tl.load(at, mask=inside, other=0.0), tl.load(at + 1, mask=inside, other=0.0)
        right, bottom = tl.load(at + 2, mask=inside, other=0.0), tl.load(at + 3, mask=inside, other=0.0)
        area = (right - left + EDGE) * (bottom - top + EDGE)
        count = tl.load(counts + group)
        alive = (inside & (place < count)).to(tl.int32)
        for first in range(0, count):
            if tl.sum(tl.where(place == first, alive, 0), 0) > 0:
                one = boxes + (group.to(tl.int64) * most + first) * 4
                x, y, r, b = tl.load(one), tl.load(one + 1), tl.load(one + 2), tl.load(one + 3)
                wide = tl.maximum(tl.minimum(right, r) - tl.maximum(left, x) + EDGE, 0.0)
                tall = tl.maximum(tl.minimum(bottom, b) - tl.maximum(top, y) + EDGE, 0.0)
                shared = wide * tall
                union = area + (r - x + EDGE) * (b - y + EDGE) - shared
                alive = tl.where((place > first) & (shared > overlap * union), 0, alive)
        tl.store(kept + group.to(tl.int64) * most + place, alive.to(tl.int8), mask=inside)


def suppress(boxes: Tensor, overlap: float, counts: Tensor | None = None, *, edge: float = 0.0) -> Tensor:
    """bool [G, K]: which boxes float32 [G, K, 4], falling by score, overlap no better kept one by more than `overlap`.

    Of a group the first `counts` [G] exist, or all of them; `edge` is 1 where widths are inclusive, in pixels.
    """
    if counts is None:
        counts = torch.full((len(boxes),), boxes.shape[1], device=boxes.device)
    if available(boxes):
        return _on_device(boxes, counts.int(), overlap, edge)
    kept = torch.zeros(boxes.shape[:2], dtype=torch.bool)
    falling = -torch.arange(boxes.shape[1], dtype=boxes.dtype)
    exclusive = boxes + boxes.new_tensor([0.0, 0.0, edge, edge])  # as torchvision counts widths
    for group, count in enumerate(counts.tolist()):
        kept[group, nms(exclusive[group, :count], falling[:count], overlap)] = True
    return kept


def _on_device(boxes: Tensor, counts: Tensor, overlap: float, edge: float) -> Tensor:
    groups, most, _ = boxes.shape
    kept = torch.empty(groups, most, dtype=torch.int8, device=boxes.device)
    block = triton.next_power_of_2(most)
    warps = 8 if block > 512 else 4 if block > 256 else 1
    _suppress[(groups,)](boxes.contiguous(), counts, kept, most, overlap, EDGE=edge, BLOCK=block, num_warps=warps)
    return kept.bool()

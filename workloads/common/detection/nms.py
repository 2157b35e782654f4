"""Non-maximum suppression of many groups of boxes at once, in shapes that do not depend on the data.

Shapes: G groups of K boxes (left, top, right, bottom).
"""

import torch
from torch import Tensor

from ..nn.triton_support import tl, triton, triton_available
from ..vision.torchvision_library import load_library


def batched_nms(
    boxes: Tensor, iou_threshold: float, counts: Tensor | None = None, *, pixel_offset: float = 0.0
) -> Tensor:
    """Return bool [G, K]: which boxes have an IoU of at most `iou_threshold` with every better box that is kept.

    `boxes` float32 [G, K, 4] are sorted by falling score. `counts` [G] is the number of boxes that exist in each group,
    by default all. `pixel_offset` is 1 for boxes in pixels whose right and bottom edges are inclusive.
    """
    if counts is None:
        counts = torch.full((len(boxes),), boxes.shape[1], device=boxes.device)
    if triton_available(boxes):
        return _batched_nms_triton(boxes, counts.int(), iou_threshold, pixel_offset)
    load_library("_C")
    kept = torch.zeros(boxes.shape[:2], dtype=torch.bool)
    scores = -torch.arange(boxes.shape[1], dtype=boxes.dtype)
    exclusive_boxes = boxes + boxes.new_tensor([0.0, 0.0, pixel_offset, pixel_offset])  # as torchvision expects
    for group, count in enumerate(counts.tolist()):
        kept[group, torch.ops.torchvision.nms(exclusive_boxes[group, :count], scores[:count], iou_threshold)] = True
    return kept


def _batched_nms_triton(boxes: Tensor, counts: Tensor, iou_threshold: float, pixel_offset: float) -> Tensor:
    groups, boxes_per_group, _ = boxes.shape
    kept = torch.empty(groups, boxes_per_group, dtype=torch.int8, device=boxes.device)
    block = triton.next_power_of_2(boxes_per_group)
    warps = 8 if block > 512 else 4 if block > 256 else 1
    _nms[(groups,)](
        boxes_ptr=boxes.contiguous(), counts_ptr=counts, kept_ptr=kept, boxes_per_group=boxes_per_group,
        iou_threshold=iou_threshold, EDGE=pixel_offset, BLOCK=block, num_warps=warps,
    )  # fmt: skip
    return kept.bool()


@triton.jit
def _nms(boxes_ptr, counts_ptr, kept_ptr, boxes_per_group, iou_threshold, EDGE: tl.constexpr, BLOCK: tl.constexpr):
    """Drop, for each box of a group that is kept, the worse boxes that overlap it."""
    group = tl.program_id(0)
    index = tl.arange(0, BLOCK)
    in_group = index < boxes_per_group
    box_ptr = boxes_ptr + (group.to(tl.int64) * boxes_per_group + index) * 4
    left, top = tl.load(box_ptr, mask=in_group, other=0.0), tl.load(box_ptr + 1, mask=in_group, other=0.0)
    right, bottom = tl.load(box_ptr + 2, mask=in_group, other=0.0), tl.load(box_ptr + 3, mask=in_group, other=0.0)
    area = (right - left + EDGE) * (bottom - top + EDGE)
    count = tl.load(counts_ptr + group)
    alive = (in_group & (index < count)).to(tl.int32)
    for current in range(0, count):
        if tl.sum(tl.where(index == current, alive, 0), 0) > 0:
            best_ptr = boxes_ptr + (group.to(tl.int64) * boxes_per_group + current) * 4
            x0, y0, x1, y1 = tl.load(best_ptr), tl.load(best_ptr + 1), tl.load(best_ptr + 2), tl.load(best_ptr + 3)
            width = tl.maximum(tl.minimum(right, x1) - tl.maximum(left, x0) + EDGE, 0.0)
            height = tl.maximum(tl.minimum(bottom, y1) - tl.maximum(top, y0) + EDGE, 0.0)
            intersection = width * height
            union = area + (x1 - x0 + EDGE) * (y1 - y0 + EDGE) - intersection
            alive = tl.where((index > current) & (intersection > iou_threshold * union), 0, alive)
    tl.store(kept_ptr + group.to(tl.int64) * boxes_per_group + index, alive.to(tl.int8), mask=in_group)

"""Matching of regions to boxes by their IoU. The Triton kernel keeps no table of IoUs.

With a hundred thousand anchors and hundreds of boxes in each of 16 images, such a table has gigabytes, and each
operation on it reads or writes them all.

Shapes: N images, R regions, M boxes per image.
"""

import torch
from torch import Tensor

from ..common.nn.triton_support import tl, triton, triton_available
from . import boxes as box_ops

NEGATIVE, IGNORED = -1, -2
_BLOCK_R, _BLOCK_M = 128, 16  # regions and boxes that a program compares at a time


def match(
    regions: Tensor, boxes: Tensor, valid: Tensor, *, foreground_iou: float, background_iou: float, force_best: bool
) -> Tensor:
    """Return int64 [N, R]: the index of each region's box, NEGATIVE or IGNORED.

    A region, of [N, R, 4] or of [1, R, 4] for all images, matches the box of its largest IoU if that is at least
    `foreground_iou`, and is negative below `background_iou`. With `force_best`, all regions that tie for the largest
    IoU of a box match their own best box as well. `valid` bool [N, M] says which of the boxes [N, M, 4] exist.
    """
    if triton_available(regions):
        return match_by_kernel(regions, boxes, valid, foreground_iou, background_iou, force_best)
    iou = box_ops.iou(regions, boxes).masked_fill(~valid[:, None], -1.0)
    best_iou, box_index = iou.max(2)
    matches = torch.where(best_iou >= foreground_iou, box_index, IGNORED)
    matches = torch.where(best_iou < background_iou, NEGATIVE, matches)
    if force_best:
        best_iou_of_box = iou.amax(1, keepdim=True)
        is_best_of_box = ((iou == best_iou_of_box) & (best_iou_of_box > 0)).any(2)
        matches = torch.where(is_best_of_box, box_index, matches)
    return matches


def match_by_kernel(
    regions: Tensor, boxes: Tensor, valid: Tensor, foreground_iou: float, background_iou: float, force_best: bool
) -> Tensor:
    """Return the result of `match`."""
    (images, num_boxes), num_regions = valid.shape, regions.shape[1]
    matches = torch.empty(images, num_regions, dtype=torch.int64, device=regions.device)
    best_of_boxes = torch.zeros(images, num_boxes, dtype=torch.int32, device=regions.device)
    numbers = torch.arange(1, num_boxes + 1, dtype=torch.int32, device=regions.device)
    box_counts = (numbers * valid).amax(1)  # up to the last that exists
    image_stride = 0 if len(regions) == 1 else 4 * num_regions
    for write in (False, True) if force_best else (True,):
        _match[images, triton.cdiv(num_regions, _BLOCK_R)](
            regions_ptr=regions.float().contiguous(), image_stride=image_stride,
            boxes_ptr=boxes.float().contiguous(), valid_ptr=valid.contiguous(), box_counts_ptr=box_counts,
            best_of_boxes_ptr=best_of_boxes, matches_ptr=matches, num_regions=num_regions, num_boxes=num_boxes,
            FOREGROUND_IOU=foreground_iou, BACKGROUND_IOU=background_iou, NEGATIVE=NEGATIVE, IGNORED=IGNORED,
            BLOCK_R=_BLOCK_R, BLOCK_M=_BLOCK_M, FORCE_BEST=force_best, WRITE=write,
            enable_fp_fusion=False,  # IoUs are compared for equality
        )  # fmt: skip
    return matches


@triton.jit
def _match(
    regions_ptr, image_stride, boxes_ptr, valid_ptr, box_counts_ptr, best_of_boxes_ptr, matches_ptr, num_regions,
    num_boxes, FOREGROUND_IOU: tl.constexpr, BACKGROUND_IOU: tl.constexpr, NEGATIVE: tl.constexpr,
    IGNORED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_M: tl.constexpr, FORCE_BEST: tl.constexpr,
    WRITE: tl.constexpr,
):  # fmt: skip
    """Write the matches or, without WRITE, only find the largest IoU of each box, as the bits of a float."""
    image, region = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    boxes_ptr += image * num_boxes * 4
    valid_ptr += image * num_boxes
    best_of_boxes_ptr += image * num_boxes
    exists = region < num_regions
    left, top, right, bottom, area = _load_boxes(regions_ptr + image * image_stride, region, exists)
    best = tl.full((BLOCK_R,), -1.0, tl.float32)
    best_box, is_best_of_box = tl.zeros((BLOCK_R,), tl.int32), tl.zeros((BLOCK_R,), tl.int32)
    for start in range(0, tl.load(box_counts_ptr + image), BLOCK_M):
        box = start + tl.arange(0, BLOCK_M)
        usable = tl.load(valid_ptr + box, mask=box < num_boxes, other=0) != 0
        box_left, box_top, box_right, box_bottom, box_area = _load_boxes(boxes_ptr, box, usable)
        width = tl.minimum(right[:, None], box_right[None]) - tl.maximum(left[:, None], box_left[None]) + 1
        height = tl.minimum(bottom[:, None], box_bottom[None]) - tl.maximum(top[:, None], box_top[None]) + 1
        intersection = tl.maximum(width, 0.0) * tl.maximum(height, 0.0)
        iou = tl.div_rn(intersection, area[:, None] + box_area[None] - intersection)
        iou = tl.where(usable[None] & exists[:, None], iou, -1.0)
        if WRITE:
            best_here = tl.max(iou, 1)
            best_box = tl.where(best_here > best, start + tl.argmax(iou, 1), best_box)
            best = tl.maximum(best, best_here)
            if FORCE_BEST:
                best_of_box = tl.load(best_of_boxes_ptr + box, mask=usable, other=0).to(tl.float32, bitcast=True)
                ties = (iou == best_of_box[None]) & (best_of_box[None] > 0.0)
                is_best_of_box = tl.maximum(is_best_of_box, tl.max(ties.to(tl.int32), 1))
        else:  # floats that are not negative are in the order of their bits
            tl.atomic_max(best_of_boxes_ptr + box, tl.max(iou, 0).to(tl.int32, bitcast=True), mask=usable)
    if WRITE:
        match = tl.where(best >= FOREGROUND_IOU, best_box, tl.where(best < BACKGROUND_IOU, NEGATIVE, IGNORED))
        match = tl.where(is_best_of_box != 0, best_box, match)
        tl.store(matches_ptr + image * num_regions + region, match.to(tl.int64), mask=exists)


@triton.jit
def _load_boxes(boxes_ptr, index, mask):
    """Return left, top, right and bottom of boxes [..., 4], and their areas."""
    left = tl.load(boxes_ptr + index * 4, mask=mask, other=0.0)
    top = tl.load(boxes_ptr + index * 4 + 1, mask=mask, other=0.0)
    right = tl.load(boxes_ptr + index * 4 + 2, mask=mask, other=0.0)
    bottom = tl.load(boxes_ptr + index * 4 + 3, mask=mask, other=0.0)
    return left, top, right, bottom, (right - left + 1) * (bottom - top + 1)

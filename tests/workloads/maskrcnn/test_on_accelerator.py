"""Mask R-CNN's kernels on a GPU."""

import numpy as np
import pytest
import torch
from torchvision.ops import roi_align

from timetrial.runner.hardware.host_copies import host_copies
from timetrial.workloads.maskrcnn import kernels as maskrcnn_kernels
from timetrial.workloads.maskrcnn import masks, pasting
from timetrial.workloads.maskrcnn.group_norm import GroupNorm
from timetrial.workloads.maskrcnn.matching import match

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("size", "dtype", "bound"), [(7, torch.float32, 1e-4), (14, torch.bfloat16, 1e-2)])
def test_roi_align_equals_torchvision(size, dtype, bound, random_boxes):
    device = torch.accelerator.current_accelerator()
    maps = [torch.randn(2, 32, 320 // scale, 448 // scale, device=device) for scale in (1, 2, 4, 8)]
    maps = [x.to(dtype).float().requires_grad_() for x in maps]
    regions, levels = random_boxes(300, 1280).to(device), torch.arange(300, device=device) // 2 % 4
    given = torch.randn(300, 32, size, size, device=device).to(dtype)
    arguments = regions.view(2, 150, 4), levels.view(2, 150), size
    runs = []
    for _ in range(2):
        pooled = maskrcnn_kernels.roi_align([x.to(dtype) for x in maps], *arguments)
        runs.append(torch.autograd.grad(pooled, maps, given))
    expected = torch.zeros(pooled.shape, device=device)
    rois = torch.cat([torch.arange(2, device=device).repeat_interleave(150)[:, None].float(), regions], 1)
    for level, x in enumerate(maps):
        some = (levels == level).nonzero()[:, 0]
        expected = expected.index_copy(0, some, roi_align(x, rois[some], size, 1 / (4 << level), 2, aligned=False))
    torch.testing.assert_close(pooled.float(), expected, rtol=bound, atol=bound)
    for on_gpu, again, other in zip(*runs, torch.autograd.grad(expected, maps, given.float()), strict=True):
        assert torch.equal(on_gpu, again)
        assert (on_gpu - other).norm() < bound * other.norm()


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
@pytest.mark.parametrize("shape", [(3, 64, 60, 83), (2, 2048, 9, 11)])
def test_group_norm_equals_pytorch_in_float64(shape, dtype, bound):
    device = torch.accelerator.current_accelerator()
    layer = GroupNorm(32, shape[1]).to(device)
    torch.nn.init.normal_(layer.weight)
    x = torch.randn(shape, device=device, dtype=dtype).contiguous(memory_format=torch.channels_last).requires_grad_()
    grad = torch.randn(shape, device=device, dtype=dtype)
    with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
        result = layer(x)
    assert result.dtype == dtype
    assert result.is_contiguous(memory_format=torch.channels_last)
    parameters = (x, layer.weight, layer.bias)
    gradients = torch.autograd.grad(result, parameters, grad)
    wide = [tensor.detach().double().requires_grad_() for tensor in parameters]
    expected = torch.nn.functional.group_norm(wide[0], 32, wide[1], wide[2])
    for mine, other in zip(
        (result, *gradients), (expected, *torch.autograd.grad(expected, wide, grad.double())), strict=True
    ):
        assert (mine - other).norm() < bound * other.norm()


def test_pasted_masks_equal_those_of_the_cpu(random_boxes):
    boxes = random_boxes(300) - 100
    masks, sizes = torch.rand(300, 28, 28).sqrt(), torch.tensor([[480, 640], [900, 700]]).repeat(150, 1)
    device, valid = torch.accelerator.current_accelerator(), torch.rand(300) < 0.8
    pasted = pasting.paste_by_kernel(*(tensor.to(device) for tensor in (masks, boxes, sizes, valid)))
    rows = valid.nonzero()[:, 0].numpy()
    (pasted,) = host_copies([pasted])
    assert int(pasted.ends[-1]) < len(pasted.changes)
    assert pasted.rles(rows, sizes[rows].numpy()) == pasting.paste_masks(masks[rows], boxes[rows], sizes[rows])


def test_matches_equal_those_of_the_cpu(random_boxes):
    """Many regions, to whose boxes several programs add, and ties, as corners are whole numbers."""
    anchors, truth, valid = (
        random_boxes(20_000).round(),
        random_boxes(120).round().view(3, 40, 4),
        torch.rand(3, 40) < 0.5,
    )
    ious = {"foreground_iou": 0.7, "background_iou": 0.3, "force_best": True}
    device = torch.accelerator.current_accelerator()
    actual = match(anchors[None].to(device), truth.to(device), valid.to(device), **ious)
    assert torch.equal(actual.cpu(), match(anchors[None], truth, valid, **ious))


def test_mask_targets_equal_those_of_the_cpu(random_boxes):
    device = torch.accelerator.current_accelerator()
    random = np.random.default_rng(1)
    points = torch.from_numpy(random.uniform(0, 200, (40, 12, 2))).float()
    edges = torch.cat([points, points.roll(-1, 1)], 2).flatten(0, 1)
    last = (torch.arange(12) % 6 == 5).repeat(40)
    outlines = masks.Outlines(edges, last, torch.arange(41) * 12)
    objects, where = torch.arange(160) % 40, random_boxes(160, 200)
    expected = masks.mask_targets(outlines, objects, where)
    on_device = masks.Outlines(*(part.to(device) for part in outlines))
    actual = masks.mask_targets(on_device, objects.to(device), where.to(device))
    assert torch.equal(actual.cpu(), expected)

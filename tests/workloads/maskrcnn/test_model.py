"""Mask R-CNN's network against a float64 oracle."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from timetrial.workloads.maskrcnn import model
from timetrial.workloads.maskrcnn.masks import Outlines
from timetrial.workloads.maskrcnn.model import MaskRCNN, SamplingSettings

spec = importlib.util.spec_from_file_location("maskrcnn_oracle", Path(__file__).with_name("oracle.py"))
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)


def small_model():
    torch.manual_seed(1)
    return MaskRCNN(4, SamplingSettings(32, 40, 20, 16), width=16, fpn_channels=32, representation_size=64)


def make_batch(images=2, max_boxes=3, size=128):
    """Return random pixels with rectangular outlines; the last image has one object fewer."""
    random = np.random.default_rng(1)
    pixels = torch.from_numpy(random.integers(256, size=(images, 3, size, size), dtype=np.uint8))
    low = random.uniform(0, size - 70, (images, max_boxes, 2))
    boxes = torch.from_numpy(np.concatenate([low, low + random.uniform(20, 69, (images, max_boxes, 2))], 2)).float()
    labels = torch.from_numpy(random.integers(1, 4, (images, max_boxes)))
    labels[-1, -1] = 0
    edges, last = [], []
    for left, top, right, bottom in boxes.flatten(0, 1).tolist():
        corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
        edges += [(*a, *b) for a, b in zip(corners, corners[1:] + corners[:1], strict=True)]
        last += [False, False, False, True]
    outlines = Outlines(torch.tensor(edges), torch.tensor(last), torch.arange(0, 4 * images * max_boxes + 1, 4))
    return pixels, torch.full((images, 2), size), boxes, labels, outlines


def test_parameter_counts_equal_the_reference():
    with torch.device("meta"):
        net = MaskRCNN(81, SamplingSettings())
    expected = oracle.count_parameters(81)
    trained = sum(weight.numel() for weight in net.parameters() if weight.requires_grad)
    assert trained == expected["trainable"] == 44_125_173
    assert sum(weight.numel() for weight in net.parameters()) - trained == expected["frozen"]
    assert sum(value.numel() for name, value in net.named_buffers() if "mean" not in name) == expected["buffers"]


def test_fpn_levels_equal_the_oracle():
    random = np.random.default_rng(1)
    low = random.uniform(0, 500, (200, 2))
    boxes = np.concatenate([low, low + 10 ** random.uniform(0, 3, (200, 2))], 1)
    assert (model.fpn_levels(torch.from_numpy(boxes)) + 2).tolist() == [oracle.level(box) for box in boxes]


def test_regions_with_nan_have_a_level():
    assert model.fpn_levels(torch.tensor([[math.nan] * 4, [0, 0, math.inf, 9]])).tolist() == [0, 3]


def test_bf16_maps_are_pooled_at_float32_corners():
    """Beyond 512 pixels bf16 corners would be multiples of 4."""
    net = small_model()
    maps = [torch.randn(1, 32, 1024 // stride, 1024 // stride).bfloat16() for stride in (4, 8, 16, 32)]
    regions = torch.tensor([[[701.3, 513.7, 722.9, 541.2], [601.0, 777.0, 823.0, 999.0], [2.5, 3.5, 900.5, 801.5]]])
    pooled = net.pool_regions(maps, regions, 7)
    expected = net.pool_regions([x.float() for x in maps], regions, 7)
    assert pooled.dtype is torch.bfloat16
    assert torch.equal(pooled, expected.bfloat16())


def test_mask_head_returns_the_logits_of_the_label():
    net = small_model()
    pooled, labels = torch.randn(5, 32, 14, 14), torch.tensor([1, 3, 2, 1, 0])
    x = pooled
    for conv in net.mask_convs:
        x = conv(x).relu()
    all_classes = net.mask_logits(net.mask_deconv(x).relu())
    torch.testing.assert_close(
        net.mask_head(pooled, labels), all_classes[torch.arange(5), labels], rtol=1e-4, atol=1e-5
    )


def test_backward_reaches_all_but_frozen_weights():
    net = small_model()
    loss = net(*make_batch())
    loss.backward()
    assert loss.isfinite()
    for name, weight in net.named_parameters():
        if name.startswith(("backbone.conv1", "backbone.stages.0")):
            assert weight.grad is None
        else:
            assert weight.grad is not None, name
            assert weight.grad.isfinite().all(), name
    for layer in (net.bbox_pred, net.mask_logits, net.rpn_deltas, net.fc1):
        assert layer.weight.grad.any()


def test_overfits_one_batch():
    net, inputs = small_model(), make_batch()
    optimizer = torch.optim.SGD(net.parameters(), 0.01, 0.9)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = net(*inputs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:3])


def test_heads_are_initialized_as_in_the_reference():
    """docs/mlperf_rules.md, "Mask R-CNN"; uniform weights have a limit, normal ones a standard deviation."""
    net = MaskRCNN(81, SamplingSettings(), width=8, fpn_channels=64, representation_size=256)
    for layer, std in ((net.rpn_conv, 0.01), (net.cls_score, 0.01), (net.bbox_pred, 0.001)):
        assert layer.weight.std().item() == pytest.approx(std, rel=0.05)
    for layer in (net.fc1, net.fc2, *net.backbone.lateral_convs, *net.backbone.output_convs):
        limit = (3 / layer.weight[0].numel()) ** 0.5
        assert 0.97 * limit < layer.weight.abs().max() <= limit
    for layer in net.mask_convs:
        assert layer.weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.05)
    assert not any(bias.any() for name, bias in net.named_parameters() if name.endswith("bias"))

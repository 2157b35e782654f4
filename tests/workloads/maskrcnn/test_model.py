"""Mask R-CNN's network and losses against slow transcriptions in float64 and torchvision's parts."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from timetrial.workloads.maskrcnn import model, regions
from timetrial.workloads.maskrcnn.masks import Outlines
from timetrial.workloads.maskrcnn.model import Draws, MaskRCNN

spec = importlib.util.spec_from_file_location("maskrcnn_oracle", Path(__file__).with_name("oracle.py"))
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)


def small():
    torch.manual_seed(1)
    return MaskRCNN(4, Draws(32, 40, 20, 16), width=16, pyramid=32, hidden=64)


def batch(images=2, most=3, edge=128):
    """Random pixels with rectangles of outlines in them; the last image has one object fewer."""
    random = np.random.default_rng(1)
    pixels = torch.from_numpy(random.integers(256, size=(images, 3, edge, edge), dtype=np.uint8))
    low = random.uniform(0, edge - 70, (images, most, 2))
    boxes = torch.from_numpy(np.concatenate([low, low + random.uniform(20, 69, (images, most, 2))], 2)).float()
    labels = torch.from_numpy(random.integers(1, 4, (images, most)))
    labels[-1, -1] = 0
    edges, last = [], []
    for left, top, right, bottom in boxes.flatten(0, 1).tolist():
        corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
        edges += [(*a, *b) for a, b in zip(corners, corners[1:] + corners[:1], strict=True)]
        last += [False, False, False, True]
    outlines = Outlines(torch.tensor(edges), torch.tensor(last), torch.arange(0, 4 * images * most + 1, 4))
    return pixels, torch.full((images, 2), edge), boxes, labels, outlines


def test_parameters_are_as_many_as_the_references():
    with torch.device("meta"):
        net = MaskRCNN(81, Draws())
    expected = oracle.count_parameters(81)
    trained = sum(weight.numel() for weight in net.parameters() if weight.requires_grad)
    assert trained == expected["trainable"] == 44_125_173
    assert sum(weight.numel() for weight in net.parameters()) - trained == expected["frozen"]
    assert sum(value.numel() for name, value in net.named_buffers() if "mean" not in name) == expected["buffers"]


def test_levels_are_the_formula():
    random = np.random.default_rng(1)
    low = random.uniform(0, 500, (200, 2))
    boxes = np.concatenate([low, low + 10 ** random.uniform(0, 3, (200, 2))], 1)
    assert (model.level(torch.from_numpy(boxes)) + 2).tolist() == [oracle.level(box) for box in boxes]


def test_regions_that_are_no_numbers_have_a_level_too():
    assert model.level(torch.tensor([[math.nan] * 4, [0, 0, math.inf, 9]])).tolist() == [0, 3]


def test_the_proposals_losses_are_the_formulas():
    random = np.random.default_rng(1)
    low = random.uniform(0, 60, (30, 2))
    anchors = np.concatenate([low, low + random.uniform(5, 40, (30, 2))], 1)
    boxes = np.concatenate([low[:3], low[:3] + 20], 1)
    matches = torch.from_numpy(random.integers(-2, 3, (2, 30)))
    chances, moves = random.normal(0, 1, (2, 30)), random.normal(0, 1, (2, 30, 4))
    drawn = regions.draw(matches, 10, 0.5)
    number = matches.gather(1, drawn.indices).clamp(min=0)
    target = model.geometry.encode(
        torch.from_numpy(boxes)[number], torch.from_numpy(anchors)[drawn.indices], (1.0, 1.0)
    )
    ours = model.drawn_loss(torch.from_numpy(chances), torch.from_numpy(moves), target, drawn)
    samples = [drawn.indices[image][drawn.counts[image]].tolist() for image in range(2)]
    parts = oracle.rpn_loss(chances, moves, [anchors] * 2, [boxes] * 2, matches.tolist(), samples)
    assert ours.item() == pytest.approx(sum(parts), rel=1e-5)


def test_the_boxes_loss_is_the_formula():
    random = np.random.default_rng(2)
    low = random.uniform(0, 60, (2, 12, 2))
    found = np.concatenate([low, low + random.uniform(5, 40, (2, 12, 2))], 2)
    boxes = [found[image, :3] + random.uniform(-3, 3, (3, 4)) for image in range(2)]
    labels = [random.integers(1, 5, 3) for _ in range(2)]
    matches = random.integers(-1, 3, (2, 12))
    scores, moves = random.normal(0, 1, (2, 12, 5)), random.normal(0, 1, (2, 12, 5, 4))
    counts = torch.from_numpy(random.random((2, 12)) < 0.7)
    number = torch.from_numpy(matches).clamp(min=0)
    positive = counts & (torch.from_numpy(matches) >= 0)
    label = torch.where(positive, torch.stack([torch.from_numpy(labels[i])[number[i]] for i in range(2)]), 0)
    target = torch.stack([torch.from_numpy(boxes[i])[number[i]] for i in range(2)])
    drawn = regions.Drawn(torch.arange(12).expand(2, 12), positive, counts)
    flat = (torch.from_numpy(scores).flatten(0, 1), torch.from_numpy(moves).flatten(0, 1))
    ours = model.box_loss(*flat, torch.from_numpy(found), target, label, drawn)
    samples = [counts[image].nonzero()[:, 0].tolist() for image in range(2)]
    parts = oracle.box_loss(list(scores), list(moves), list(found), boxes, labels, matches.tolist(), samples)
    assert ours.item() == pytest.approx(sum(parts), rel=1e-5)


def test_a_mask_is_that_of_the_regions_own_class():
    net = small()
    pooled, labels = torch.randn(5, 32, 14, 14), torch.tensor([1, 3, 2, 1, 0])
    x = pooled
    for conv in net.mask_convs:
        x = conv(x).relu()
    whole = net.mask(net.enlarge(x).relu())
    torch.testing.assert_close(net.outline(pooled, labels), whole[torch.arange(5), labels], rtol=1e-4, atol=1e-5)


def test_a_step_trains_all_but_what_is_frozen():
    net = small()
    loss = net(*batch())
    loss.backward()
    assert loss.isfinite()
    for name, weight in net.named_parameters():
        if name.startswith(("backbone.conv1", "backbone.stages.0")):
            assert weight.grad is None
        else:
            assert weight.grad is not None, name
            assert weight.grad.isfinite().all(), name
    assert all(weight.grad.any() for weight in (net.place.weight, net.mask.weight, net.moves.weight, net.fc1.weight))


def test_one_batch_can_be_learned_by_heart():
    net, things = small(), batch()
    optimizer = torch.optim.SGD(net.parameters(), 0.01, 0.9)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = net(*things)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:3])


def test_the_heads_start_as_the_references():
    """mlperf.md 12.3; what is uniform has a bound, what is normal a deviation."""
    net = MaskRCNN(81, Draws(), width=8, pyramid=64, hidden=256)
    for layer, deviation in ((net.look, 0.01), (net.classify, 0.01), (net.place, 0.001)):
        assert layer.weight.std().item() == pytest.approx(deviation, rel=0.05)
    for layer in (net.fc1, net.fc2, *net.backbone.laterals, *net.backbone.outputs):
        edge = (3 / layer.weight[0].numel()) ** 0.5
        assert 0.97 * edge < layer.weight.abs().max() <= edge
    for layer in net.mask_convs:
        assert layer.weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.05)
    assert not any(bias.any() for name, bias in net.named_parameters() if name.endswith("bias"))

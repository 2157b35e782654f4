"""Mask R-CNN's losses against a float64 oracle."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from timetrial.workloads.maskrcnn import boxes as box_ops
from timetrial.workloads.maskrcnn import losses, proposals

spec = importlib.util.spec_from_file_location("maskrcnn_oracle", Path(__file__).with_name("oracle.py"))
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)


def test_rpn_loss_equals_the_oracle():
    random = np.random.default_rng(1)
    low = random.uniform(0, 60, (30, 2))
    anchors = np.concatenate([low, low + random.uniform(5, 40, (30, 2))], 1)
    boxes = np.concatenate([low[:3], low[:3] + 20], 1)
    matches = torch.from_numpy(random.integers(-2, 3, (2, 30)))
    logits, deltas = random.normal(0, 1, (2, 30)), random.normal(0, 1, (2, 30, 4))
    samples = proposals.sample(matches, 10, 0.5)
    box_index = matches.gather(1, samples.indices).clamp(min=0)
    target = box_ops.encode(torch.from_numpy(boxes)[box_index], torch.from_numpy(anchors)[samples.indices], (1.0, 1.0))
    loss = losses.sampled_rpn_loss(torch.from_numpy(logits), torch.from_numpy(deltas), target, samples)
    sampled = [samples.indices[image][samples.valid[image]].tolist() for image in range(2)]
    parts = oracle.rpn_loss(logits, deltas, [anchors] * 2, [boxes] * 2, matches.tolist(), sampled)
    assert loss.item() == pytest.approx(sum(parts), rel=1e-5)


def test_box_loss_equals_the_oracle():
    random = np.random.default_rng(2)
    low = random.uniform(0, 60, (2, 12, 2))
    regions = np.concatenate([low, low + random.uniform(5, 40, (2, 12, 2))], 2)
    boxes = [regions[image, :3] + random.uniform(-3, 3, (3, 4)) for image in range(2)]
    labels = [random.integers(1, 5, 3) for _ in range(2)]
    matches = random.integers(-1, 3, (2, 12))
    logits, deltas = random.normal(0, 1, (2, 12, 5)), random.normal(0, 1, (2, 12, 5, 4))
    valid = torch.from_numpy(random.random((2, 12)) < 0.7)
    box_index = torch.from_numpy(matches).clamp(min=0)
    positive = valid & (torch.from_numpy(matches) >= 0)
    label = torch.where(positive, torch.stack([torch.from_numpy(labels[i])[box_index[i]] for i in range(2)]), 0)
    target = torch.stack([torch.from_numpy(boxes[i])[box_index[i]] for i in range(2)])
    samples = proposals.Samples(torch.arange(12).expand(2, 12), positive, valid)
    flat = (torch.from_numpy(logits).flatten(0, 1), torch.from_numpy(deltas).flatten(0, 1))
    loss = losses.box_loss(*flat, torch.from_numpy(regions), target, label, samples)
    sampled = [valid[image].nonzero()[:, 0].tolist() for image in range(2)]
    parts = oracle.box_loss(list(logits), list(deltas), list(regions), boxes, labels, matches.tolist(), sampled)
    assert loss.item() == pytest.approx(sum(parts), rel=1e-5)

"""Mask targets against pycocotools, and the kernel by Triton's interpreter against the CPU code."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from timetrial.workloads.maskrcnn.masks import SIDE, Outlines, mask_targets

spec = importlib.util.spec_from_file_location("maskrcnn_oracle", Path(__file__).with_name("oracle.py"))
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)

INTERPRETED = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import test_masks
from timetrial.workloads.maskrcnn import kernels, masks
outlines, objects, regions, _ = test_masks.draw_outlines(2)
expected = masks.mask_targets(outlines, objects, regions)
kernels.triton_available = lambda tensor: True
assert torch.equal(masks.mask_targets(outlines, objects, regions), expected)
assert 0.1 < expected.mean() < 0.9
"""


def draw_outlines(seed, count=12):
    """Return outlines of stars of one or two polygons, objects, regions around them, and the objects' polygons."""
    random = np.random.default_rng(seed)
    edges, last, begin, polygons = [], [], [0], []
    for _ in range(count):
        object_polygons = []
        for _ in range(int(random.integers(1, 3))):
            corners = int(random.integers(3, 12))
            angle = np.sort(random.uniform(0, 2 * np.pi, corners))
            radius = random.uniform(10, 40, corners)
            points = random.uniform(50, 90, 2) + np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
            object_polygons.append(points.ravel().tolist())
            edges += np.concatenate([points, np.roll(points, -1, 0)], 1).tolist()
            last += [False] * (corners - 1) + [True]
        begin.append(len(edges))
        polygons.append(object_polygons)
    outlines = Outlines(torch.tensor(edges, dtype=torch.float32), torch.tensor(last), torch.tensor(begin))
    objects = torch.from_numpy(random.integers(count, size=20))
    low = random.uniform(20, 60, (20, 2))
    regions = torch.from_numpy(np.concatenate([low, low + random.uniform(20, 80, (20, 2))], 1)).float()
    return outlines, objects, regions, polygons


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # pycocotools, under NumPy 2
def test_targets_equal_pycocotools_except_at_the_border():
    for seed in range(3):
        outlines, objects, regions, polygons = draw_outlines(seed)
        targets = mask_targets(outlines, objects, regions)
        differing, border = 0, 0
        for target, number, region in zip(targets, objects.tolist(), regions.double().numpy(), strict=True):
            expected = np.asarray(oracle.mask_target(polygons[number], region), dtype=np.float64)
            differing += int((target.numpy() != expected).sum())
            inner = expected[1:-1, 1:-1]
            neighbors = [expected[1 + y : SIDE - 1 + y, 1 + x : SIDE - 1 + x] for y in (-1, 0, 1) for x in (-1, 0, 1)]
            border += int(np.any([neighbor != inner for neighbor in neighbors], axis=0).sum())
        assert differing < 0.25 * border  # pixels at an outline, which pycocotools rounds differently
        assert differing < 0.03 * targets.numel()


def test_excludes_holes():
    """Of two nested squares in one polygon the area between them is inside."""
    squares = [[(0, 0), (28, 0), (28, 28), (0, 28)], [(7, 7), (21, 7), (21, 21), (7, 21)]]
    edges = [(*a, *b) for square in squares for a, b in zip(square, square[1:] + square[:1], strict=True)]
    last = torch.tensor([False] * 7 + [True])
    outlines = Outlines(torch.tensor(edges, dtype=torch.float32), last, torch.tensor([0, 8]))
    (target,) = mask_targets(outlines, torch.tensor([0]), torch.tensor([[0.0, 0.0, 27.0, 27.0]]))
    assert target.sum() == 28 * 28 - 14 * 14
    assert target[7:21, 7:21].sum() == 0


def test_kernel_equals_cpu(interpret):
    interpret(INTERPRETED, str(Path(__file__).parent))

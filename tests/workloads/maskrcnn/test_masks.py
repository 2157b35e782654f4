"""Mask targets against pycocotools, and the kernel by Triton's interpreter against the plain way."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from timetrial.workloads.maskrcnn.masks import SIDE, Outlines, targets

spec = importlib.util.spec_from_file_location("maskrcnn_oracle", Path(__file__).with_name("oracle.py"))
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)

INTERPRETED = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import test_masks as test
from timetrial.workloads.maskrcnn import kernels, masks
outlines, objects, regions, _ = test.draw(2)
plain = masks.targets(outlines, objects, regions)
kernels.triton_available = lambda tensor: True
assert torch.equal(masks.targets(outlines, objects, regions), plain)
assert 0.1 < plain.mean() < 0.9
"""


def draw(seed, count=12):
    """Stars of one or two polygons, and regions about them: (outlines, objects, regions, polygons of each object)."""
    random = np.random.default_rng(seed)
    edges, last, begin, polygons = [], [], [0], []
    for _ in range(count):
        mine = []
        for _ in range(int(random.integers(1, 3))):
            corners = int(random.integers(3, 12))
            angle = np.sort(random.uniform(0, 2 * np.pi, corners))
            reach = random.uniform(10, 40, corners)
            points = random.uniform(50, 90, 2) + np.stack([reach * np.cos(angle), reach * np.sin(angle)], 1)
            mine.append(points.ravel().tolist())
            edges += np.concatenate([points, np.roll(points, -1, 0)], 1).tolist()
            last += [False] * (corners - 1) + [True]
        begin.append(len(edges))
        polygons.append(mine)
    outlines = Outlines(torch.tensor(edges, dtype=torch.float32), torch.tensor(last), torch.tensor(begin))
    objects = torch.from_numpy(random.integers(count, size=20))
    low = random.uniform(20, 60, (20, 2))
    regions = torch.from_numpy(np.concatenate([low, low + random.uniform(20, 80, (20, 2))], 1)).float()
    return outlines, objects, regions, polygons


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # pycocotools, under NumPy 2
def test_targets_are_those_of_pycocotools_but_for_the_border():
    for seed in range(3):
        outlines, objects, regions, polygons = draw(seed)
        ours = targets(outlines, objects, regions)
        differing, border = 0, 0
        for place, (number, region) in enumerate(zip(objects.tolist(), regions.double().numpy(), strict=True)):
            right = np.asarray(oracle.mask_target(polygons[number], region), dtype=np.float64)
            differing += int((ours[place].numpy() != right).sum())
            inner = right[1:-1, 1:-1]
            around = [right[1 + a : SIDE - 1 + a, 1 + b : SIDE - 1 + b] for a in (-1, 0, 1) for b in (-1, 0, 1)]
            border += int(np.any([other != inner for other in around], axis=0).sum())
        assert differing < 0.25 * border  # pixels at an outline, which pycocotools rounds in its own way
        assert differing < 0.03 * ours.numel()


def test_a_hole_is_left_out():
    """Two squares in one polygon: what lies between them is inside."""
    squares = [[(0, 0), (28, 0), (28, 28), (0, 28)], [(7, 7), (21, 7), (21, 21), (7, 21)]]
    edges = [(*a, *b) for square in squares for a, b in zip(square, square[1:] + square[:1], strict=True)]
    last = torch.tensor([False] * 7 + [True])
    outlines = Outlines(torch.tensor(edges, dtype=torch.float32), last, torch.tensor([0, 8]))
    (made,) = targets(outlines, torch.tensor([0]), torch.tensor([[0.0, 0.0, 27.0, 27.0]]))
    assert made.sum() == 28 * 28 - 14 * 14
    assert made[7:21, 7:21].sum() == 0


def test_the_kernel_does_the_same(interpret):
    interpret(INTERPRETED, str(Path(__file__).parent))

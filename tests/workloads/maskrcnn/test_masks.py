"""Mask targets against pycocotools, and the kernel by Triton's interpreter against the CPU code."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from timetrial.workloads.maskrcnn.masks import Outlines, mask_targets

spec = importlib.util.spec_from_file_location("maskrcnn_oracle", Path(__file__).with_name("oracle.py"))
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)

INTERPRETED = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import test_masks
from timetrial.workloads.maskrcnn import masks
outlines, objects, regions, _ = test_masks.draw_outlines(2, 40)
expected = masks.mask_targets(outlines, objects, regions)
masks.triton_available = lambda tensor: True
assert torch.equal(masks.mask_targets(outlines, objects, regions), expected)
assert 0.1 < expected.mean() < 0.9
"""


def draw_polygon(random, size):
    """Return points float32 [K, 2] of a star or of a tangle, some of them whole pixels, about `size` pixels wide."""
    corners = int(random.integers(3, 30))
    if random.random() < 0.6:
        angle, radius = np.sort(random.uniform(0, 2 * np.pi, corners)), random.uniform(0.2, 0.5, corners) * size
        points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    else:
        points = random.uniform(-size / 2, size / 2, (corners, 2))
    points += random.uniform(size, 600, 2)
    return np.round(points, int(random.choice([0, 2, 6]))).astype(np.float32)


def draw_outlines(seed, count=12, size=40):
    """Return outlines of objects of one or two polygons, all objects, regions around them, and their polygons."""
    random = np.random.default_rng(seed)
    edges, last, begin, polygons, regions = [], [], [0], [], []
    for _ in range(count):
        object_polygons = [draw_polygon(random, size) for _ in range(int(random.integers(1, 3)))]
        for points in object_polygons:
            edges.append(np.concatenate([points, np.roll(points, -1, 0)], 1))
            last += [False] * (len(points) - 1) + [True]
        begin.append(len(last))
        polygons.append([points.ravel().tolist() for points in object_polygons])
        low, high = object_polygons[0].min(0), object_polygons[0].max(0)
        shift = random.normal(0, 0.1 * size, (2, 2)) * random.integers(2)
        regions.append(np.concatenate([low + shift[0], high + shift[1]]))
    outlines = Outlines(torch.from_numpy(np.concatenate(edges)), torch.tensor(last), torch.tensor(begin))
    return outlines, torch.arange(count), torch.from_numpy(np.array(regions)).float(), polygons


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # pycocotools, under NumPy 2
@pytest.mark.parametrize("size", [2, 16, 64, 300])
def test_targets_equal_the_reference(size):
    """Every pixel, as the reference crops and scales polygons and pycocotools rasterizes them."""
    outlines, objects, regions, polygons = draw_outlines(size, 200, size)
    expected = np.stack([oracle.mask_target(*each) for each in zip(polygons, regions.tolist(), strict=True)])
    assert np.array_equal(mask_targets(outlines, objects, regions).numpy(), expected)
    assert 0.1 < expected.mean() < 0.9


def test_targets_follow_the_order_of_objects():
    outlines, _, regions, _ = draw_outlines(1)
    objects = torch.tensor([3, 0, 3])
    expected = mask_targets(outlines, torch.arange(12), regions)[objects]
    assert torch.equal(mask_targets(outlines, objects, regions[objects]), expected)


def test_object_without_edges_has_an_empty_target():
    outlines = Outlines(torch.zeros(0, 4), torch.zeros(0, dtype=torch.bool), torch.tensor([0, 0]))
    assert not mask_targets(outlines, torch.tensor([0]), torch.tensor([[0.0, 0.0, 9.0, 9.0]])).any()


@pytest.mark.parametrize("vertical", [True, False], ids=["all edges", "horizontal edges alone"])
def test_excludes_holes(vertical):
    """Of two nested squares in one polygon the area between them is inside."""
    squares = [[(0, 0), (28, 0), (28, 28), (0, 28)], [(7, 7), (21, 7), (21, 21), (7, 21)]]
    edges = [(*a, *b) for square in squares for a, b in zip(square, square[1:] + square[:1], strict=True)]
    edges = [edge for edge in edges if vertical or edge[0] != edge[2]]
    last = torch.tensor([False] * (len(edges) - 1) + [True])
    outlines = Outlines(torch.tensor(edges, dtype=torch.float32), last, torch.tensor([0, len(edges)]))
    (target,) = mask_targets(outlines, torch.tensor([0]), torch.tensor([[0.0, 0.0, 28.0, 28.0]]))
    assert target.sum() == 28 * 28 - 14 * 14
    assert target[7:21, 7:21].sum() == 0


def test_kernel_equals_cpu(interpret):
    interpret(INTERPRETED, str(Path(__file__).parent))

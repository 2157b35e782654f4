"""Anchors, coding, matching, drawing and proposals against slow transcriptions in float64."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from timetrial.workloads.maskrcnn import boxes, regions

spec = importlib.util.spec_from_file_location("maskrcnn_oracle", Path(__file__).with_name("oracle.py"))
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)

HEIGHT, WIDTH = 128, 192
MAPS = [(-(-HEIGHT // stride), -(-WIDTH // stride)) for stride in boxes.STRIDES]


def draw_boxes(seed, images=2, most=5):
    random = np.random.default_rng(seed)
    found, exists = np.zeros((images, most, 4)), np.zeros((images, most), dtype=bool)
    for image in range(images):
        count = int(random.integers(1, most + 1)) if image else most
        low = random.uniform(0, [WIDTH - 60, HEIGHT - 60], (count, 2))
        found[image, :count] = np.concatenate([low, low + random.uniform(8, 59, (count, 2))], 1)
        exists[image, :count] = True
    return found, exists


def test_anchors_are_the_references():
    ours = boxes.anchors(tuple(MAPS))
    theirs = oracle.anchors(HEIGHT, WIDTH, boxes.anchor_shapes())
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine.numpy(), other, atol=1e-4)
    # Faster R-CNN's, as its authors print them.
    at_16 = boxes.anchors(((0, 0), (0, 0), (1, 1), (0, 0), (0, 0)))[2]
    assert at_16.tolist()[0] == [-84.0, -40.0, 99.0, 55.0]
    assert at_16.tolist()[1] == [-56.0, -56.0, 71.0, 71.0]


@pytest.mark.parametrize("weights", [oracle.RPN_WEIGHTS, oracle.BOX_WEIGHTS])
def test_coding_is_the_formula_and_goes_back(weights):
    random = np.random.default_rng(1)
    low = random.uniform(0, 50, (2, 20, 2))
    one, other = np.concatenate([low, low + random.uniform(1, 40, (2, 20, 2))], 2)
    pair = weights[::2]
    differences = boxes.encode(torch.from_numpy(one), torch.from_numpy(other), pair)
    np.testing.assert_allclose(differences, oracle.encode(one, other, weights), atol=1e-10)
    np.testing.assert_allclose(boxes.decode(differences, torch.from_numpy(other), pair), one, atol=1e-9)
    wild = torch.from_numpy(random.normal(0, 9, (20, 4)))
    right = oracle.decode(wild.numpy(), other, weights)
    np.testing.assert_allclose(boxes.decode(wild, torch.from_numpy(other), pair), right, rtol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_matching_is_the_formula(seed):
    found, exists = draw_boxes(seed)
    found[0, 0, 2:] = (
        found[0, 0, :2] + 5
    )  # so small that no anchor overlaps it by 0.3: the best is its own all the same
    every = torch.cat(boxes.anchors(tuple(MAPS))).double()
    sizes = torch.tensor([[HEIGHT, WIDTH], [HEIGHT - 20, WIDTH - 30]])
    ours = regions.match_anchors(every, torch.from_numpy(found), torch.from_numpy(exists), sizes)
    for image in range(2):
        height, width = sizes[image].tolist()
        right = oracle.rpn_match(every.numpy(), found[image][exists[image]], height, width)
        assert ours[image].tolist() == right
    near = torch.from_numpy(found).repeat_interleave(3, 1) + torch.randn(2, 15, 4) * 6
    real = torch.ones(2, 15, dtype=torch.bool)
    real[:, -2:] = False
    ours = regions.match_regions(near, real, torch.from_numpy(found), torch.from_numpy(exists))
    for image in range(2):
        right = oracle.box_match(near[image].numpy(), found[image][exists[image]])
        assert ours[image].tolist()[:13] == list(right)[:13]
        assert ours[image].tolist()[13:] == [regions.IGNORED] * 2


def test_draws_are_random_and_keep_their_shares():
    matches = torch.full((3, 400), regions.IGNORED)
    matches[0, :200] = regions.NEGATIVE
    matches[0, 200:300] = 4
    matches[1, :10] = 2
    matches[1, 10:300] = regions.NEGATIVE
    matches[2, :3] = regions.NEGATIVE
    one, two = (regions.draw(matches, 64, 0.25) for _ in range(2))
    assert one.indices.shape == (3, 64)
    assert one.positive.sum(1).tolist() == [16, 10, 0]
    assert one.counts.sum(1).tolist() == [64, 64, 3]
    for image in range(3):
        chosen = one.indices[image][one.counts[image]].tolist()
        assert len(set(chosen)) == len(chosen)
        assert (matches[image, chosen] != regions.IGNORED).all()
    assert one.indices[0].tolist() != two.indices[0].tolist()
    often = torch.zeros(300)
    for _ in range(300):
        drawn = regions.draw(matches[:1], 64, 0.25)
        often[drawn.indices[0]] += 1
    assert often[200:300].std() / often[200:300].mean() < 0.25  # 300 draws of 16 of 100


@pytest.mark.parametrize("over_batch", [True, False])
def test_proposals_are_the_formula(over_batch):
    random = np.random.default_rng(1)
    levels = boxes.anchors(tuple(MAPS))
    chances = [random.normal(0, 2, (2, len(level))) for level in levels]
    moves = [random.normal(0, 0.4, (2, len(level), 4)) for level in levels]
    sizes = torch.tensor([[HEIGHT, WIDTH], [HEIGHT - 20, WIDTH - 30]])
    found, real, _ = regions.propose(
        [torch.from_numpy(x) for x in chances],
        [torch.from_numpy(x) for x in moves],
        levels,
        sizes,
        of_level=50,
        best=60,
        over_batch=over_batch,
    )
    right, _ = oracle.proposals(
        [[level[image] for level in chances] for image in range(2)],
        [[level[image] for level in moves] for image in range(2)],
        [level.double().numpy() for level in levels],
        [tuple(size) for size in sizes.tolist()],
        cap=50,
        best=60,
        over_batch=over_batch,
    )
    for image in range(2):
        ours = sorted(map(tuple, found[image][real[image]].double().round(decimals=2).tolist()))
        theirs = sorted(tuple(float(x) for x in np.round(box, 2)) for box in right[image])
        assert len(ours) == len(theirs)
        np.testing.assert_allclose(ours, theirs, atol=0.05)

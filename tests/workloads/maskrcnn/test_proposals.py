"""Anchors, box encoding, matching, sampling and proposals against a float64 oracle."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from timetrial.workloads.maskrcnn import boxes, proposals

spec = importlib.util.spec_from_file_location("maskrcnn_oracle", Path(__file__).with_name("oracle.py"))
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)

HEIGHT, WIDTH = 128, 192
MAPS = [(-(-HEIGHT // stride), -(-WIDTH // stride)) for stride in boxes.STRIDES]


def draw_boxes(seed, images=2, max_boxes=5):
    random = np.random.default_rng(seed)
    drawn, valid = np.zeros((images, max_boxes, 4)), np.zeros((images, max_boxes), dtype=bool)
    for image in range(images):
        count = int(random.integers(1, max_boxes + 1)) if image else max_boxes
        low = random.uniform(0, [WIDTH - 60, HEIGHT - 60], (count, 2))
        drawn[image, :count] = np.concatenate([low, low + random.uniform(8, 59, (count, 2))], 1)
        valid[image, :count] = True
    return drawn, valid


def test_anchors_equal_the_reference():
    levels = boxes.anchors(tuple(MAPS))
    reference = oracle.anchors(HEIGHT, WIDTH, boxes.anchor_shapes())
    for anchors, expected in zip(levels, reference, strict=True):
        np.testing.assert_allclose(anchors.numpy(), expected, atol=1e-4)
    # Faster R-CNN's, as its authors print them.
    at_stride_16 = boxes.anchors(((0, 0), (0, 0), (1, 1), (0, 0), (0, 0)))[2]
    assert at_stride_16.tolist()[0] == [-84.0, -40.0, 99.0, 55.0]
    assert at_stride_16.tolist()[1] == [-56.0, -56.0, 71.0, 71.0]


@pytest.mark.parametrize("weights", [oracle.RPN_WEIGHTS, oracle.BOX_WEIGHTS])
def test_encoding_equals_the_oracle_and_is_inverted(weights):
    random = np.random.default_rng(1)
    low = random.uniform(0, 50, (2, 20, 2))
    targets, references = np.concatenate([low, low + random.uniform(1, 40, (2, 20, 2))], 2)
    pair = weights[::2]
    deltas = boxes.encode(torch.from_numpy(targets), torch.from_numpy(references), pair)
    np.testing.assert_allclose(deltas, oracle.encode(targets, references, weights), atol=1e-10)
    np.testing.assert_allclose(boxes.decode(deltas, torch.from_numpy(references), pair), targets, atol=1e-9)
    large_deltas = torch.from_numpy(random.normal(0, 9, (20, 4)))
    expected = oracle.decode(large_deltas.numpy(), references, weights)
    np.testing.assert_allclose(boxes.decode(large_deltas, torch.from_numpy(references), pair), expected, rtol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_matching_equals_the_oracle(seed):
    drawn, valid = draw_boxes(seed)
    # So small that no anchor has an IoU of 0.3 with it: its best anchor matches nevertheless.
    drawn[0, 0, 2:] = drawn[0, 0, :2] + 5
    anchors = torch.cat(boxes.anchors(tuple(MAPS))).double()
    sizes = torch.tensor([[HEIGHT, WIDTH], [HEIGHT - 20, WIDTH - 30]])
    matches = proposals.match_anchors(anchors, torch.from_numpy(drawn), torch.from_numpy(valid), sizes)
    for image in range(2):
        height, width = sizes[image].tolist()
        expected = oracle.rpn_match(anchors.numpy(), drawn[image][valid[image]], height, width)
        assert matches[image].tolist() == expected
    nearby = torch.from_numpy(drawn).repeat_interleave(3, 1) + torch.randn(2, 15, 4) * 6
    nearby_valid = torch.ones(2, 15, dtype=torch.bool)
    nearby_valid[:, -2:] = False
    matches = proposals.match_proposals(nearby, nearby_valid, torch.from_numpy(drawn), torch.from_numpy(valid))
    for image in range(2):
        expected = oracle.box_match(nearby[image].numpy(), drawn[image][valid[image]])
        assert matches[image].tolist()[:13] == list(expected)[:13]
        assert matches[image].tolist()[13:] == [proposals.IGNORED] * 2


def test_samples_are_random_and_limit_the_positives():
    matches = torch.full((3, 400), proposals.IGNORED)
    matches[0, :200] = proposals.NEGATIVE
    matches[0, 200:300] = 4
    matches[1, :10] = 2
    matches[1, 10:300] = proposals.NEGATIVE
    matches[2, :3] = proposals.NEGATIVE
    first, second = (proposals.sample(matches, 64, 0.25) for _ in range(2))
    assert first.indices.shape == (3, 64)
    assert first.positive.sum(1).tolist() == [16, 10, 0]
    assert first.valid.sum(1).tolist() == [64, 64, 3]
    for image in range(3):
        indices = first.indices[image][first.valid[image]].tolist()
        assert len(set(indices)) == len(indices)
        assert (matches[image, indices] != proposals.IGNORED).all()
    assert first.indices[0].tolist() != second.indices[0].tolist()
    counts = torch.zeros(300)
    for _ in range(300):
        samples = proposals.sample(matches[:1], 64, 0.25)
        counts[samples.indices[0]] += 1
    assert counts[200:300].std() / counts[200:300].mean() < 0.25  # 300 samples of 16 of 100


@pytest.mark.parametrize("over_batch", [True, False])
def test_selected_proposals_equal_the_oracle(over_batch):
    random = np.random.default_rng(1)
    levels = boxes.anchors(tuple(MAPS))
    logits = [random.normal(0, 2, (2, len(level))) for level in levels]
    deltas = [random.normal(0, 0.4, (2, len(level), 4)) for level in levels]
    sizes = torch.tensor([[HEIGHT, WIDTH], [HEIGHT - 20, WIDTH - 30]])
    selected, valid, _ = proposals.select_proposals(
        [torch.from_numpy(x) for x in logits],
        [torch.from_numpy(x) for x in deltas],
        levels,
        sizes,
        per_level=50,
        total=60,
        over_batch=over_batch,
    )
    expected, _ = oracle.proposals(
        [[level[image] for level in logits] for image in range(2)],
        [[level[image] for level in deltas] for image in range(2)],
        [level.double().numpy() for level in levels],
        [tuple(size) for size in sizes.tolist()],
        cap=50,
        best=60,
        over_batch=over_batch,
    )
    for image in range(2):
        result = sorted(map(tuple, selected[image][valid[image]].double().round(decimals=2).tolist()))
        reference = sorted(tuple(float(x) for x in np.round(box, 2)) for box in expected[image])
        assert len(result) == len(reference)
        np.testing.assert_allclose(result, reference, atol=0.05)

"""Inference against a transcription in float64, one image, class and box at a time."""

import copy
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from timetrial.workloads.maskrcnn import boxes as geometry
from timetrial.workloads.maskrcnn.detection import choose, detect
from timetrial.workloads.maskrcnn.model import Draws, MaskRCNN

spec = importlib.util.spec_from_file_location("maskrcnn_oracle", Path(__file__).with_name("oracle.py"))
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)

EDGE, SIZES = 96, [(96, 80), (70, 96)]
OF_LEVEL, PROPOSALS, MOST = 30, 25, 100
TOLERANCES = (1e-3, 0, 0.02, 1e-3)  # of scores, labels, boxes in pixels, and masks' probabilities


def small(seed, pretrained=True, classes=4):
    """A net whose scores and boxes are far apart, as those of an untrained one are not."""
    torch.manual_seed(seed)
    draws = Draws(judged_of_level=OF_LEVEL, eval_proposals=PROPOSALS)
    net = MaskRCNN(classes, draws, width=8, pyramid=8, hidden=16, pretrained=pretrained).eval()
    spreads = {net.look: 1, net.objectness: 1, net.moves: 0.3, net.classify: 2, net.place: 1.5, net.mask_convs[0]: 1}
    for layer, spread in spreads.items():
        seen = []
        hook = layer.register_forward_hook(lambda layer, given, out, seen=seen: seen.append(out.std()))
        with torch.no_grad():
            detect(net, *batch(seed))
            layer.weight *= spread / torch.stack(seen).mean()
        hook.remove()
    return net


def batch(seed):
    pixels = np.random.default_rng(seed).integers(256, size=(2, 3, EDGE, EDGE), dtype=np.uint8)
    return torch.from_numpy(pixels), torch.tensor(SIZES)


def pooled(maps, image, box, size):
    level = oracle.level(box) - 2
    return oracle.roi_align(maps[level][image].numpy(), box, size, 1 / oracle.STRIDES[level])


def chosen_by_loops(scores, moves, proposals, size):
    """Of one image (score, label, box), best first: scores [R, C], moves [R, C, 4], proposals [R, 4]."""
    chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    found = []
    for label in range(1, scores.shape[1]):
        some = [place for place in range(len(proposals)) if chances[place, label] > 0.05]
        boxes = oracle.clip(oracle.decode(moves[some, label], proposals[some], oracle.BOX_WEIGHTS), *size)
        values = chances[some, label]
        found += [(values[place], label, tuple(boxes[place])) for place in oracle.nms(boxes, values, 0.5)]
    return sorted(found, reverse=True)[:MOST]


def found_by_loops(net, pixels):
    """Of each image [(score, label, box, mask)]: the layers are PyTorch's in float64, all else is the oracle's."""
    net = copy.deepcopy(net).double()
    maps = net.backbone(pixels)
    chances, moves = net.propose(maps)
    levels = oracle.anchors(EDGE, EDGE, geometry.anchor_shapes())
    parts = [[[level[image].numpy() for level in part] for image in range(len(pixels))] for part in (chances, moves)]
    proposals, _ = oracle.proposals(*parts, levels, SIZES, cap=OF_LEVEL, best=PROPOSALS, over_batch=False)
    answers = []
    for image, size in enumerate(SIZES):
        features = np.stack([pooled(maps, image, tuple(box), 7) for box in proposals[image]])
        scores, differences = net.judge(torch.from_numpy(features))
        found = chosen_by_loops(scores.numpy(), differences.numpy(), proposals[image], size)
        features = torch.from_numpy(np.stack([pooled(maps, image, box, 14) for _, _, box in found]))
        masks = net.outline(features, torch.tensor([label for _, label, _ in found])).sigmoid().numpy()
        answers.append((found, masks))
    return answers


def in_order(scores, labels, boxes, masks):
    """Sorted by label and place: scores can be too near to each other to tell which is better."""
    order = np.lexsort((boxes @ np.array([1, 2.3, 3.1, 4.7]), labels))
    return scores[order], labels[order], boxes[order], masks[order]


@pytest.mark.parametrize(("seed", "pretrained"), [(1, True), (2, False)])
def test_a_batch_is_detected_as_one_image_and_class_at_a_time(seed, pretrained):
    net, (pixels, sizes) = small(seed, pretrained), batch(seed)
    with torch.no_grad():
        ours, masks = detect(net, pixels, sizes)
        theirs = found_by_loops(net, pixels)
    assert masks.shape == (2, ours.exists.shape[1], 28, 28)
    for image, (right, right_masks) in enumerate(theirs):
        count = int(ours.exists[image].sum())
        assert count == len(right) > 12
        assert ours.exists[image, :count].all()
        assert not ours.scores[image, count:].any()
        assert (ours.scores[image].diff() <= 0).all()
        found = (ours.scores[image, :count], ours.labels[image, :count], ours.boxes[image, :count])
        mine = in_order(*map(np.asarray, found), masks[image, :count].numpy())
        scores, labels, boxes = map(np.array, zip(*right, strict=True))
        for one, other, tolerance in zip(mine, in_order(scores, labels, boxes, right_masks), TOLERANCES, strict=True):
            np.testing.assert_allclose(one, other, atol=tolerance)
    assert len({label for _, label, _ in theirs[0][0]}) > 1


def test_the_best_hundred_of_all_classes_stay():
    random = np.random.default_rng(1)
    low = random.uniform(0, 900, (2, 150, 2))
    proposals = np.concatenate([low, low + random.uniform(5, 300, (2, 150, 2))], 2)
    scores, moves = random.normal(0, 1.5, (2, 150, 6)), random.normal(0, 1, (2, 150, 6, 4))
    real = torch.from_numpy(random.random((2, 150)) < 0.9)
    size = [(1000, 1000), (800, 950)]
    things = [torch.from_numpy(x).float() for x in (scores, moves, proposals)]
    found = choose(*things, real, torch.tensor(size))
    assert found.exists.shape == (2, MOST)
    assert found.exists.all()
    for image in range(2):
        own = real[image].numpy()
        right = chosen_by_loops(scores[image][own], moves[image][own], proposals[image][own], size[image])
        np.testing.assert_allclose(found.scores[image], [score for score, _, _ in right], rtol=1e-4)
        assert found.labels[image].tolist() == [label for _, label, _ in right]
        np.testing.assert_allclose(found.boxes[image], [box for _, _, box in right], atol=1e-2)


def test_nothing_above_the_least_score_is_nothing():
    scores = torch.zeros(1, 10, 30)  # a thirtieth each
    found = choose(scores, torch.zeros(1, 10, 30, 4), torch.rand(1, 10, 4), torch.ones(1, 10).bool(), torch.ones(1, 2))
    assert not found.exists.any()
    assert not found.scores.any()


def test_what_is_found_of_an_image_does_not_depend_on_its_batch():
    net, (pixels, sizes) = small(3), batch(3)
    with torch.no_grad():
        both, both_masks = detect(net, pixels, sizes)
        one, one_masks = detect(net, pixels[1:], sizes[1:])
    for ours, alone in zip((*both, both_masks), (*one, one_masks), strict=True):
        torch.testing.assert_close(ours[1:], alone, rtol=1e-3, atol=1e-3)

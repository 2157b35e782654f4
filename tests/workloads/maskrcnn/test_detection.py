"""Inference against a float64 oracle that handles one image, class and box at a time."""

import copy
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from timetrial.workloads.maskrcnn import boxes as box_ops
from timetrial.workloads.maskrcnn.detection import detect, select_detections
from timetrial.workloads.maskrcnn.model import MaskRCNN, SamplingSettings

spec = importlib.util.spec_from_file_location("maskrcnn_oracle", Path(__file__).with_name("oracle.py"))
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)

IMAGE_SIZE, IMAGE_SIZES = 96, [(96, 80), (70, 96)]
PROPOSALS_PER_LEVEL, PROPOSALS, MAX_DETECTIONS = 30, 25, 100
TOLERANCES = (1e-3, 0, 0.02, 1e-3)  # of scores, labels, boxes in pixels and mask probabilities


def small_model(seed, pretrained=True, classes=4):
    """Return a model with well separated scores and boxes, unlike those of an untrained one."""
    torch.manual_seed(seed)
    sampling = SamplingSettings(eval_proposals_per_level=PROPOSALS_PER_LEVEL, eval_proposals=PROPOSALS)
    net = MaskRCNN(classes, sampling, width=8, fpn_channels=8, representation_size=16, pretrained=pretrained).eval()
    target_stds = {
        net.rpn_conv: 1, net.rpn_objectness: 1, net.rpn_deltas: 0.3, net.cls_score: 2, net.bbox_pred: 1.5,
        net.mask_convs[0]: 1,
    }  # fmt: skip
    for layer, target_std in target_stds.items():
        stds = []
        hook = layer.register_forward_hook(lambda layer, args, output, stds=stds: stds.append(output.std()))
        with torch.no_grad():
            detect(net, *make_batch(seed))
            layer.weight *= target_std / torch.stack(stds).mean()
        hook.remove()
    return net


def make_batch(seed):
    pixels = np.random.default_rng(seed).integers(256, size=(2, 3, IMAGE_SIZE, IMAGE_SIZE), dtype=np.uint8)
    return torch.from_numpy(pixels), torch.tensor(IMAGE_SIZES)


def pool_region(maps, image, box, size):
    level = oracle.level(box) - 2
    return oracle.roi_align(maps[level][image].numpy(), box, size, 1 / oracle.STRIDES[level])


def select_with_loops(logits, deltas, proposals, size):
    """Return (score, label, box) of one image, best first: logits [R, C], deltas [R, C, 4], proposals [R, 4]."""
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    detections = []
    for label in range(1, logits.shape[1]):
        rows = [row for row in range(len(proposals)) if probabilities[row, label] > 0.05]
        boxes = oracle.clip(oracle.decode(deltas[rows, label], proposals[rows], oracle.BOX_WEIGHTS), *size)
        scores = probabilities[rows, label]
        detections += [(scores[index], label, tuple(boxes[index])) for index in oracle.nms(boxes, scores, 0.5)]
    return sorted(detections, reverse=True)[:MAX_DETECTIONS]


def detect_with_loops(net, pixels):
    """Return ([(score, label, box)], masks) of each image: layers are PyTorch's in float64, the rest the oracle's."""
    net = copy.deepcopy(net).double()
    maps = net.backbone(pixels)
    logits, deltas = net.rpn_head(maps)
    levels = oracle.anchors(IMAGE_SIZE, IMAGE_SIZE, box_ops.anchor_shapes())
    parts = [[[level[image].numpy() for level in part] for image in range(len(pixels))] for part in (logits, deltas)]
    proposals, _ = oracle.proposals(
        *parts, levels, IMAGE_SIZES, cap=PROPOSALS_PER_LEVEL, best=PROPOSALS, over_batch=False
    )
    results = []
    for image, size in enumerate(IMAGE_SIZES):
        features = np.stack([pool_region(maps, image, tuple(box), 7) for box in proposals[image]])
        class_logits, class_deltas = net.box_head(torch.from_numpy(features))
        detections = select_with_loops(class_logits.numpy(), class_deltas.numpy(), proposals[image], size)
        features = torch.from_numpy(np.stack([pool_region(maps, image, box, 14) for _, _, box in detections]))
        masks = net.mask_head(features, torch.tensor([label for _, label, _ in detections])).sigmoid().numpy()
        results.append((detections, masks))
    return results


def sort_by_position(scores, labels, boxes, masks):
    """Sort by label and box, because scores can be too close to decide the order."""
    order = np.lexsort((boxes @ np.array([1, 2.3, 3.1, 4.7]), labels))
    return scores[order], labels[order], boxes[order], masks[order]


@pytest.mark.parametrize(("seed", "pretrained"), [(1, True), (2, False)])
def test_batched_detection_equals_loops(seed, pretrained):
    net, (pixels, image_sizes) = small_model(seed, pretrained), make_batch(seed)
    with torch.no_grad():
        detections, masks = detect(net, pixels, image_sizes)
        expected = detect_with_loops(net, pixels)
    assert masks.shape == (2, detections.valid.shape[1], 28, 28)
    for image, (expected_detections, expected_masks) in enumerate(expected):
        count = int(detections.valid[image].sum())
        assert count == len(expected_detections) > 12
        assert detections.valid[image, :count].all()
        assert not detections.scores[image, count:].any()
        assert (detections.scores[image].diff() <= 0).all()
        columns = (part[image, :count].numpy() for part in (*detections[:3], masks))
        boxes, scores, labels, image_masks = columns
        result = sort_by_position(scores, labels, boxes, image_masks)
        scores, labels, boxes = map(np.array, zip(*expected_detections, strict=True))
        reference = sort_by_position(scores, labels, boxes, expected_masks)
        for values, expected_values, tolerance in zip(result, reference, TOLERANCES, strict=True):
            np.testing.assert_allclose(values, expected_values, atol=tolerance)
    assert len({label for _, label, _ in expected[0][0]}) > 1


def test_keeps_the_best_hundred_of_all_classes():
    random = np.random.default_rng(1)
    low = random.uniform(0, 900, (2, 150, 2))
    proposals = np.concatenate([low, low + random.uniform(5, 300, (2, 150, 2))], 2)
    logits, deltas = random.normal(0, 1.5, (2, 150, 6)), random.normal(0, 1, (2, 150, 6, 4))
    valid = torch.from_numpy(random.random((2, 150)) < 0.9)
    sizes = [(1000, 1000), (800, 950)]
    arguments = [torch.from_numpy(x).float() for x in (logits, deltas, proposals)]
    detections = select_detections(*arguments, valid, torch.tensor(sizes))
    assert detections.valid.shape == (2, MAX_DETECTIONS)
    assert detections.valid.all()
    for image in range(2):
        rows = valid[image].numpy()
        expected = select_with_loops(logits[image][rows], deltas[image][rows], proposals[image][rows], sizes[image])
        np.testing.assert_allclose(detections.scores[image], [score for score, _, _ in expected], rtol=1e-4)
        assert detections.labels[image].tolist() == [label for _, label, _ in expected]
        np.testing.assert_allclose(detections.boxes[image], [box for _, _, box in expected], atol=1e-2)


def test_detects_nothing_below_the_score_threshold():
    logits, deltas = torch.zeros(1, 10, 30), torch.zeros(1, 10, 30, 4)  # probabilities of 1 / 30
    valid = torch.ones(1, 10, dtype=torch.bool)
    detections = select_detections(logits, deltas, torch.rand(1, 10, 4), valid, torch.ones(1, 2))
    assert not detections.valid.any()
    assert not detections.scores.any()


def test_detections_do_not_depend_on_the_batch():
    net, (pixels, image_sizes) = small_model(3), make_batch(3)
    with torch.no_grad():
        both, both_masks = detect(net, pixels, image_sizes)
        single, single_masks = detect(net, pixels[1:], image_sizes[1:])
    for batched, alone in zip((*both, both_masks), (*single, single_masks), strict=True):
        torch.testing.assert_close(batched[1:], alone, rtol=1e-3, atol=1e-3)

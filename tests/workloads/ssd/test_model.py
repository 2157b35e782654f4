"""SSD against a float64 oracle: priors, matching, loss, detections and parameter counts."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from timetrial.workloads.ssd import priors
from timetrial.workloads.ssd.detection import detect
from timetrial.workloads.ssd.model import MEAN, SSD, STD, both_heads, feature_map_sizes, multibox_loss

spec = importlib.util.spec_from_file_location("ssd_oracle", Path(__file__).with_name("oracle.py"))
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)

MAPS = [38, 19, 10, 5, 3, 1]


def oracle_order():
    """Return for each of the oracle's priors (map, shape, row, column) our index (map, row, column, shape)."""
    indices, start = [], 0
    for cells, shapes in zip(MAPS, priors.PRIORS_PER_CELL, strict=True):
        index = np.arange(start, start + cells * cells * shapes).reshape(cells, cells, shapes)
        indices.append(index.transpose(2, 0, 1).ravel())
        start += cells * cells * shapes
    return np.concatenate(indices)


def draw_boxes(seed, images=3, max_boxes=6, classes=5):
    """Return corner boxes [N, M, 4] and labels [N, M] of images with 1 to `max_boxes` boxes; the last one has none."""
    random = np.random.default_rng(seed)
    boxes, labels = np.zeros((images, max_boxes, 4)), np.zeros((images, max_boxes), dtype=np.int64)
    for image in range(images):
        count = int(random.integers(1, max_boxes + 1)) if image < images - 1 else 0
        low = random.uniform(0, 0.7, (count, 2))
        boxes[image, :count] = np.concatenate([low, low + random.uniform(0.02, 0.3, (count, 2))], 1)
        labels[image, :count] = random.integers(1, classes, count)
    return boxes, labels


def test_feature_maps_and_priors_equal_the_reference():
    assert feature_map_sizes(300) == MAPS
    ours = priors.prior_boxes(MAPS).double()
    assert ours.shape == (8732, 4)
    np.testing.assert_allclose(ours[oracle_order()], oracle.priors(), atol=1e-6)


def test_smaller_images_have_fewer_maps_that_cover_the_image():
    assert feature_map_sizes(128) == [16, 8, 4, 2]
    centers = priors.prior_boxes([16, 8, 4, 2])[: 16 * 16 * 4 : 4, :2]
    assert centers.min() == pytest.approx(0.5 / 16)
    assert centers.max() == pytest.approx(15.5 / 16)


@pytest.mark.parametrize("seed", range(4))
def test_matching_and_encoding_equal_the_oracle(seed):
    boxes, labels = draw_boxes(seed)
    prior_boxes = priors.prior_boxes(MAPS).double()
    matched_boxes, matched_labels = priors.match(torch.from_numpy(boxes), torch.from_numpy(labels), prior_boxes)
    targets = priors.encode(matched_boxes, prior_boxes)
    for image in range(len(boxes)):
        count = int((labels[image] > 0).sum())
        expected_targets, expected_labels = oracle.encode(boxes[image, :count], labels[image, :count])
        assert np.array_equal(matched_labels[image][oracle_order()].numpy(), expected_labels)
        positive = expected_labels > 0
        np.testing.assert_allclose(
            targets[image][oracle_order()].numpy()[positive], expected_targets[positive], atol=2e-4
        )
    torch.testing.assert_close(
        priors.decode(targets, prior_boxes)[matched_labels > 0], matched_boxes[matched_labels > 0]
    )


@pytest.mark.parametrize("seed", range(3))
def test_loss_equals_the_oracle(seed):
    boxes, labels = draw_boxes(seed)
    random = np.random.default_rng(seed)
    deltas, logits = random.normal(0, 1, (3, 8732, 4)), random.normal(0, 2, (3, 8732, 5))
    back = np.argsort(oracle_order())
    lists = [(b[k > 0], k[k > 0]) for b, k in zip(boxes, labels, strict=True)]
    expected, _ = oracle.loss(deltas, logits, [b for b, _ in lists], [k for _, k in lists])
    prior_boxes = priors.prior_boxes(MAPS).double()
    matched = priors.match(torch.from_numpy(boxes), torch.from_numpy(labels), prior_boxes)
    loss = multibox_loss(torch.from_numpy(deltas[:, back]), torch.from_numpy(logits[:, back]), *matched, prior_boxes)
    assert loss.item() / 3 == pytest.approx(expected, rel=1e-4)


def test_parameter_counts_equal_the_reference():
    with torch.device("meta"):
        net = SSD(81, 300)
    expected = oracle.count_parameters(81)
    assert sum(weight.numel() for weight in net.backbone.parameters()) == expected["backbone"]
    assert sum(weight.numel() for weight in net.extra_layers.parameters()) == expected["extras"]
    assert sum(weight.numel() for weight in net.parameters()) == expected["total"]


def test_backbone_equals_torchvision():
    """The same weights under the same names give the same map, except for the stride of conv4."""
    torchvision = pytest.importorskip("torchvision")
    reference = torchvision.models.resnet34().eval().double()
    reference.layer3[0].conv1.stride = reference.layer3[0].downsample[0].stride = (1, 1)
    backbone = SSD(3, 300).backbone.eval().double()
    state = {name: value for name, value in reference.state_dict().items() if not name.startswith(("layer4", "fc"))}
    backbone.load_state_dict(state)
    pixels = torch.randint(256, (1, 3, 96, 96), dtype=torch.uint8)
    with torch.no_grad():
        x = (pixels.double() - backbone.mean) / backbone.std
        y = reference.maxpool(reference.relu(reference.bn1(reference.conv1(x))))
        expected = reference.layer3(reference.layer2(reference.layer1(y)))
        torch.testing.assert_close(backbone(pixels), expected)


@pytest.mark.parametrize(("priors_per_cell", "classes"), [(4, 81), (6, 81), (4, 3)])
def test_both_heads_are_one_convolution_with_equal_results(priors_per_cell, classes):
    torch.manual_seed(1)
    heads = [torch.nn.Conv2d(8, priors_per_cell * outputs, 3, padding=1).double() for outputs in (4, classes)]
    x = torch.randn(2, 8, 5, 4, dtype=torch.float64, requires_grad=True)
    expected = [head(x).permute(0, 2, 3, 1) for head in heads]
    parameters = [x, *(parameter for head in heads for parameter in head.parameters())]
    results = both_heads(x, *heads)
    grads = [torch.randn_like(y) for y in expected]
    torch.testing.assert_close(list(results), expected)
    mine, reference = (torch.autograd.grad(outputs, parameters, grads) for outputs in (results, expected))
    torch.testing.assert_close(mine, reference)


def test_heads_are_initialized_xavier_uniform():
    net = SSD(7, 300, 16)
    for part in (net.extra_layers, net.regression_heads, net.classification_heads):
        for weight in (weight for weight in part.parameters() if weight.dim() == 4):
            limit = (6 / (weight[0].numel() + weight[:, 0].numel())) ** 0.5
            assert 0.97 * limit < weight.abs().max() <= limit


def test_normalization_is_that_of_torchvisions_weights():
    transforms = pytest.importorskip("torchvision").models.ResNet34_Weights.IMAGENET1K_V1.transforms()
    assert (list(MEAN), list(STD)) == (transforms.mean, transforms.std)


# Background logits so high that few scores exceed the threshold, or more candidates of a class than are used.
@pytest.mark.parametrize(("background", "classes"), [(7.0, 4), (3.0, 2)])
@pytest.mark.parametrize("seed", range(2))
def test_detections_equal_the_oracle(seed, background, classes):
    random = np.random.default_rng(seed)
    deltas, logits = random.normal(0, 0.5, (1, 8732, 4)), random.normal(0, 1, (1, 8732, classes))
    logits[..., 0] += background
    back = np.argsort(oracle_order())
    prior_boxes = priors.prior_boxes(MAPS).double()
    detections = detect(torch.from_numpy(deltas[:, back]), torch.from_numpy(logits[:, back]), prior_boxes)
    boxes, scores, labels = (part[0][detections.valid[0]] for part in detections[:3])
    reference = oracle.detect(deltas[0], logits[0], (1, 1))
    assert 20 < len(reference[0]) <= 200
    for result, expected in zip((boxes, labels, scores), reference, strict=True):
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_overfits_one_batch():
    torch.manual_seed(1)
    net = SSD(4, 128, 16)
    images = torch.randint(256, (4, 3, 128, 128), dtype=torch.uint8)
    boxes, labels = (torch.from_numpy(array) for array in draw_boxes(3, images=4, classes=4))
    optimizer = torch.optim.SGD(net.parameters(), 2e-3, 0.9)
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        value = net(images, boxes.float(), labels)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[-1] < 0.5 * losses[0]

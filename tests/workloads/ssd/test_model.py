"""SSD against slow transcriptions in float64: priors, matching, loss, detections and parameters."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from timetrial.workloads.ssd import priors
from timetrial.workloads.ssd.detection import detect
from timetrial.workloads.ssd.model import DEVIATIONS, MEANS, SSD, feature_maps, loss

spec = importlib.util.spec_from_file_location("ssd_oracle", Path(__file__).with_name("oracle.py"))
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)

MAPS = [38, 19, 10, 5, 3, 1]


def order():
    """For each of the oracle's priors (map, shape, row, column) ours (map, row, column, shape)."""
    found, start = [], 0
    for cells, shapes in zip(MAPS, priors.SHAPES, strict=True):
        ours = np.arange(start, start + cells * cells * shapes).reshape(cells, cells, shapes)
        found.append(ours.transpose(2, 0, 1).ravel())
        start += cells * cells * shapes
    return np.concatenate(found)


def draw(seed, images=3, most=6, classes=5):
    """Corner boxes [N, M, 4] and labels [N, M] of images with 0 to `most` boxes; the first have some."""
    random = np.random.default_rng(seed)
    boxes, labels = np.zeros((images, most, 4)), np.zeros((images, most), dtype=np.int64)
    for image in range(images):
        count = int(random.integers(1, most + 1)) if image < images - 1 else 0
        low = random.uniform(0, 0.7, (count, 2))
        boxes[image, :count] = np.concatenate([low, low + random.uniform(0.02, 0.3, (count, 2))], 1)
        labels[image, :count] = random.integers(1, classes, count)
    return boxes, labels


def test_the_maps_and_priors_are_the_references():
    assert feature_maps(300) == MAPS
    ours = priors.priors(MAPS).double()
    assert ours.shape == (8732, 4)
    np.testing.assert_allclose(ours[order()], oracle.priors(), atol=1e-6)


def test_smaller_images_have_fewer_maps_whose_cells_cover_the_image():
    assert feature_maps(128) == [16, 8, 4, 2]
    centres = priors.priors([16, 8, 4, 2])[: 16 * 16 * 4 : 4, :2]
    assert centres.min() == pytest.approx(0.5 / 16)
    assert centres.max() == pytest.approx(15.5 / 16)


@pytest.mark.parametrize("seed", range(4))
def test_matching_and_coding_are_the_formulas(seed):
    boxes, labels = draw(seed)
    anchors = priors.priors(MAPS).double()
    found, kinds = priors.match(torch.from_numpy(boxes), torch.from_numpy(labels), anchors)
    targets = priors.encode(found, anchors)
    for image in range(len(boxes)):
        count = int((labels[image] > 0).sum())
        right, wanted = oracle.encode(boxes[image, :count], labels[image, :count])
        assert np.array_equal(kinds[image][order()].numpy(), wanted)
        positive = wanted > 0
        np.testing.assert_allclose(targets[image][order()].numpy()[positive], right[positive], atol=2e-4)
    torch.testing.assert_close(priors.decode(targets, anchors)[kinds > 0], found[kinds > 0])


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_is_the_formula(seed):
    boxes, labels = draw(seed)
    random = np.random.default_rng(seed)
    locations, scores = random.normal(0, 1, (3, 8732, 4)), random.normal(0, 2, (3, 8732, 5))
    back = np.argsort(order())
    lists = [(b[k > 0], k[k > 0]) for b, k in zip(boxes, labels, strict=True)]
    expected, _ = oracle.loss(locations, scores, [b for b, _ in lists], [k for _, k in lists])
    anchors = priors.priors(MAPS).double()
    matched = priors.match(torch.from_numpy(boxes), torch.from_numpy(labels), anchors)
    ours = loss(torch.from_numpy(locations[:, back]), torch.from_numpy(scores[:, back]), *matched, anchors)
    assert ours.item() / 3 == pytest.approx(expected, rel=1e-4)


def test_parameters_are_as_many_as_the_references():
    with torch.device("meta"):
        net = SSD(81, 300)
    expected = oracle.count_parameters(81)
    assert sum(weight.numel() for weight in net.trunk.parameters()) == expected["backbone"]
    assert sum(weight.numel() for weight in net.further.parameters()) == expected["extras"]
    assert sum(weight.numel() for weight in net.parameters()) == expected["total"]


def test_the_trunk_is_torchvisions():
    """The same weights under the same names give the same map, but for the stride of conv4."""
    torchvision = pytest.importorskip("torchvision")
    theirs = torchvision.models.resnet34().eval().double()
    theirs.layer3[0].conv1.stride = theirs.layer3[0].downsample[0].stride = (1, 1)
    ours = SSD(3, 300).trunk.eval().double()
    known = {name: value for name, value in theirs.state_dict().items() if not name.startswith(("layer4", "fc"))}
    ours.load_state_dict(known)
    x = torch.randn(1, 3, 96, 96, dtype=torch.float64)
    with torch.no_grad():
        y = theirs.maxpool(theirs.relu(theirs.bn1(theirs.conv1(x))))
        expected = theirs.layer3(theirs.layer2(theirs.layer1(y)))
        torch.testing.assert_close(ours(x), expected)


def test_the_heads_start_from_xaviers_uniform_weights():
    net = SSD(7, 300, 16)
    for part in (net.further, net.locate, net.classify):
        for weight in (weight for weight in part.parameters() if weight.dim() == 4):
            edge = (6 / (weight[0].numel() + weight[:, 0].numel())) ** 0.5
            assert 0.97 * edge < weight.abs().max() <= edge


def test_pixels_are_normalised_as_torchvisions_weights_expect():
    transforms = pytest.importorskip("torchvision").models.ResNet34_Weights.IMAGENET1K_V1.transforms()
    assert (list(MEANS), list(DEVIATIONS)) == (transforms.mean, transforms.std)


# So much background that few are above the least score, or more of one class than are looked at.
@pytest.mark.parametrize(("background", "classes"), [(7.0, 4), (3.0, 2)])
@pytest.mark.parametrize("seed", range(2))
def test_detections_are_the_formulas(seed, background, classes):
    random = np.random.default_rng(seed)
    locations, scores = random.normal(0, 0.5, (1, 8732, 4)), random.normal(0, 1, (1, 8732, classes))
    scores[..., 0] += background
    back = np.argsort(order())
    anchors = priors.priors(MAPS).double()
    chosen = detect(torch.from_numpy(locations[:, back]), torch.from_numpy(scores[:, back]), anchors)
    boxes, chances, labels = (part[0][chosen.exists[0]] for part in chosen[:3])
    right = oracle.detect(locations[0], scores[0], (1, 1))
    assert 20 < len(right[0]) <= 200
    for found, expected in zip((boxes, labels, chances), right, strict=True):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_one_batch_can_be_learned_by_heart():
    torch.manual_seed(1)
    net = SSD(4, 128, 16)
    images = torch.randint(256, (4, 3, 128, 128), dtype=torch.uint8)
    boxes, labels = (torch.from_numpy(array) for array in draw(3, images=4, classes=4))
    optimizer = torch.optim.SGD(net.parameters(), 2e-3, 0.9)
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        value = net(images, boxes.float(), labels)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[-1] < 0.5 * losses[0]

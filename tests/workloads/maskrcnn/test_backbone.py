"""Mask R-CNN's trunk: equal features from fabricated files of the real names, every bad file with its sentence."""

import copy
import os
import pickle
import re
import struct
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from timetrial.runner.core.errors import DataError
from timetrial.runner.training.checkpoint import Checkpointer, StopSignal
from timetrial.runner.training.distributed import World
from timetrial.workloads.common.detection import pretrained_weights
from timetrial.workloads.maskrcnn import backbone
from timetrial.workloads.maskrcnn.backbone import load_trunk
from timetrial.workloads.maskrcnn.model import MEANS, Backbone
from timetrial.workloads.resnet50 import model as resnet50

BLOCKS = (3, 4, 6, 3)


class Python2(pickle._Pickler):
    """Protocol 2 with texts and bytes as Python 2 writes them: both are byte strings."""

    dispatch: ClassVar[dict] = dict(pickle._Pickler.dispatch)

    def save_string(self, value):
        raw = value.encode("latin1") if isinstance(value, str) else value
        self.write(b"T" + struct.pack("<i", len(raw)) + raw)
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_string


def write(path, found):
    with path.open("wb") as file:
        Python2(file, protocol=2).dump(found)
    path.write_bytes(path.read_bytes().replace(b"numpy._core.", b"numpy.core."))
    return path


def blobs(width=8, blocks=BLOCKS, seed=0):
    """What R-50.pkl holds, of another width: float32, biases of convolutions among it, the stem's not quite zero."""
    random, found = np.random.default_rng(seed), {}

    def layer(name, norm, out, channels, edge):
        drawn = random.normal(0, (2 / (channels * edge * edge)) ** 0.5, (out, channels, edge, edge))
        found[f"{name}_w"], found[f"{name}_b"] = drawn.astype("f4"), np.zeros(out, "f4")
        found[f"{norm}_s"] = random.uniform(0.5, 1.0, out).astype("f4")
        found[f"{norm}_b"] = random.normal(0, 0.2, out).astype("f4")

    layer("conv1", "res_conv1_bn", width, 3, 7)
    found["conv1_b"] += 1e-9
    channels = width
    for stage, count in enumerate(blocks):
        between = width << stage
        for block in range(count):
            place = f"res{stage + 2}_{block}_branch"
            if block == 0:
                layer(f"{place}1", f"{place}1_bn", 4 * between, channels, 1)
            layer(f"{place}2a", f"{place}2a_bn", between, channels, 1)
            layer(f"{place}2b", f"{place}2b_bn", between, between, 3)
            layer(f"{place}2c", f"{place}2c_bn", 4 * between, between, 1)
            channels = 4 * between
    found["fc1000_w"], found["fc1000_b"] = np.zeros((10, channels), "f4"), np.zeros(10, "f4")
    return found


def detectron(found, pixels):
    """Maps after each stage as Detectron's network computes them of RGB pixels: BGR, its means, strides in the 1x1."""

    def affine(x, name, stride=1, padding=0):
        weight, scale, shift = (
            torch.from_numpy(found[key]).double()
            for key in (f"{name}_w", f"{name}_bn_s".replace("conv1_bn", "res_conv1_bn"), f"{name}_bn_b")
        )
        return F.conv2d(x, weight, None, stride, padding) * scale[:, None, None] + shift[:, None, None]

    found = found | {"conv1_bn_b": found["res_conv1_bn_b"]}
    means = torch.tensor([102.9801, 115.9465, 122.7717]).double()
    x = F.max_pool2d(affine(pixels.flip(1).double() - means[:, None, None], "conv1", 2, 3).relu(), 3, 2, 1)
    maps = []
    for stage, count in enumerate(BLOCKS):
        for block in range(count):
            place, stride = f"res{stage + 2}_{block}_branch", 2 if stage and not block else 1
            short = x if block else affine(x, f"{place}1", stride)
            y = affine(affine(x, f"{place}2a", stride).relu(), f"{place}2b", 1, 1).relu()
            x = (affine(y, f"{place}2c") + short).relu()
        maps.append(x)
    return maps


def maps_of(stages, run):
    """What each of the `stages` gives while `run` is called."""
    maps = []
    hooks = [stage.register_forward_hook(lambda _, __, found: maps.append(found)) for stage in stages]
    with torch.no_grad():
        run()
    for hook in hooks:
        hook.remove()
    return maps


def stir(net, seed=0):
    """Draws what a batch norm learns and keeps."""
    torch.manual_seed(seed)
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for value, low, high in (
                (module.weight, 0.3, 0.8),
                (module.bias, -0.3, 0.3),
                (module.running_mean, -0.5, 0.5),
                (module.running_var, 0.5, 2.0),
            ):
                torch.nn.init.uniform_(value, low, high)
    return net.eval()


@pytest.fixture(scope="module")
def pixels():
    torch.manual_seed(9)
    return torch.randint(0, 256, (1, 3, 96, 128), dtype=torch.uint8)


@pytest.fixture(scope="module")
def classifier():
    """A ResNet-50 of our own, before its training."""
    return stir(resnet50.build(BLOCKS, 10))


@pytest.fixture(scope="module")
def checkpoint(classifier, tmp_path_factory):
    """Its run's checkpoint, as the runner writes it."""
    path = tmp_path_factory.mktemp("run") / "checkpoint" / "checkpoint.pt"
    ranks = [(torch.get_rng_state(), None, 0.5)]

    class Engine:
        def state_dict(self):
            return {"model": classifier.state_dict(), "position": (3, 1), "steps": 4, "ranks": ranks}

    Checkpointer(path, Engine(), World(), StopSignal(), dict, 600.0).save()
    return path


def detector(width=8):
    return Backbone(width, 8)


def refused(trunk, path, words):
    """The file is refused in one sentence that names it and says what to do, and the trunk stays as it was."""
    before = {name: value.clone() for name, value in trunk.state_dict().items()}
    with pytest.raises(DataError, match=words) as caught:
        load_trunk(trunk, path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path} ")
    ending = r": download https://\S+, or set recipe\.training\.backbone=null to start from nothing\.$"
    assert re.search(ending, sentence)
    assert "\n" not in sentence
    for name, value in trunk.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("wrapped", [True, False])
def test_it_takes_detectrons_file(tmp_path, pixels, wrapped):
    found = blobs()
    also = {"conv_rpn_w": np.ones(3, "f4"), "lr": np.float32(0.02), "conv1_w_momentum": found["conv1_w"]}
    path = write(tmp_path / "R-50.pkl", {"blobs": found | also, "cfg": "MODEL: {}"} if wrapped else found)
    assert b"numpy.core.multiarray" in path.read_bytes()
    trunk = detector().double()
    pyramid = {name: value.clone() for name, value in trunk.state_dict().items() if name.startswith(("lat", "out"))}
    load_trunk(trunk, path)
    ours = maps_of(trunk.stages, lambda: trunk(pixels))
    for one, other in zip(ours, detectron(found, pixels), strict=True):
        assert other.std() > 1e-3
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    for name, value in pyramid.items():
        assert torch.equal(trunk.state_dict()[name], value)


def test_other_pickles_of_the_same_arrays_will_do(tmp_path):
    """Python 3's, of any byte order, columns first or in half precision."""
    found = blobs()
    expected = detector()
    load_trunk(expected, write(tmp_path / "a.pkl", found))
    changed = found | {
        "conv1_w": np.asfortranarray(found["conv1_w"].astype(">f8")),
        "res_conv1_bn_s": np.ones(8, "f2"),
    }
    expected.bn1.weight.fill_(1.0)
    for protocol in (2, 4):
        trunk, path = detector(), tmp_path / f"{protocol}.pkl"
        path.write_bytes(pickle.dumps(changed, protocol))
        load_trunk(trunk, path)
        for name, value in expected.state_dict().items():
            assert name.startswith(("lat", "out")) or torch.equal(trunk.state_dict()[name], value), name


def test_it_takes_a_run_of_resnet50(checkpoint, classifier, pixels):
    """Up to the first stage, where no stride differs, and but for the border, where the means' colours are padded."""
    trunk = detector(64).double()
    load_trunk(trunk, checkpoint)
    theirs = copy.deepcopy(classifier).double()
    (expected,) = maps_of([theirs.layer1], lambda: theirs(pixels))
    found = maps_of(trunk.stages, lambda: trunk(pixels))[0]
    border = 6  # the stem's one row, pooling's and three convolutions'
    inner = (..., slice(border, -border), slice(border, -border))
    torch.testing.assert_close(found[inner], expected[inner], rtol=1e-9, atol=1e-9)
    apart = (found - expected).abs()
    assert 1e-6 < apart.max() < 0.05 * expected.max()


def test_the_means_are_those_of_resnet50():
    assert pretrained_weights.RUN_MEANS == resnet50.MEANS


def test_with_equal_means_and_strides_a_run_gives_equal_maps(checkpoint, classifier, pixels, monkeypatch):
    monkeypatch.setattr(pretrained_weights, "RUN_MEANS", MEANS)
    trunk, theirs = detector(64).double(), resnet50.build(BLOCKS, 10)
    theirs.load_state_dict(classifier.state_dict())
    theirs.means.copy_(trunk.mean)
    theirs = theirs.double().eval()
    load_trunk(trunk, checkpoint)
    stages = (theirs.layer1, theirs.layer2, theirs.layer3, theirs.layer4)
    for stage in stages[1:]:
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    expected = maps_of(stages, lambda: theirs(pixels))
    for one, other in zip(maps_of(trunk.stages, lambda: trunk(pixels)), expected, strict=True):
        assert other.std() > 1e-3
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_random_weights_make_maps_of_a_trained_trunks_size():
    trunk = Backbone(64, 32)
    load_trunk(trunk, backbone.RANDOM)
    sizes = []
    for stage in trunk.stages:
        stage.register_forward_hook(lambda module, given, found: sizes.append(float(found.std())))
    with torch.no_grad():
        trunk(torch.randint(256, (1, 3, 128, 160), dtype=torch.uint8))
    assert len(sizes) == 4
    assert all(0.05 < size < 2 for size in sizes), sizes
    assert not trunk.conv1.weight.requires_grad


def test_absent_and_cut_files_are_refused(tmp_path):
    trunk = detector()
    refused(trunk, tmp_path / "absent.pkl", "absent.pkl is missing or cannot be opened: ")
    refused(trunk, tmp_path, "is missing or cannot be opened: ")
    torch.save(trunk.state_dict(), tmp_path / "whole.pth")
    write(tmp_path / "whole.pkl", blobs())
    for whole in (tmp_path / "whole.pth", tmp_path / "whole.pkl"):
        raw = whole.read_bytes()
        for size in (0, 3, 1000, len(raw) // 2, len(raw) - 30):
            (tmp_path / "cut").write_bytes(raw[:size])
            refused(trunk, tmp_path / "cut", "cut is cut short or ")
    torch.save([1, 2], tmp_path / "list.pth")
    refused(trunk, tmp_path / "list.pth", "list.pth is cut short or holds something else than weights")


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_nothing_in_a_file_is_run(tmp_path):
    made = tmp_path / "made"
    torch.save({"conv1.weight": Malicious(made)}, tmp_path / "a.pth")
    path = write(tmp_path / "a.pkl", blobs() | {"fc1000_w": Malicious(made)})
    refused(detector(), tmp_path / "a.pth", "holds something else than weights of PyTorch: ")
    refused(detector(), path, r"asks for \w+\.mkdir, which no weights need: ")
    assert not made.exists()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("res3_1_branch2b_w", None, "lacks res3_1_branch2b_w: "),
        ("conv1_w", np.zeros((8, 3, 3, 3), "f4"), r"conv1_w of the shape \[8, 3, 3, 3\] and not \[8, 3, 7, 7\]: "),
        ("res5_2_branch2c_bn_b", np.zeros(256, "i8"), "holds res5_2_branch2c_bn_b as something else than floating-"),
        ("res5_2_branch2c_bn_b", [0.0], "holds res5_2_branch2c_bn_b as something else than floating-"),
        ("res2_0_branch1_bn_s", np.full(32, np.nan, "f4"), "numbers in res2_0_branch1_bn_s that are not finite: "),
        ("res4_6_branch2a_w", np.zeros((32, 128, 1, 1), "f4"), "holds res4_6_branch2a_w, which this network has not: "),
    ],
)
def test_arrays_of_another_network_are_named(tmp_path, name, value, words):
    found = blobs()
    found.pop(name, None)
    path = write(tmp_path / "R-50.pkl", found if value is None else found | {name: value})
    refused(detector(), path, words)


def test_the_first_wrong_name_is_said_and_how_many_more(tmp_path):
    refused(detector(), write(tmp_path / "R-50.pkl", blobs(16)), r"\(and 158 more names are wrong\)")
    torch.save({"engine": {"model": resnet50.build((1, 1, 1, 1), 10).state_dict()}}, tmp_path / "small.pt")
    refused(detector(64), tmp_path / "small.pt", r"lacks layer1.1.conv1.weight \(and \d+ more")


def test_state_dicts_of_another_input_are_refused(tmp_path, classifier):
    """Names and shapes are equal where torchvision's pixels are divided by deviations and ours are not."""
    torch.save(classifier.state_dict(), tmp_path / "resnet50.pth")
    torch.save({"engine": {"weights": {}}}, tmp_path / "tensorflow.pt")
    for name in ("resnet50.pth", "tensorflow.pt"):
        words = "is no checkpoint of ResNet-50 trained with PyTorch: "
        refused(detector(64), tmp_path / name, words)

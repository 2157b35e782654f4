"""Mask R-CNN's backbone: equal features with synthetic files of the real names, and rejection of bad files."""

import copy
import importlib.util
import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from timetrial.runner.core.errors import DataError
from timetrial.runner.training.checkpoint import Checkpointer
from timetrial.runner.training.distributed import World
from timetrial.workloads.common.detection import pretrained_weights
from timetrial.workloads.maskrcnn import backbone as backbone_module
from timetrial.workloads.maskrcnn.backbone import load_backbone
from timetrial.workloads.maskrcnn.model import MEAN, Backbone
from timetrial.workloads.resnet50 import model as resnet50

spec = importlib.util.spec_from_file_location("detectron", Path(__file__).with_name("detectron.py"))
detectron = importlib.util.module_from_spec(spec)
spec.loader.exec_module(detectron)

BLOCKS = detectron.BLOCKS


def stage_outputs(stages, run):
    """Return the outputs of `stages` while `run` is called; those of ResNet-50 are for branch and shortcut."""
    maps = []

    def keep(module, args, output):
        maps.append(output[0] if isinstance(output, tuple) else output)

    hooks = [stage.register_forward_hook(keep) for stage in stages]
    with torch.no_grad():
        run()
    for hook in hooks:
        hook.remove()
    return maps


def randomize_batch_norms(net, seed=0):
    """Draw the parameters and statistics of batch norms."""
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
    """Return an untrained ResNet-50 of workload=resnet50."""
    return randomize_batch_norms(resnet50.build_resnet(BLOCKS, 10))


@pytest.fixture(scope="module")
def checkpoint(classifier, tmp_path_factory):
    """Return the path of its checkpoint, as the runner writes it."""
    path = tmp_path_factory.mktemp("run") / "checkpoint" / "checkpoint.pt"
    ranks = [(torch.get_rng_state(), None, 0.5)]

    class Engine:
        def state_dict(self):
            return {"model": classifier.state_dict(), "position": (3, 1), "steps": 4, "ranks": ranks}

    Checkpointer(path, Engine(), World(), {}, 600.0).save()
    return path


def small_backbone(width=8):
    return Backbone(width, 8)


def assert_rejected(backbone, path, message):
    """Assert that the file is rejected in one sentence with a remedy, and that the backbone stays unchanged."""
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    with pytest.raises(DataError, match=message) as caught:
        load_backbone(backbone, path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path} ")
    ending = r": download https://\S+, or set recipe\.training\.backbone=null to train from scratch\.$"
    assert re.search(ending, sentence)
    assert "\n" not in sentence
    for name, value in backbone.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("wrapped", [True, False])
def test_loads_detectrons_file(tmp_path, pixels, wrapped):
    blobs = detectron.blobs()
    extra = {"conv_rpn_w": np.ones(3, "f4"), "lr": np.float32(0.02), "conv1_w_momentum": blobs["conv1_w"]}
    content = {"blobs": blobs | extra, "cfg": "MODEL: {}"} if wrapped else blobs
    path = detectron.write_pickle(tmp_path / "R-50.pkl", content)
    assert b"numpy.core.multiarray" in path.read_bytes()
    backbone = small_backbone().double()
    fpn_state = {
        name: value.clone()
        for name, value in backbone.state_dict().items()
        if name.startswith(("lateral_convs", "output_convs"))
    }
    load_backbone(backbone, path)
    outputs = stage_outputs(backbone.stages, lambda: backbone(pixels))
    for output, expected in zip(outputs, detectron.features(blobs, pixels), strict=True):
        assert expected.std() > 1e-3
        torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)
    for name, value in fpn_state.items():
        assert torch.equal(backbone.state_dict()[name], value)


def test_loads_other_pickles_of_the_same_arrays(tmp_path):
    """Pickles of Python 3, with any byte order, column-major or in half precision."""
    blobs = detectron.blobs()
    expected = small_backbone()
    load_backbone(expected, detectron.write_pickle(tmp_path / "a.pkl", blobs))
    changed = blobs | {
        "conv1_w": np.asfortranarray(blobs["conv1_w"].astype(">f8")),
        "res_conv1_bn_s": np.ones(8, "f2"),
    }
    expected.bn1.weight.fill_(1.0)
    for protocol in (2, 4):
        backbone, path = small_backbone(), tmp_path / f"{protocol}.pkl"
        path.write_bytes(pickle.dumps(changed, protocol))
        load_backbone(backbone, path)
        for name, value in expected.state_dict().items():
            assert name.startswith(("lateral_convs", "output_convs")) or torch.equal(
                backbone.state_dict()[name], value
            ), name


def test_loads_a_resnet50_run(checkpoint, classifier, pixels):
    """Equal up to the first stage, where strides agree, except at the border, padded with different mean colors."""
    backbone = small_backbone(64).double()
    load_backbone(backbone, checkpoint)
    reference = copy.deepcopy(classifier).double()
    (expected,) = stage_outputs([reference.layer1], lambda: reference(pixels))
    output = stage_outputs(backbone.stages, lambda: backbone(pixels))[0]
    border = 6  # one row of the stem, one of the pooling and those of three convolutions
    inner = (..., slice(border, -border), slice(border, -border))
    torch.testing.assert_close(output[inner], expected[inner], rtol=1e-9, atol=1e-9)
    difference = (output - expected).abs()
    assert 1e-6 < difference.max() < 0.05 * expected.max()


def test_mean_equals_that_of_resnet50():
    assert pretrained_weights.RESNET50_MEAN == resnet50.MEAN


def test_run_with_equal_mean_and_strides_gives_equal_maps(checkpoint, classifier, pixels, monkeypatch):
    monkeypatch.setattr(pretrained_weights, "RESNET50_MEAN", MEAN)
    backbone, reference = small_backbone(64).double(), resnet50.build_resnet(BLOCKS, 10)
    reference.load_state_dict(classifier.state_dict())
    reference.mean.copy_(backbone.mean)
    reference = reference.double().eval()
    load_backbone(backbone, checkpoint)
    stages = (reference.layer1, reference.layer2, reference.layer3, reference.layer4)
    for stage in stages[1:]:
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    expected = stage_outputs(stages, lambda: reference(pixels))
    outputs = stage_outputs(backbone.stages, lambda: backbone(pixels))
    for output, expected_output in zip(outputs, expected, strict=True):
        assert expected_output.std() > 1e-3
        torch.testing.assert_close(output, expected_output, rtol=1e-9, atol=1e-9)


def test_random_weights_give_activations_of_trained_size():
    backbone = Backbone(64, 32)
    load_backbone(backbone, backbone_module.RANDOM)
    stds = []
    for stage in backbone.stages:
        stage.register_forward_hook(lambda module, args, output: stds.append(float(output.std())))
    with torch.no_grad():
        backbone(torch.randint(256, (1, 3, 128, 160), dtype=torch.uint8))
    assert len(stds) == 4
    assert all(0.05 < std < 2 for std in stds), stds
    assert not backbone.conv1.weight.requires_grad


def test_rejects_missing_and_truncated_files(tmp_path):
    backbone = small_backbone()
    assert_rejected(backbone, tmp_path / "absent.pkl", "absent.pkl is missing or cannot be opened: ")
    assert_rejected(backbone, tmp_path, "is missing or cannot be opened: ")
    torch.save(backbone.state_dict(), tmp_path / "whole.pth")
    detectron.write_pickle(tmp_path / "whole.pkl", detectron.blobs())
    for whole in (tmp_path / "whole.pth", tmp_path / "whole.pkl"):
        raw = whole.read_bytes()
        for size in (0, 3, 1000, len(raw) // 2, len(raw) - 30):
            (tmp_path / "cut").write_bytes(raw[:size])
            assert_rejected(backbone, tmp_path / "cut", "cut is truncated(,)? or ")
    torch.save([1, 2], tmp_path / "list.pth")
    assert_rejected(backbone, tmp_path / "list.pth", "list.pth is truncated or does not hold PyTorch weights")


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_runs_no_code_of_a_file(tmp_path):
    created = tmp_path / "created"
    torch.save({"conv1.weight": Malicious(created)}, tmp_path / "a.pth")
    path = detectron.write_pickle(tmp_path / "a.pkl", detectron.blobs() | {"fc1000_w": Malicious(created)})
    assert_rejected(small_backbone(), tmp_path / "a.pth", "does not hold PyTorch weights: ")
    assert_rejected(small_backbone(), path, r"names \w+\.mkdir, which no weights need: ")
    assert not created.exists()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("res3_1_branch2b_w", None, "lacks res3_1_branch2b_w: "),
        ("conv1_w", np.zeros((8, 3, 3, 3), "f4"), r"conv1_w of shape \[8, 3, 3, 3\] instead of \[8, 3, 7, 7\]: "),
        ("res5_2_branch2c_bn_b", np.zeros(256, "i8"), "has res5_2_branch2c_bn_b, which is not a floating-point tensor"),
        ("res5_2_branch2c_bn_b", [0.0], "has res5_2_branch2c_bn_b, which is not a floating-point tensor"),
        ("res2_0_branch1_bn_s", np.full(32, np.nan, "f4"), "has values in res2_0_branch1_bn_s that are not finite: "),
        ("res4_6_branch2a_w", np.zeros((32, 128, 1, 1), "f4"), "has res4_6_branch2a_w, which this network lacks: "),
    ],
)
def test_names_the_arrays_of_another_network(tmp_path, name, value, message):
    blobs = detectron.blobs()
    blobs.pop(name, None)
    path = detectron.write_pickle(tmp_path / "R-50.pkl", blobs if value is None else blobs | {name: value})
    assert_rejected(small_backbone(), path, message)


def test_reports_the_first_problem_and_the_number_of_others(tmp_path):
    path = detectron.write_pickle(tmp_path / "R-50.pkl", detectron.blobs(16))
    assert_rejected(small_backbone(), path, r"\(and 158 more problems\)")
    torch.save({"engine": {"model": resnet50.build_resnet((1, 1, 1, 1), 10).state_dict()}}, tmp_path / "small.pt")
    assert_rejected(small_backbone(64), tmp_path / "small.pt", r"lacks layer1.1.conv1.weight \(and \d+ more")


def test_rejects_state_dicts_for_another_input(tmp_path, classifier):
    """torchvision's weights have equal names and shapes, but expect pixels divided by the std."""
    torch.save(classifier.state_dict(), tmp_path / "resnet50.pth")
    torch.save({"engine": {"weights": {}}}, tmp_path / "tensorflow.pt")
    for name in ("resnet50.pth", "tensorflow.pt"):
        message = "is not a checkpoint of ResNet-50 trained with PyTorch: "
        assert_rejected(small_backbone(64), tmp_path / name, message)

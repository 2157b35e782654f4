"""Files of backbone weights, loaded for SSD: each bad file raises its message and leaves the backbone unchanged."""

import hashlib
import os
import re

import pytest
import torch

from timetrial.runner.core.errors import DataError
from timetrial.workloads.ssd.backbone import load_backbone
from timetrial.workloads.ssd.model import Backbone


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


@pytest.fixture
def save_weights(tmp_path):
    """Return a function that saves a backbone's weights with changes, None for absent ones, and returns the path."""

    def save(changed):
        state = Backbone(8).state_dict() | changed
        torch.save({name: value for name, value in state.items() if value is not None}, tmp_path / "backbone.pth")
        return tmp_path / "backbone.pth"

    return save


def test_converts_weights_to_the_dtype_of_the_backbone(save_weights):
    value = torch.full((8,), 0.3, dtype=torch.float64)
    backbone = Backbone(8)
    load_backbone(backbone, save_weights({"bn1.bias": value}))
    assert torch.equal(backbone.state_dict()["bn1.bias"], value.float())


def test_rejects_missing_and_truncated_files(tmp_path, save_weights):
    backbone = Backbone(8)
    assert_rejected(backbone, tmp_path / "absent.pth", "absent.pth is missing or cannot be opened: ")
    assert_rejected(backbone, tmp_path, "is missing or cannot be opened: ")
    raw = save_weights({}).read_bytes()
    for size in (0, 3, 1000, len(raw) // 2, len(raw) - 30):
        (tmp_path / "cut").write_bytes(raw[:size])
        assert_rejected(backbone, tmp_path / "cut", "cut is truncated or ")
    torch.save([1, 2], tmp_path / "list.pth")
    assert_rejected(backbone, tmp_path / "list.pth", "list.pth is truncated or does not hold PyTorch weights")


def test_rejects_file_whose_hash_differs_from_its_name(tmp_path):
    backbone = Backbone(8)
    torch.save(backbone.state_dict(), tmp_path / "resnet34-333f7ec4.pth")
    digest = hashlib.sha256((tmp_path / "resnet34-333f7ec4.pth").read_bytes()).hexdigest()[:8]
    message = f"is damaged: its SHA-256 starts with {digest}, but its name says 333f7ec4: "
    assert_rejected(backbone, tmp_path / "resnet34-333f7ec4.pth", message)


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_runs_no_code_of_a_file(tmp_path, save_weights):
    created = tmp_path / "created"
    path = save_weights({"conv1.weight": Malicious(created)})
    assert_rejected(Backbone(8), path, "does not hold PyTorch weights: ")
    assert not created.exists()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("layer2.1.conv2.weight", None, r"lacks layer2\.1\.conv2\.weight: "),
        (
            "conv1.weight",
            torch.zeros(8, 3, 3, 3),
            r"has conv1\.weight of shape \[8, 3, 3, 3\] instead of \[8, 3, 7, 7\]: ",
        ),
        ("bn1.bias", torch.zeros(8, dtype=torch.int64), r"has bn1\.bias, which is not a floating-point tensor"),
        ("bn1.bias", [0.0], r"has bn1\.bias, which is not a floating-point tensor"),
        ("bn1.weight", torch.full((8,), torch.nan), r"has values in bn1\.weight that are not finite: "),
        ("layer3.6.bn1.bias", torch.zeros(32), r"has layer3\.6\.bn1\.bias, which this network lacks: "),
    ],
)
def test_names_the_weights_of_another_network(save_weights, name, value, message):
    assert_rejected(Backbone(8), save_weights({name: value}), message)


def test_reports_the_first_problem_and_the_number_of_others(tmp_path):
    torch.save(Backbone(16).state_dict(), tmp_path / "wider.pth")
    wrong = sum(value.is_floating_point() for value in Backbone(8).state_dict().values())
    message = rf"\[16, 3, 7, 7\] instead of \[8, 3, 7, 7\] \(and {wrong - 1} more problems\): "
    assert_rejected(Backbone(8), tmp_path / "wider.pth", message)

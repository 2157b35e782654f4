"""Files of weights, read as the trunk of SSD: every bad file with its sentence, and the trunk as it was."""

import hashlib
import os
import re

import pytest
import torch

from timetrial.runner.core.errors import DataError
from timetrial.workloads.ssd.backbone import load_trunk
from timetrial.workloads.ssd.model import Trunk


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


@pytest.fixture
def saved(tmp_path):
    """Saves the trunk's own weights with some changed, None for those left out; gives the file."""

    def save(changed):
        found = Trunk(8).state_dict() | changed
        torch.save({name: value for name, value in found.items() if value is not None}, tmp_path / "trunk.pth")
        return tmp_path / "trunk.pth"

    return save


def test_a_whole_file_is_taken_in_the_trunks_own_type(saved):
    value = torch.full((8,), 0.3, dtype=torch.float64)
    trunk = Trunk(8)
    load_trunk(trunk, saved({"bn1.bias": value}))
    assert torch.equal(trunk.state_dict()["bn1.bias"], value.float())


def test_absent_and_cut_files_are_refused(tmp_path, saved):
    trunk = Trunk(8)
    refused(trunk, tmp_path / "absent.pth", "absent.pth is missing or cannot be opened: ")
    refused(trunk, tmp_path, "is missing or cannot be opened: ")
    raw = saved({}).read_bytes()
    for size in (0, 3, 1000, len(raw) // 2, len(raw) - 30):
        (tmp_path / "cut").write_bytes(raw[:size])
        refused(trunk, tmp_path / "cut", "cut is cut short or ")
    torch.save([1, 2], tmp_path / "list.pth")
    refused(trunk, tmp_path / "list.pth", "list.pth is cut short or holds something else than weights")


def test_the_hash_in_a_name_must_be_the_files(tmp_path):
    trunk = Trunk(8)
    torch.save(trunk.state_dict(), tmp_path / "resnet34-333f7ec4.pth")
    digest = hashlib.sha256((tmp_path / "resnet34-333f7ec4.pth").read_bytes()).hexdigest()[:8]
    words = f"is damaged, its SHA-256 begins with {digest} and not as its name says: "
    refused(trunk, tmp_path / "resnet34-333f7ec4.pth", words)


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_nothing_in_a_file_is_run(tmp_path, saved):
    made = tmp_path / "made"
    path = saved({"conv1.weight": Malicious(made)})
    refused(Trunk(8), path, "holds something else than weights of PyTorch: ")
    assert not made.exists()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("layer2.1.conv2.weight", None, r"lacks layer2\.1\.conv2\.weight: "),
        (
            "conv1.weight",
            torch.zeros(8, 3, 3, 3),
            r"holds conv1\.weight of the shape \[8, 3, 3, 3\] and not \[8, 3, 7, 7\]: ",
        ),
        ("bn1.bias", torch.zeros(8, dtype=torch.int64), r"holds bn1\.bias as something else than floating-"),
        ("bn1.bias", [0.0], r"holds bn1\.bias as something else than floating-"),
        ("bn1.weight", torch.full((8,), torch.nan), r"holds numbers in bn1\.weight that are not finite: "),
        ("layer3.6.bn1.bias", torch.zeros(32), r"holds layer3\.6\.bn1\.bias, which this network has not: "),
    ],
)
def test_weights_of_another_network_are_named(saved, name, value, words):
    refused(Trunk(8), saved({name: value}), words)


def test_the_first_wrong_name_is_said_and_how_many_more(tmp_path):
    torch.save(Trunk(16).state_dict(), tmp_path / "wider.pth")
    wrong = sum(value.is_floating_point() for value in Trunk(8).state_dict().values())
    words = rf"\[16, 3, 7, 7\] and not \[8, 3, 7, 7\] \(and {wrong - 1} more names are wrong\): "
    refused(Trunk(8), tmp_path / "wider.pth", words)

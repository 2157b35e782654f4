"""SSD's trunk: features equal to those of torchvision's network from its file, and files of other networks."""

import hashlib

import pytest
import torch

from timetrial.runner.core.errors import DataError
from timetrial.workloads.resnet50 import model as classifier
from timetrial.workloads.ssd.backbone import load_trunk
from timetrial.workloads.ssd.model import SSD, Trunk

resnet = pytest.importorskip("torchvision.models.resnet")


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


@pytest.mark.parametrize("archive", [True, False])
def test_it_takes_torchvisions_file_up_to_conv4(tmp_path, archive):
    """In the form of today and in the one that resnet34-333f7ec4.pth has, which knows no batches tracked."""
    theirs = stir(resnet.resnet34())
    known = theirs.state_dict()
    if not archive:
        known = {name: value for name, value in known.items() if not name.endswith("num_batches_tracked")}
    torch.save(known, tmp_path / "saved", _use_new_zipfile_serialization=archive)
    digest = hashlib.sha256((tmp_path / "saved").read_bytes()).hexdigest()[:8]
    path = (tmp_path / "saved").rename(tmp_path / f"resnet34-{digest}.pth")
    ours = Trunk(64)
    load_trunk(ours, path)
    ours, theirs = ours.double().eval(), theirs.double()
    theirs.layer3[0].conv1.stride = theirs.layer3[0].downsample[0].stride = (1, 1)
    x = torch.randn(1, 3, 64, 96, dtype=torch.float64)
    with torch.no_grad():
        y = theirs.maxpool(theirs.relu(theirs.bn1(theirs.conv1(x))))
        expected = theirs.layer3(theirs.layer2(theirs.layer1(y)))
        torch.testing.assert_close(ours(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            lambda: resnet.resnet50().state_dict(),
            r"holds layer1.0.conv1.weight of the shape \[64, 64, 1, 1\] and not \[64, 64, 3, 3\] \(and \d+ more",
        ),
        (
            lambda: resnet.ResNet(resnet.BasicBlock, [3, 4, 7, 3]).state_dict(),
            "holds layer3.6.conv1.weight, which this network has not",
        ),
        (lambda: {"engine": {"steps": 3}}, r"lacks conv1.weight \(and \d+ more names are"),
        (lambda: {"engine": {"model": resnet.resnet50().state_dict()}}, r"of the shape \[64, 64, 1, 1\] and not"),
    ],
)
def test_files_of_other_networks_are_refused(tmp_path, found, words):
    torch.save(found(), tmp_path / "other.pth")
    with pytest.raises(DataError, match=words):
        load_trunk(Trunk(64), tmp_path / "other.pth")


def test_it_takes_a_run_of_resnet50_with_basic_blocks(tmp_path):
    """But for the border, where the means' colours are padded."""
    theirs = stir(classifier.build((3, 4, 6, 3), 10, block="basic"))
    torch.save({"engine": {"model": theirs.state_dict(), "steps": 3}, "done": 2}, tmp_path / "checkpoint.pt")
    ours = SSD(81, 300).eval()
    load_trunk(ours.trunk, tmp_path / "checkpoint.pt")
    pixels = torch.randint(256, (1, 3, 96, 128), dtype=torch.uint8)
    found, expected = [], []
    ours.trunk.bn1.register_forward_hook(lambda module, given, out: found.append(out))
    theirs.bn1.register_forward_hook(lambda module, given, out: expected.append(out.clone()))  # relu overwrites it
    with torch.no_grad():
        ours.trunk((pixels.float() - ours.mean) / ours.deviation)
        theirs(pixels)
    inner = (..., slice(2, -2), slice(2, -2))
    torch.testing.assert_close(found[0][inner], expected[0][inner], rtol=1e-4, atol=1e-4)
    for name in ("layer1.2.bn2.running_var", "layer3.5.conv2.weight"):
        assert torch.equal(ours.trunk.state_dict()[name], theirs.state_dict()[name])

"""SSD's backbone: features equal to torchvision's with the same file, and rejection of files of other networks."""

import hashlib

import pytest
import torch

from timetrial.runner.core.errors import DataError
from timetrial.workloads.resnet50 import model as resnet50
from timetrial.workloads.ssd.backbone import load_backbone
from timetrial.workloads.ssd.model import SSD, Backbone

resnet = pytest.importorskip("torchvision.models.resnet")


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


@pytest.mark.parametrize("archive", [True, False])
def test_loads_torchvisions_file_up_to_conv4(tmp_path, archive):
    """In today's format and in that of resnet34-333f7ec4.pth, which has no num_batches_tracked."""
    torchvision_net = randomize_batch_norms(resnet.resnet34())
    state = torchvision_net.state_dict()
    if not archive:
        state = {name: value for name, value in state.items() if not name.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "saved", _use_new_zipfile_serialization=archive)
    digest = hashlib.sha256((tmp_path / "saved").read_bytes()).hexdigest()[:8]
    path = (tmp_path / "saved").rename(tmp_path / f"resnet34-{digest}.pth")
    backbone = Backbone(64)
    load_backbone(backbone, path)
    backbone, torchvision_net = backbone.double().eval(), torchvision_net.double()
    torchvision_net.layer3[0].conv1.stride = torchvision_net.layer3[0].downsample[0].stride = (1, 1)
    pixels = torch.randint(256, (1, 3, 64, 96), dtype=torch.uint8)
    with torch.no_grad():
        x = (pixels.double() - backbone.mean) / backbone.std
        y = torchvision_net.maxpool(torchvision_net.relu(torchvision_net.bn1(torchvision_net.conv1(x))))
        expected = torchvision_net.layer3(torchvision_net.layer2(torchvision_net.layer1(y)))
        torch.testing.assert_close(backbone(pixels), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("make_state", "message"),
    [
        (
            lambda: resnet.resnet50().state_dict(),
            r"has layer1.0.conv1.weight of shape \[64, 64, 1, 1\] instead of \[64, 64, 3, 3\] \(and \d+ more",
        ),
        (
            lambda: resnet.ResNet(resnet.BasicBlock, [3, 4, 7, 3]).state_dict(),
            "has layer3.6.conv1.weight, which this network lacks",
        ),
        (lambda: {"engine": {"steps": 3}}, r"lacks conv1.weight \(and \d+ more problems"),
        (lambda: {"engine": {"model": resnet.resnet50().state_dict()}}, r"of shape \[64, 64, 1, 1\] instead of"),
    ],
)
def test_rejects_files_of_other_networks(tmp_path, make_state, message):
    torch.save(make_state(), tmp_path / "other.pth")
    with pytest.raises(DataError, match=message):
        load_backbone(Backbone(64), tmp_path / "other.pth")


def test_loads_a_resnet50_run_with_basic_blocks(tmp_path):
    """Equal except at the border, which is padded with different mean colors."""
    classifier = randomize_batch_norms(resnet50.build_resnet((3, 4, 6, 3), 10, block="basic"))
    torch.save({"engine": {"model": classifier.state_dict(), "steps": 3}, "done": 2}, tmp_path / "checkpoint.pt")
    detector = SSD(81, 300).eval()
    load_backbone(detector.backbone, tmp_path / "checkpoint.pt")
    pixels = torch.randint(256, (1, 3, 96, 128), dtype=torch.uint8)
    outputs, expected = [], []
    detector.backbone.bn1.register_forward_hook(lambda module, args, output: outputs.append(output))
    classifier.bn1.register_forward_hook(
        lambda module, args, output: expected.append(output.clone())
    )  # ReLU is in place
    with torch.no_grad():
        detector.backbone(pixels)
        classifier(pixels)
    inner = (..., slice(2, -2), slice(2, -2))
    torch.testing.assert_close(outputs[0][inner], expected[0][inner], rtol=1e-4, atol=1e-4)
    for name in ("layer1.2.bn2.running_var", "layer3.5.conv2.weight"):
        assert torch.equal(detector.backbone.state_dict()[name], classifier.state_dict()[name])

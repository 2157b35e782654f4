"""SSD with ResNet-34 as MLPerf defines it (mlperf.md 12.2): trunk to conv4 at stride 8, five more maps, two heads.

Shapes: N images, P priors, C classes with the background first, M boxes of an image.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import priors

MEANS, DEVIATIONS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Of each further map: channels between and out (for a trunk of 64), stride and padding of the 3x3 convolution.
_FURTHER = ((256, 512, 2, 1), (256, 512, 2, 1), (128, 256, 2, 1), (128, 256, 1, 0), (128, 256, 1, 0))
_BLOCKS = (3, 4, 6)
_NEGATIVES = 3  # for each positive


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, named as torchvision names them."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        same = channels == out and stride == 1
        shortcut = [] if same else [nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)]
        self.downsample = nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        """[N, out, H / stride, W / stride]."""
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.downsample(x))


class Trunk(nn.Module):
    """ResNet-34 up to conv4, whose stride is 1: a map of an eighth of the image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        sizes = (width, width, 2 * width, 4 * width)
        for place, (blocks, stride) in enumerate(zip(_BLOCKS, (1, 2, 1), strict=True), start=1):
            first = Block(sizes[place - 1], sizes[place], stride)
            rest = [Block(sizes[place], sizes[place], 1) for _ in range(blocks - 1)]
            self.add_module(f"layer{place}", nn.Sequential(first, *rest))

    def forward(self, x: Tensor) -> Tensor:
        """[N, 4 * width, H / 8, W / 8]."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for place in range(1, len(_BLOCKS) + 1):
            x = self.get_submodule(f"layer{place}")(x)
        return x


class SSD(nn.Module):
    """Called with a batch, its loss summed over the images; `predict` gives what detection reads."""

    priors: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, classes: int, image_size: int, width: int = 64) -> None:
        super().__init__()
        self.classes = classes
        self.trunk = Trunk(width)
        maps = feature_maps(image_size)
        channels = [4 * width, *(out * width // 64 for _, out, _, _ in _FURTHER[: len(maps) - 1])]
        self.further = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(before, between * width // 64, 1), nn.ReLU(),
                nn.Conv2d(between * width // 64, after, 3, stride, padding), nn.ReLU(),
            )
            for before, after, (between, _, stride, padding) in zip(channels, channels[1:], _FURTHER, strict=False)
        )  # fmt: skip
        shapes = priors.SHAPES[: len(maps)]
        self.locate, self.classify = (
            nn.ModuleList(nn.Conv2d(size, each * k, 3, padding=1) for size, k in zip(channels, shapes, strict=True))
            for each in (4, classes)
        )
        for part in (self.further, self.locate, self.classify):
            for module in part.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.xavier_uniform_(module.weight)
        self.register_buffer("priors", priors.priors(maps), persistent=False)
        for name, values in (("mean", MEANS), ("deviation", DEVIATIONS)):
            self.register_buffer(name, 255 * torch.tensor(values).view(1, 3, 1, 1), persistent=False)
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor, boxes: Tensor, labels: Tensor) -> Tensor:
        """Of pixels uint8 [N, 3, H, W], corner boxes [N, M, 4] and labels [N, M], 0 where an image has fewer."""
        locations, scores = self.predict(images)
        with torch.autocast(images.device.type, enabled=False):
            return loss(locations.float(), scores, *priors.match(boxes, labels, self.priors), self.priors)

    def predict(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Differences from the priors [N, P, 4] and scores [N, P, C]."""
        x = self.trunk((images.float() - self.mean) / self.deviation)
        maps = [x]
        for further in self.further:
            maps.append(further(maps[-1]))
        found = []
        for heads, size in ((self.locate, 4), (self.classify, self.classes)):
            parts = [head(x).permute(0, 2, 3, 1).flatten(1) for head, x in zip(heads, maps, strict=True)]
            found.append(torch.cat(parts, 1).unflatten(1, (-1, size)))
        return found[0], found[1]


def loss(locations: Tensor, scores: Tensor, boxes: Tensor, labels: Tensor, anchors: Tensor) -> Tensor:
    """Smooth L1 and cross entropy of positives and the hardest negatives, by positives of an image, over the images.

    `locations` [N, P, 4] and `scores` [N, P, C] against centred `boxes` [N, P, 4] and `labels` [N, P]. Of each image's
    negatives the three times as many of highest loss count; an image without a box adds nothing.
    """
    positive = labels > 0
    count = positive.sum(1)
    wanted = priors.encode(boxes, anchors).masked_fill(~positive[..., None], 0.0)
    offset = F.smooth_l1_loss(locations, wanted, reduction="none")
    place = (offset.sum(2) * positive).sum(1)
    wrong = F.cross_entropy(scores.flatten(0, 1).float(), labels.flatten(), reduction="none").view_as(labels)
    negative = wrong.detach().masked_fill(positive, 0.0)
    rank = negative.argsort(stable=True, dim=1, descending=True).argsort(1)
    counted = positive | (rank < (_NEGATIVES * count).clamp(max=labels.shape[1])[:, None])
    total = place + (wrong * counted).sum(1)
    return (total * (count > 0) / count.clamp(min=1)).sum()


def feature_maps(image_size: int) -> list[int]:
    """Edges of the maps in cells: 38, 19, 10, 5, 3, 1 for 300 pixels; smaller images have fewer."""
    sizes = [-(-image_size // 8)]
    for _, _, stride, padding in _FURTHER:
        size = (sizes[-1] + 2 * padding - 3) // stride + 1
        if size < 1:
            break
        sizes.append(size)
    return sizes

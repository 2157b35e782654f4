"""ResNet-50: a transcription of MLPerf's rules with torchvision's network; the reference is a TensorFlow program.

It shares the files and the hyperparameters with timetrial, and neither its input, network, optimizer nor schedule.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from timetrial.runner.config.schema import Config
from timetrial.runner.core.progress import no_progress
from timetrial.workloads.common.imagenet.data import ImageNetData
from timetrial.workloads.common.imagenet.data import _folder as image_folder

from .curves import Recorder, eval_epochs, recipe_settings

DEFAULTS = ("workload=resnet50", "recipe=resnet50/mini", "precision=bf16")

_MEANS = (123.68, 116.78, 103.94)
_ATTEMPTS, _ASPECTS = 100, (0.75, 1.33)
_CENTRAL = 256 / 224  # the short side before the central crop, over the crop
_WORKERS = 2


def train_reference(config: Config, checkout: Path | None, seed: int, folder: Path, recorder: Recorder) -> None:
    """Train the transcription."""
    torch.manual_seed(seed)
    training, data = recipe_settings(config)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ImageNetData.prepare_data(data, no_progress)  # which may generate the images
    train, validation = (_read_images(image_folder(data) / split) for split in ("train", "val"))
    classes = 1 + max(train[1])
    network = _build_network(classes, training).to(device, memory_format=torch.channels_last)
    norms = {id(weight) for module in network.modules() if isinstance(module, nn.BatchNorm2d)
             for weight in module.parameters()}  # fmt: skip
    groups = [
        {"params": [weight for weight in network.parameters() if id(weight) not in norms],
         "weight_decay": training.weight_decay},
        {"params": [weight for weight in network.parameters() if id(weight) in norms]},
    ]  # fmt: skip
    optimizer = torch.optim.SGD(groups, lr=training.learning_rate, momentum=training.momentum)
    batch, size = config.recipe.global_batch_size, data.image_size
    steps = math.ceil(len(train[1]) / batch)
    batches = _batches(*train, batch, size, data.min_crop_area, seed)
    points, step = eval_epochs(config), 0
    for epoch in range(1, config.recipe.max_epochs + 1):
        network.train()
        for _ in range(steps):
            pixels, labels = next(batches)
            for group in optimizer.param_groups:
                group["lr"] = _learning_rate(step, steps, training)
            with torch.autocast(device.type, torch.bfloat16, config.precision.name == "bf16"):
                logits = network(_normalize(pixels, device))
            labels = labels.to(device)
            loss = F.cross_entropy(logits.float(), labels, label_smoothing=training.label_smoothing)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss)
            step += 1
        if epoch in points:
            network.eval()
            recorder.evaluated(epoch, _accuracy(network, validation, size, device, config.precision.name == "bf16"))


def _read_images(folder: Path) -> tuple[list[Tensor], list[int]]:
    """Return the decoded images, uint8 [3, H, W], and their classes."""
    images, labels = [], []
    for number, of_class in enumerate(sorted(path for path in folder.iterdir() if path.is_dir())):
        for path in sorted(of_class.iterdir()):
            mode = torchvision.io.ImageReadMode.RGB
            images.append(torchvision.io.decode_image(torchvision.io.read_file(str(path)), mode))
            labels.append(number)
    return images, labels


def _build_network(classes: int, training: Any) -> nn.Module:
    network = torchvision.models.ResNet(
        torchvision.models.resnet.Bottleneck, list(training.stages), classes, training.zero_last_gamma
    )
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_in")
    nn.init.normal_(network.fc.weight, 0.0, 0.01)
    nn.init.zeros_(network.fc.bias)
    return network


def _learning_rate(step: int, steps_per_epoch: int, training: Any) -> float:
    warmup = training.warmup_epochs * steps_per_epoch
    if step < warmup:
        return float(training.learning_rate * step / warmup)
    left = 1 - min(1.0, (step - warmup) / ((training.end_epoch - training.warmup_epochs) * steps_per_epoch + 1))
    return float(
        (training.learning_rate - training.end_learning_rate) * left**training.decay_power + training.end_learning_rate
    )


class _Crops(Dataset[tuple[Tensor, int]]):
    """Random crops, drawn as TensorFlow's `sample_distorted_bounding_box` does, and flips."""

    def __init__(self, images: list[Tensor], labels: list[int], size: int, min_area: float) -> None:
        self._images, self._labels, self._size, self._min_area = images, labels, size, min_area

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = np.random.default_rng(torch.randint(2**62, ()).item())
        image = self._images[index]
        top, left, height, width = _crop_box(generator, image.shape[1], image.shape[2], self._min_area)
        crop = _resize(image[:, top : top + height, left : left + width], (self._size, self._size))
        return (crop.flip(2) if generator.random() < 0.5 else crop), self._labels[index]


def _crop_box(generator: np.random.Generator, rows: int, columns: int, min_area: float) -> tuple[int, int, int, int]:
    for _ in range(_ATTEMPTS):
        aspect = generator.uniform(*_ASPECTS)
        lowest = round(math.sqrt(min_area * rows * columns / aspect))
        highest = min(round(math.sqrt(rows * columns / aspect)), rows, int((columns + 0.5) / aspect))
        if highest < lowest:
            continue
        height = int(generator.integers(lowest, highest + 1))
        width = min(round(height * aspect), columns)
        if min_area * rows * columns <= height * width <= rows * columns:
            top, left = generator.integers(rows - height + 1), generator.integers(columns - width + 1)
            return int(top), int(left), height, width
    return 0, 0, rows, columns


def _resize(image: Tensor, size: tuple[int, int]) -> Tensor:
    resized = F.interpolate(image[None].float(), size, mode="bilinear", align_corners=False)[0]
    return resized.round().to(torch.uint8)


def _batches(
    images: list[Tensor], labels: list[int], batch: int, size: int, min_area: float, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of an endless stream of shuffled epochs, as the reference batches across them."""

    def stream() -> Iterator[int]:
        generator = np.random.default_rng(seed)
        while True:
            yield from generator.permutation(len(labels)).tolist()

    loader = DataLoader(
        _Crops(images, labels, size, min_area), batch, sampler=stream(), num_workers=_WORKERS,
        worker_init_fn=lambda worker: torch.set_num_threads(1), prefetch_factor=8, multiprocessing_context="fork",
    )  # fmt: skip
    yield from loader


def _normalize(pixels: Tensor, device: torch.device) -> Tensor:
    means = torch.tensor(_MEANS, device=device).view(3, 1, 1)
    return (pixels.to(device).float() - means).contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def _accuracy(
    network: nn.Module, validation: tuple[list[Tensor], list[int]], size: int, device: torch.device, is_bf16: bool
) -> float:
    """Return the top-1 accuracy on central crops."""
    correct, (images, labels) = 0, validation
    for start in range(0, len(labels), 256):
        pixels = torch.stack([_central(image, size) for image in images[start : start + 256]])
        with torch.autocast(device.type, torch.bfloat16, is_bf16):
            found = network(_normalize(pixels, device)).argmax(1).cpu()
        correct += int((found == torch.tensor(labels[start : start + 256])).sum())
    return correct / len(labels)


def _central(image: Tensor, size: int) -> Tensor:
    scale = round(size * _CENTRAL) / min(image.shape[1:])
    height, width = (max(size, round(side * scale)) for side in image.shape[1:])
    resized = _resize(image, (height, width))
    top, left = (height - size) // 2, (width - size) // 2
    return resized[:, top : top + size, left : left + size]

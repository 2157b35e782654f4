#!/usr/bin/env python
"""Time torchvision's ResNet-50, to compare `workload=resnet50` with.

    python -P scripts/baselines/stock_resnet50.py [--batch N] [--steps N] [--eager]

It trains by SGD with smoothed labels, in bf16, channels-last and with `torch.compile`. The images stay on the device.
Prints one JSON line. Leave the machine idle.
"""

import json

import torch
from torch.nn import functional as F
from torchvision.models import resnet50

from timetrial.scripts.baselines.stock_training import parse_arguments, prepare_device, time_training


def main() -> None:
    """Time the training steps."""
    arguments, device = parse_arguments(__doc__, batch=512), prepare_device()
    model = resnet50().to(device, memory_format=torch.channels_last)
    images = torch.randn(arguments.batch, 3, 224, 224, device=device).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(1000, (arguments.batch,), device=device)
    figures = time_training(
        model, images, lambda logits: F.cross_entropy(logits.float(), labels, label_smoothing=0.1), arguments
    )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

"""Times training steps of a model of stock PyTorch operations, for `stock_resnet50.py` and `stock_ssd.py`."""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def parse_arguments(description: str | None, batch: int) -> argparse.Namespace:
    """Return the arguments of the command line: batch, steps and eager."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--eager", action="store_true")
    return parser.parse_args()


def prepare_device() -> torch.device:
    """Let cuDNN search for the fastest convolutions, and return the accelerator, or the CPU without one."""
    torch.backends.cudnn.benchmark = True
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def time_training(
    model: nn.Module, images: Tensor, loss: Callable[[Any], Tensor], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Train `model` by SGD in bf16 on `images` [N, 3, H, W], which stay on the device, and return its speed.

    `loss` takes the model's outputs. The first fifth of the steps, at least three, are not timed.
    """
    device = images.device
    network = model if arguments.eager else torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, 0.9, weight_decay=5e-4, fused=device.type != "cpu")

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16):
                outputs = network(images)
            loss(outputs).backward()
            optimizer.step()
        if device.type != "cpu":
            torch.accelerator.synchronize()

    train(max(3, arguments.steps // 5))
    started = time.perf_counter()
    train(arguments.steps)
    seconds = (time.perf_counter() - started) / arguments.steps
    return {
        "batch": len(images),
        "compiled": not arguments.eager,
        "step_ms": round(seconds * 1e3, 3),
        "images_per_s": round(len(images) / seconds, 1),
    }

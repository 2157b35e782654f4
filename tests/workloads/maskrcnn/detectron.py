"""Detectron's ResNet-50: files in its format with random weights, and the features of its network."""

import pickle
import struct
from typing import ClassVar

import numpy as np
import torch
from torch.nn import functional as F

BLOCKS = (3, 4, 6, 3)


class Python2Pickler(pickle._Pickler):
    """Writes protocol 2 with str and bytes as Python 2 does: both are byte strings."""

    dispatch: ClassVar[dict] = dict(pickle._Pickler.dispatch)

    def save_string(self, value):
        raw = value.encode("latin1") if isinstance(value, str) else value
        self.write(b"T" + struct.pack("<i", len(raw)) + raw)
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_string


def write_pickle(path, blobs):
    with path.open("wb") as file:
        Python2Pickler(file, protocol=2).dump(blobs)
    path.write_bytes(path.read_bytes().replace(b"numpy._core.", b"numpy.core."))
    return path


def blobs(width=8, blocks=BLOCKS, seed=0):
    """Return the arrays of R-50.pkl at another width: float32, with convolution biases that are about zero."""
    random, arrays = np.random.default_rng(seed), {}

    def layer(name, norm, out, channels, edge):
        weight = random.normal(0, (2 / (channels * edge * edge)) ** 0.5, (out, channels, edge, edge))
        arrays[f"{name}_w"], arrays[f"{name}_b"] = weight.astype("f4"), np.zeros(out, "f4")
        arrays[f"{norm}_s"] = random.uniform(0.5, 1.0, out).astype("f4")
        arrays[f"{norm}_b"] = random.normal(0, 0.2, out).astype("f4")

    layer("conv1", "res_conv1_bn", width, 3, 7)
    arrays["conv1_b"] += 1e-9
    channels = width
    for stage, count in enumerate(blocks):
        between = width << stage
        for block in range(count):
            name = f"res{stage + 2}_{block}_branch"
            if block == 0:
                layer(f"{name}1", f"{name}1_bn", 4 * between, channels, 1)
            layer(f"{name}2a", f"{name}2a_bn", between, channels, 1)
            layer(f"{name}2b", f"{name}2b_bn", between, between, 3)
            layer(f"{name}2c", f"{name}2c_bn", 4 * between, between, 1)
            channels = 4 * between
    arrays["fc1000_w"], arrays["fc1000_b"] = np.zeros((10, channels), "f4"), np.zeros(10, "f4")
    return arrays


def features(arrays, pixels):
    """Return the output of each stage of Detectron's network: BGR input, its means, strides in the 1x1."""

    def affine(x, name, stride=1, padding=0):
        weight, scale, shift = (
            torch.from_numpy(arrays[key]).double()
            for key in (f"{name}_w", f"{name}_bn_s".replace("conv1_bn", "res_conv1_bn"), f"{name}_bn_b")
        )
        return F.conv2d(x, weight, None, stride, padding) * scale[:, None, None] + shift[:, None, None]

    arrays = arrays | {"conv1_bn_b": arrays["res_conv1_bn_b"]}
    means = torch.tensor([102.9801, 115.9465, 122.7717]).double()
    x = F.max_pool2d(affine(pixels.flip(1).double() - means[:, None, None], "conv1", 2, 3).relu(), 3, 2, 1)
    maps = []
    for stage, count in enumerate(BLOCKS):
        for block in range(count):
            name, stride = f"res{stage + 2}_{block}_branch", 2 if stage and not block else 1
            shortcut = x if block else affine(x, f"{name}1", stride)
            y = affine(affine(x, f"{name}2a", stride).relu(), f"{name}2b", 1, 1).relu()
            x = (affine(y, f"{name}2c") + shortcut).relu()
        maps.append(x)
    return maps

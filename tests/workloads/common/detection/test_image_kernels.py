"""Crops scaled onto a canvas by Triton's interpreter, against PyTorch in float64 and Pillow."""

import importlib.util
import sys

CROPS = """
import numpy as np, torch
from PIL import Image
from torch.nn import functional as F
from timetrial.workloads.common.detection.image_kernels import crop_and_scale

generator = np.random.default_rng(1)
# By canvas: an image's height and width, the crop, and the height and width that it gets.
cases = {
    (70, 70): [
        ((150, 90), (3, 5, 140, 80), (70, 70)), ((64, 21), (10, 2, 50, 17), (70, 70)),
        ((70, 70), (0, 0, 70, 70), (70, 70)), ((1, 5), (0, 0, 1, 5), (70, 70)),
    ],
    (9, 9): [
        ((74, 75), (1, 3, 72, 70), (9, 9)), ((40, 30), (20, 7, 9, 23), (9, 9)),
        ((31, 64), (11, 20, 3, 44), (9, 9)), ((9, 9), (8, 8, 1, 1), (9, 9)),
    ],
    (33, 140): [
        ((40, 90), (0, 0, 40, 90), (33, 74)), ((64, 80), (10, 2, 50, 70), (21, 140)),
        ((20, 21), (0, 0, 20, 21), (20, 21)), ((12, 30), (3, 5, 1, 8), (5, 64)),
    ],
}
colour = (123, 116, 103)
for canvas, images in cases.items():
    for flips in ([0, 1, 0, 1], [1, 0, 1, 0]):
        pixels = [torch.from_numpy(generator.integers(256, size=(3, *edges), dtype=np.uint8)) for edges, *_ in images]
        addresses = torch.tensor([planes.data_ptr() for planes in pixels])
        sizes = torch.tensor([edges for edges, *_ in images], dtype=torch.int32)
        boxes = torch.tensor([box for _, box, _ in images], dtype=torch.int32)
        scaled = torch.tensor([size for *_, size in images])
        mirrored = torch.tensor(flips).bool()
        every = crop_and_scale(addresses, sizes, boxes, mirrored, scaled, canvas, colour, torch.device("cpu"))
        assert every.shape == (4, *canvas, 3) and every.dtype == torch.uint8
        for planes, (_, (top, left, tall, wide), size), turned, made in zip(pixels, images, flips, every, strict=True):
            cut = planes[:, top : top + tall, left : left + wide]
            exact = F.interpolate(cut[None].double(), size, mode="bilinear", antialias=True)[0].permute(1, 2, 0)
            whole = Image.fromarray(planes.permute(1, 2, 0).numpy())
            crop = whole.crop((left, top, left + wide, top + tall))
            part = np.array(crop.resize(size[::-1], Image.Resampling.BILINEAR))
            found = made[: size[0], : size[1]]
            found = found.flip(1) if turned else found
            assert (found - exact).abs().max() < 0.501
            assert np.abs(found.numpy().astype(int) - part.astype(int)).max() <= 1
            assert (tall, wide) != size or torch.equal(found, cut.permute(1, 2, 0))
            beside = torch.ones(canvas, dtype=torch.bool)
            beside[: size[0], : size[1]] = False
            assert (made[beside] == torch.tensor(colour, dtype=torch.uint8)).all()
"""


def test_crops_are_scaled_without_aliasing_onto_a_canvas(interpret):
    interpret(CROPS)


def test_the_kernel_imports_without_triton(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    spec = importlib.util.spec_from_file_location("without_triton", root / "workloads/common/image_kernels.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.triton is None

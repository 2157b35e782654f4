"""Crop and resize by Triton's interpreter against PyTorch in float64 and Pillow."""

CROPS = """
import numpy as np, torch
from PIL import Image
from torch.nn import functional as F
from timetrial.workloads.common.detection.image_kernels import crop_and_resize

generator = np.random.default_rng(1)
# By canvas: an image's height and width, the crop (top, left, height, width), and its resized height and width.
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
fill = (123, 116, 103)
for canvas, images in cases.items():
    for flips in ([0, 1, 0, 1], [1, 0, 1, 0]):
        pixels = [torch.from_numpy(generator.integers(256, size=(3, *edges), dtype=np.uint8)) for edges, *_ in images]
        addresses = torch.tensor([planes.data_ptr() for planes in pixels])
        sizes = torch.tensor([edges for edges, *_ in images], dtype=torch.int32)
        boxes = torch.tensor([box for _, box, _ in images], dtype=torch.int32)
        resized = torch.tensor([size for *_, size in images])
        flipped = torch.tensor(flips).bool()
        batch = crop_and_resize(addresses, sizes, boxes, flipped, resized, canvas, fill, torch.device("cpu"))
        assert batch.shape == (4, *canvas, 3) and batch.dtype == torch.uint8
        for planes, (_, box, size), flip, output in zip(pixels, images, flips, batch, strict=True):
            top, left, height, width = box
            cropped = planes[:, top : top + height, left : left + width]
            exact = F.interpolate(cropped[None].double(), size, mode="bilinear", antialias=True)[0].permute(1, 2, 0)
            image = Image.fromarray(planes.permute(1, 2, 0).numpy())
            crop = image.crop((left, top, left + width, top + height))
            pillow = np.array(crop.resize(size[::-1], Image.Resampling.BILINEAR))
            result = output[: size[0], : size[1]]
            result = result.flip(1) if flip else result
            assert (result - exact).abs().max() < 0.501
            assert np.abs(result.numpy().astype(int) - pillow.astype(int)).max() <= 1
            assert (height, width) != size or torch.equal(result, cropped.permute(1, 2, 0))
            outside = torch.ones(canvas, dtype=torch.bool)
            outside[: size[0], : size[1]] = False
            assert (output[outside] == torch.tensor(fill, dtype=torch.uint8)).all()
"""


def test_resizes_crops_with_antialiasing_onto_a_canvas(interpret):
    interpret(CROPS)


LARGE = """
import torch
from timetrial.workloads.common.detection.image_kernels import crop_and_resize

image, count, canvas = torch.randint(256, (3, 4, 5), dtype=torch.uint8), 2**14, (256, 256)
addresses, sizes = torch.full((count,), image.data_ptr()), torch.tensor([[4, 5]], dtype=torch.int32).repeat(count, 1)
boxes = torch.tensor([[0, 0, 4, 5]], dtype=torch.int32).repeat(count, 1)
flipped, resized = torch.zeros(count, dtype=torch.bool), torch.tensor([canvas]).repeat(count, 1)
out = crop_and_resize(addresses, sizes, boxes, flipped, resized, canvas, (0, 0, 0), torch.device("cpu"))
assert torch.equal(out[-1, -1, -1], image[:, -1, -1])
"""


def test_offsets_beyond_32_bits(interpret_last_program):
    interpret_last_program(LARGE)

"""The GPU's crop and resize in Triton's interpreter, against PyTorch in float64."""

INTERPRETED = """
import numpy as np, torch
from torch.nn import functional as F
from timetrial.workloads.common.imagenet import crops, kernels

generator, size = np.random.default_rng(1), 34  # no multiple of the block
sizes = [(37, 90), (64, 21), (100, 100), (34, 34), (1, 5)]
images = [torch.from_numpy(generator.integers(256, size=(3, *edges), dtype=np.uint8)) for edges in sizes]
boxes = torch.tensor([crops.random_crop_box(*edges, 0.3, generator) for edges in sizes], dtype=torch.int32)
boxes[3] = torch.tensor([0, 0, 34, 34])
flipped = torch.tensor([False, True, True, False, True])
planes = torch.tensor([(height * width, width) for height, width in sizes], dtype=torch.int32)
frames = torch.cat([planes, boxes, flipped[:, None].int()], 1)
addresses = torch.tensor([image.data_ptr() for image in images])
out = torch.empty(len(images), size, size, 3, dtype=torch.uint8)
kernels._crop_and_resize[(len(images), -(-size * size // 512))](
    addresses_ptr=addresses, frames_ptr=frames, out_ptr=out, SIZE=size, BLOCK=512
)
for image, (top, left, tall, wide), is_flipped, pixels in zip(images, boxes.tolist(), flipped, out, strict=True):
    cut = image[:, top : top + tall, left : left + wide].double()[None]
    expected = F.interpolate(cut, (size, size), mode="bilinear", align_corners=False)[0].permute(1, 2, 0)
    expected = expected.flip(1) if is_flipped else expected
    assert (pixels - expected).abs().max() < 0.501
assert torch.equal(out[3], images[3].permute(1, 2, 0))
"""


def test_kernel_crops_resizes_and_flips(interpret):
    interpret(INTERPRETED)


LARGE = """
import torch
from sparse_tensors import sparse_zeros
from timetrial.workloads.common.imagenet import kernels

image, count, size = torch.randint(256, (3, 4, 5), dtype=torch.uint8), 2**14, 256
frames = torch.tensor([[20, 5, 0, 0, 4, 5, 0]], dtype=torch.int32).repeat(count, 1)
addresses, out = torch.full((count,), image.data_ptr()), sparse_zeros(count, size, size, 3, dtype=torch.uint8)
kernels._crop_and_resize[count, size * size // 512](
    addresses_ptr=addresses, frames_ptr=frames, out_ptr=out, SIZE=size, BLOCK=512
)
assert torch.equal(out[-1, -1, -1], image[:, -1, -1])
"""


def test_offsets_beyond_32_bits(interpret_last_program):
    interpret_last_program(LARGE)

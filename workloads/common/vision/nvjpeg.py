"""The JPEG engines of an NVIDIA GPU (nvJPEG's hardware backend), on the current stream.

torchvision's `decode_jpeg` uses the same engines, but for one caller at a time and on a separate stream, which is
too slow beside training (workloads/resnet50/PERFORMANCE.md).
"""

import ctypes
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .torchvision_library import load_library

_HARDWARE, _PLANAR_RGB = 3, 3  # of nvjpegBackend_t and nvjpegOutputFormat_t
_CSS_444 = 0  # of nvjpegChromaSubsampling_t
_INTERPOLATE_CHROMA = 1 << 5  # NVJPEG_FLAGS_UPSAMPLING_WITH_INTERPOLATION, as libjpeg does by default
_ALIGNMENT = 256  # bytes, of each image in memory
# nvJPEG enlarges its memory for images that exceed it, which can take longer than a training step.
_RESERVED = 256, 1024, 1024  # images, width and height


class Engines:
    """The engines of one GPU, for one thread. Raises OSError or RuntimeError if it has none."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        path = _library()
        self._library = ctypes.CDLL(path)
        # For calls of microseconds: releasing the GIL costs more, since the training thread takes it.
        self._gil_library = ctypes.PyDLL(path)
        self._handle, self._state, self._header = (ctypes.c_void_p() for _ in range(3))
        torch.cuda.current_stream(device).synchronize()  # creates the CUDA context
        self._call("nvjpegCreateEx", _HARDWARE, None, None, _INTERPOLATE_CHROMA, ctypes.byref(self._handle))
        self._call("nvjpegJpegStateCreate", self._handle, ctypes.byref(self._state))
        self._call("nvjpegJpegStreamCreate", self._handle, ctypes.byref(self._header))
        with suppress(AttributeError, RuntimeError):  # without the memory, the engines only take longer
            self._call("nvjpegDecodeBatchedPreAllocate", self._handle, self._state, *_RESERVED, _CSS_444, _PLANAR_RGB)
        self._batch_size = 0  # for which the state is initialized

    def can_decode(self, address: int, length: int, height: int, width: int) -> bool:
        """Return whether the engines support the JPEG of `length` bytes at `address`, and it is `height` by `width`."""
        unsupported, jpeg_height, jpeg_width = ctypes.c_int(1), ctypes.c_uint(), ctypes.c_uint()
        data = ctypes.c_void_p(address)
        if self._gil_library.nvjpegJpegStreamParseHeader(self._handle, data, ctypes.c_size_t(length), self._header):
            return False
        size = ctypes.byref(jpeg_width), ctypes.byref(jpeg_height)
        self._gil_library.nvjpegJpegStreamGetFrameDimensions(self._header, *size)
        self._gil_library.nvjpegDecodeBatchedSupported(self._handle, self._header, ctypes.byref(unsupported))
        return unsupported.value == 0 and (jpeg_height.value, jpeg_width.value) == (height, width)

    def decode(self, data: Tensor, lengths: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Decode N JPEGs to planes [3, height, width] in one uint8 tensor on the GPU; also return their offsets in it.

        `data` uint8 holds the JPEGs, concatenated, of `lengths` int64 [N] bytes and `sizes` int32 [N, 2] (height,
        width). These lie on the CPU, as do the offsets int64 [N], which are -1 for images that the engines do not
        support. Raises RuntimeError if an image cannot be decoded. `data` must stay until the stream is synchronized.
        """
        ends = np.cumsum(lengths.numpy())
        addresses = (data.data_ptr() + ends - lengths.numpy()).astype(np.uint64)
        jpegs = zip(addresses.tolist(), lengths.tolist(), sizes.tolist(), strict=True)
        supported = [index for index, (at, length, size) in enumerate(jpegs) if self.can_decode(at, length, *size)]
        offsets = np.full(len(lengths), -1)
        if not supported:
            return torch.empty(0, dtype=torch.uint8, device=self._device), torch.from_numpy(offsets)
        heights, widths = sizes.numpy().astype(np.int64)[supported].T
        image_bytes = -(-3 * heights * widths // _ALIGNMENT) * _ALIGNMENT
        offsets[supported] = starts = np.cumsum(image_bytes) - image_bytes
        pixels = torch.empty(int(image_bytes.sum()), dtype=torch.uint8, device=self._device)
        # nvjpegImage_t: four addresses of planes, then four pitches
        outputs = np.zeros((len(supported), 8), dtype=np.uint64)
        for channel in range(3):
            outputs[:, channel] = pixels.data_ptr() + starts + channel * heights * widths
            outputs[:, 4 + channel] = widths
        if len(supported) != self._batch_size:
            self._batch_size = 0
            self._call("nvjpegDecodeBatchedInitialize", self._handle, self._state, len(supported), 1, _PLANAR_RGB)
            self._batch_size = len(supported)
        inputs, input_bytes = addresses[supported], lengths.numpy()[supported].astype(np.uint64)
        stream = ctypes.c_void_p(torch.cuda.current_stream(self._device).cuda_stream)
        arrays = [ctypes.c_void_p(array.ctypes.data) for array in (inputs, input_bytes, outputs)]
        self._call("nvjpegDecodeBatched", self._handle, self._state, *arrays, stream)
        return pixels, torch.from_numpy(offsets)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} failed with status {status}.")


def _library() -> str:
    """Return the path of torchvision's copy; its wheels rename it, so it is looked up among the loaded libraries."""
    load_library("image")
    try:
        match = re.search(
            r"/\S*libnvjpeg[.-]\S+", Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
        )
    except OSError:
        match = None
    return match[0] if match else "libnvjpeg.so"

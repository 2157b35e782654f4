"""The JPEG engines of an NVIDIA card (nvJPEG's hardware backend), on whichever stream is current.

torchvision's `decode_jpeg` reaches the same engines, but for one caller at a time and on a stream of its own, which
does not keep up beside training (PERFORMANCE.md).
"""

import ctypes
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_HARDWARE, _PLANAR_RGB = 3, 3  # of nvjpegBackend_t and nvjpegOutputFormat_t
_ALIGNED = 256  # bytes: where in memory an image may begin


class Engines:
    """The engines of one card for one thread. Raises OSError or RuntimeError where it has none."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        path = _library()
        self._library = ctypes.CDLL(path)
        # For calls of microseconds: giving up Python's lock costs more, since the training thread takes it.
        self._quick = ctypes.PyDLL(path)
        self._handle, self._state, self._header = (ctypes.c_void_p() for _ in range(3))
        torch.cuda.current_stream(device).synchronize()  # the card's context exists from here on
        self._call("nvjpegCreateEx", _HARDWARE, None, None, 0, ctypes.byref(self._handle))
        self._call("nvjpegJpegStateCreate", self._handle, ctypes.byref(self._state))
        self._call("nvjpegJpegStreamCreate", self._handle, ctypes.byref(self._header))
        self._size = 0  # of the batches that the state is ready for

    def can_decode(self, address: int, length: int, height: int, width: int) -> bool:
        """Whether the engines take the JPEG of `length` bytes at `address`, of the size that the reader saw."""
        lacking, tall, wide = ctypes.c_int(1), ctypes.c_uint(), ctypes.c_uint()
        data = ctypes.c_void_p(address)
        if self._quick.nvjpegJpegStreamParseHeader(self._handle, data, ctypes.c_size_t(length), self._header):
            return False
        self._quick.nvjpegJpegStreamGetFrameDimensions(self._header, ctypes.byref(wide), ctypes.byref(tall))
        self._quick.nvjpegDecodeBatchedSupported(self._handle, self._header, ctypes.byref(lacking))
        return lacking.value == 0 and (tall.value, wide.value) == (height, width)

    def decode(self, data: Tensor, lengths: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """The images' planes [3, height, width] in one uint8 tensor on the card, and where each begins: int64 [N].

        `data` uint8 holds the JPEGs one after the other, of `lengths` int64 [N] bytes and `sizes` int32 [N, 2]
        (height, width); all on the CPU, and so are the places, which are -1 for an image that the engines do not take.
        Raises RuntimeError where one is wrong. `data` must stay until the stream has come to its end.
        """
        ends = np.cumsum(lengths.numpy())
        addresses = (data.data_ptr() + ends - lengths.numpy()).astype(np.uint64)
        known = zip(addresses.tolist(), lengths.tolist(), sizes.tolist(), strict=True)
        able = [index for index, (at, length, size) in enumerate(known) if self.can_decode(at, length, *size)]
        begins = np.full(len(lengths), -1)
        if not able:
            return torch.empty(0, dtype=torch.uint8, device=self._device), torch.from_numpy(begins)
        heights, widths = sizes.numpy().astype(np.int64)[able].T
        room = -(-3 * heights * widths // _ALIGNED) * _ALIGNED
        begins[able] = places = np.cumsum(room) - room
        pixels = torch.empty(int(room.sum()), dtype=torch.uint8, device=self._device)
        # nvjpegImage_t: four addresses of planes, then four pitches
        targets = np.zeros((len(able), 8), dtype=np.uint64)
        for colour in range(3):
            targets[:, colour] = pixels.data_ptr() + places + colour * heights * widths
            targets[:, 4 + colour] = widths
        if len(able) != self._size:
            self._size = 0
            self._call("nvjpegDecodeBatchedInitialize", self._handle, self._state, len(able), 1, _PLANAR_RGB)
            self._size = len(able)
        sources, sizes_in_bytes = addresses[able], lengths.numpy()[able].astype(np.uint64)
        stream = ctypes.c_void_p(torch.cuda.current_stream(self._device).cuda_stream)
        arrays = [ctypes.c_void_p(array.ctypes.data) for array in (sources, sizes_in_bytes, targets)]
        self._call("nvjpegDecodeBatched", self._handle, self._state, *arrays, stream)
        return pixels, torch.from_numpy(begins)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} failed with status {status}.")


def _library() -> str:
    """The library that torchvision brings along; its wheels rename it, so it is found among what is loaded."""
    import torchvision.io  # noqa: F401

    try:
        loaded = re.search(r"/\S*libnvjpeg[.-]\S+", Path("/proc/self/maps").read_text())
    except OSError:
        loaded = None
    return loaded[0] if loaded else "libnvjpeg.so"

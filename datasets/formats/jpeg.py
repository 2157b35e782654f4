"""Encoded images made plain: whatever lies on disk becomes a whole three-colour JPEG that every decoder reads alike."""

import io
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ...runner.core.errors import DataError

_END = b"\xff\xd9"
_TAIL = 64  # bytes after the end marker that cameras and editors leave behind


class Jpeg(NamedTuple):
    """A whole YCbCr JPEG and its size in pixels."""

    data: bytes
    height: int
    width: int


def plain(data: bytes, name: str) -> Jpeg:
    """The image `data` as a three-colour JPEG; grey, CMYK and PNG images are converted as MLPerf's data set is.

    (To RGB at quality 100, mlperf.md 12.1.) An image without its end marker is decoded to see whether it is whole.
    Raises `DataError` with `name` where it is cut short or no image.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
            usual = image.format == "JPEG" and image.mode == "RGB"
            if usual and _END in data[-_TAIL:]:
                return Jpeg(data, height, width)
            pixels = image.convert("RGB")  # decodes: raises where data are missing
            if usual:
                return Jpeg(data, height, width)
            return Jpeg(encode(np.asarray(pixels)), height, width)
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise DataError(f"{name} cannot be decoded: it is cut short or no image; replace it or remove it.") from error


def encode(pixels: NDArray[np.uint8]) -> bytes:
    """uint8 [height, width, 3] as a JPEG of quality 100."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=100, subsampling=0)
    return out.getvalue()


def decode(data: bytes, name: str) -> NDArray[np.uint8]:
    """uint8 [height, width, 3], RGB; raises `DataError` with `name` where the image is damaged."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{name} cannot be decoded: replace it or remove it.") from error

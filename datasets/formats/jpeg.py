"""Conversion of image files to complete RGB JPEGs, which every decoder reads alike."""

import io
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...runner.core.errors import DataError

_END_MARKER = b"\xff\xd9"
# Raised for damaged images, and for headers of more pixels than an image of a dataset has.
_DECODING_ERRORS = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
_TRAILING_BYTES = 64  # that cameras and editors write after the end marker


class Jpeg(NamedTuple):
    """A complete three-component JPEG and its size in pixels."""

    data: bytes
    height: int
    width: int


def to_rgb_jpeg(data: bytes, name: str) -> Jpeg:
    """Return the image `data` as an RGB JPEG; gray, CMYK and PNG images are re-encoded with quality 100.

    MLPerf's dataset is converted in the same way (docs/mlperf_rules.md, ResNet). An image without an end marker is
    decoded to check that it is complete. Raises `DataError` with `name` if it is truncated or not an image.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
            is_rgb_jpeg = image.format == "JPEG" and image.mode == "RGB"
            if is_rgb_jpeg and _END_MARKER in data[-_TRAILING_BYTES:]:
                return Jpeg(data, height, width)
            pixels = image.convert("RGB")  # decodes, and raises if data is missing
            if is_rgb_jpeg:
                return Jpeg(data, height, width)
            return Jpeg(encode(np.asarray(pixels)), height, width)
    except _DECODING_ERRORS as error:
        raise DataError(f"{name} cannot be decoded: it is truncated or not an image; replace or remove it.") from error


def encode(pixels: NDArray[np.uint8]) -> bytes:
    """Return pixels, uint8 [height, width, 3], as a JPEG of quality 100."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=100, subsampling=0)
    return out.getvalue()


def decode(data: bytes, name: str) -> NDArray[np.uint8]:
    """Return RGB pixels, uint8 [height, width, 3]; raises `DataError` with `name` if the image is damaged."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image.convert("RGB"))
    except _DECODING_ERRORS as error:
        raise DataError(f"{name} cannot be decoded: replace or remove it.") from error

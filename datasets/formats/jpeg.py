"""Conversion of image files to complete RGB JPEGs, which every decoder reads alike."""

import io
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...runner.core.errors import DataError

_END_MARKER = b"\xff\xd9"
# Raised for damaged images, and for headers of more pixels than an image of a dataset has.
DECODING_ERRORS = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
DEEP_MODES = ("I", "F")  # Pillow's names: integers and floats of gray pixels
_BIT_DEPTHS = (8, 10, 12, 14, 16)
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
            pixels = _to_rgb(image)  # decodes, and raises if data is missing
            if is_rgb_jpeg:
                return Jpeg(data, height, width)
            return Jpeg(encode(pixels), height, width)
    except DECODING_ERRORS as error:
        raise DataError(f"{name} cannot be decoded: it is truncated or not an image; replace or remove it.") from error


def _to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    """Return RGB pixels, uint8 [height, width, 3].

    Gray pixels of 16 or 32 bits are scaled from the fewest of 8, 10, 12, 14 or 16 bits that hold the brightest one, as
    cameras store 10 to 14 bits in 16. Gray floats are scaled from 0 to 1 if none is above 1.
    """
    if not image.mode.startswith(DEEP_MODES):
        return np.asarray(image.convert("RGB"))
    gray = np.nan_to_num(np.asarray(image, dtype=np.float64))
    brightest = gray.max(initial=0)
    if image.mode == "F" and brightest <= 1:
        scale = 1.0
    else:
        scale = float(next((2**bits - 1 for bits in _BIT_DEPTHS if brightest < 2**bits), brightest))
    eight_bits = np.rint(gray.clip(0) * (255 / scale)).astype(np.uint8)
    return np.repeat(eight_bits[:, :, None], 3, axis=2)


def encode(pixels: NDArray[np.uint8]) -> bytes:
    """Return pixels, uint8 [height, width, 3], as a JPEG of quality 100."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=100, subsampling=0)
    return out.getvalue()


def decode(data: bytes, name: str) -> NDArray[np.uint8]:
    """Return RGB pixels, uint8 [height, width, 3]; raises `DataError` with `name` if the image is damaged.

    Gray images of more than 8 bits are scaled, see `_to_rgb`.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            return _to_rgb(image)
    except DECODING_ERRORS as error:
        raise DataError(f"{name} cannot be decoded: replace or remove it.") from error

"""All image files become RGB JPEGs close to PIL's own colors; damaged ones are named."""

import io

import numpy as np
import pytest
from PIL import Image

from timetrial.datasets.formats import jpeg
from timetrial.runner.core.errors import DataError, Exit


def photograph(height=41, width=57):
    """Return a PIL image of a color gradient with noise."""
    y, x = np.mgrid[:height, :width]
    slope = np.stack([x * 4, 255 - y * 5, x + y * 3], -1)
    noise = np.random.default_rng(1).normal(0, 8, slope.shape)
    return Image.fromarray((slope + noise).clip(0, 255).astype(np.uint8))


def encoded(image, kind="JPEG", **named):
    out = io.BytesIO()
    image.save(out, kind, **named)
    return out.getvalue()


def test_rgb_jpeg_is_unchanged():
    data = encoded(photograph(), quality=80)
    assert jpeg.to_rgb_jpeg(data, "x") == (data, 41, 57)


@pytest.mark.parametrize("tail", [b"", b"\0", b"left by an editor " * 3, bytes(5000)])
def test_bytes_after_the_end_marker_are_kept(tail):
    data = encoded(photograph()) + tail
    assert jpeg.to_rgb_jpeg(data, "x") == (data, 41, 57)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("L", "JPEG"), ("CMYK", "JPEG"), ("RGB", "PNG"), ("L", "PNG"), ("LA", "PNG"), ("P", "PNG"), ("RGBA", "PNG")],
)
def test_other_modes_and_formats_become_rgb_jpegs(mode, kind):
    data = encoded(photograph().convert(mode), kind)
    converted = jpeg.to_rgb_jpeg(data, "image.jpg")
    with Image.open(io.BytesIO(converted.data)) as image:
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (57, 41))
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image.convert("RGB")).astype(int)
    off = np.abs(jpeg.decode(converted.data, "x").astype(int) - expected)
    assert off.mean() < 0.6  # measured: up to 0.44 for color, 0.1 for gray images
    assert off.max() <= 5


def test_encoding_keeps_pixels():
    pixels = np.asarray(photograph())
    off = np.abs(jpeg.decode(jpeg.to_rgb_jpeg(jpeg.encode(pixels), "x").data, "x").astype(int) - pixels)
    assert off.mean() < 0.6
    assert off.max() <= 5


@pytest.mark.parametrize("named", [{}, {"progressive": True}, {"restart_marker_rows": 1}], ids=str)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_rejects_truncated_image(mode, named):
    data = encoded(photograph().convert(mode), **named)
    lengths = {*range(0, len(data), 23), *range(len(data) - 8, len(data))}
    for length in sorted(lengths):
        with pytest.raises(DataError, match=r"^image\.jpg cannot be decoded") as caught:
            jpeg.to_rgb_jpeg(data[:length], "image.jpg")
        assert "\n" not in str(caught.value)
    assert caught.value.exit_code == Exit.DATA


@pytest.mark.parametrize(
    "data", [b"", b"no image", b"\xff\xd8\xff\xd9", encoded(photograph(), "PNG")[:-300], b"<html>" * 99], ids=range(5)
)
def test_rejects_other_data(data):
    with pytest.raises(DataError, match=r"^image\.jpg cannot be decoded.*replace or remove it\.$"):
        jpeg.to_rgb_jpeg(data, "image.jpg")


def test_rejects_decompression_bomb(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(DataError, match=r"image\.jpg"):
        jpeg.to_rgb_jpeg(encoded(photograph()), "image.jpg")


def test_rejects_header_of_too_many_pixels():
    """65,500 x 65,500 pixels would take 12.9 GB."""
    data = bytearray(encoded(photograph()))
    start = data.index(b"\xff\xc0") + 5
    data[start : start + 4] = (65500).to_bytes(2, "big") * 2
    for function in (jpeg.decode, jpeg.to_rgb_jpeg):
        with pytest.raises(DataError, match=r"^image\.jpg cannot be decoded.*replace or remove it\.$"):
            function(bytes(data[:-2]), "image.jpg")


@pytest.mark.parametrize("bits", [10, 12, 14, 16])
def test_deep_gray_image_is_scaled_to_eight_bits(bits):
    gray = np.arange(256, dtype=np.uint16).reshape(16, 16) * ((2**bits - 1) // 255)
    decoded = jpeg.decode(encoded(Image.fromarray(gray), "PNG"), "deep.png")
    assert decoded.dtype == np.uint8
    assert (decoded == decoded[:, :, :1]).all()
    expected = np.arange(256).reshape(16, 16)
    assert abs(decoded[:, :, 0].astype(int) - expected).max() <= 1
    via_jpeg = jpeg.decode(jpeg.to_rgb_jpeg(encoded(Image.fromarray(gray), "PNG"), "deep.png").data, "deep.jpg")
    assert abs(via_jpeg[:, :, 0].astype(int) - expected).max() <= 4


def test_gray_floats_from_zero_to_one_are_scaled():
    gray = np.linspace(0, 1, 256, dtype=np.float32).reshape(16, 16)
    decoded = jpeg.decode(encoded(Image.fromarray(gray), "TIFF"), "floats.tiff")
    assert abs(decoded[:, :, 0].astype(int) - np.arange(256).reshape(16, 16)).max() <= 1

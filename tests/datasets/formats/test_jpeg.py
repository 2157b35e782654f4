"""Whatever lies on disk becomes one kind of JPEG, near enough to PIL's own colours; what is broken is named."""

import io

import numpy as np
import pytest
from PIL import Image

from timetrial.datasets.formats import jpeg
from timetrial.runner.core.errors import DataError, Exit


def photograph(height=41, width=57):
    """A slope of colours with noise on it, as PIL has images."""
    y, x = np.mgrid[:height, :width]
    slope = np.stack([x * 4, 255 - y * 5, x + y * 3], -1)
    noise = np.random.default_rng(1).normal(0, 8, slope.shape)
    return Image.fromarray((slope + noise).clip(0, 255).astype(np.uint8))


def encoded(image, kind="JPEG", **named):
    out = io.BytesIO()
    image.save(out, kind, **named)
    return out.getvalue()


def test_a_usual_image_stays_as_it_is():
    data = encoded(photograph(), quality=80)
    assert jpeg.plain(data, "x") == (data, 41, 57)


@pytest.mark.parametrize("tail", [b"", b"\0", b"left by an editor " * 3, bytes(5000)])
def test_bytes_after_the_end_marker_do_no_harm(tail):
    data = encoded(photograph()) + tail
    assert jpeg.plain(data, "x") == (data, 41, 57)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("L", "JPEG"), ("CMYK", "JPEG"), ("RGB", "PNG"), ("L", "PNG"), ("LA", "PNG"), ("P", "PNG"), ("RGBA", "PNG")],
)
def test_other_colours_and_kinds_become_a_three_colour_jpeg_of_pils_colours(mode, kind):
    data = encoded(photograph().convert(mode), kind)
    plain = jpeg.plain(data, "image.jpg")
    with Image.open(io.BytesIO(plain.data)) as image:
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (57, 41))
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image.convert("RGB")).astype(int)
    off = np.abs(jpeg.decode(plain.data, "x").astype(int) - expected)
    assert off.mean() < 0.6  # measured: up to 0.44 for colours, 0.1 for greys
    assert off.max() <= 5


def test_encoding_keeps_pixels_and_their_places():
    pixels = np.asarray(photograph())
    off = np.abs(jpeg.decode(jpeg.plain(jpeg.encode(pixels), "x").data, "x").astype(int) - pixels)
    assert off.mean() < 0.6
    assert off.max() <= 5


@pytest.mark.parametrize("named", [{}, {"progressive": True}, {"restart_marker_rows": 1}], ids=str)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_no_part_of_an_image_passes_for_the_whole(mode, named):
    data = encoded(photograph().convert(mode), **named)
    lengths = {*range(0, len(data), 23), *range(len(data) - 8, len(data))}
    for length in sorted(lengths):
        with pytest.raises(DataError, match=r"^image\.jpg cannot be decoded") as caught:
            jpeg.plain(data[:length], "image.jpg")
        assert "\n" not in str(caught.value)
    assert caught.value.exit_code == Exit.DATA


@pytest.mark.parametrize(
    "data", [b"", b"no image", b"\xff\xd8\xff\xd9", encoded(photograph(), "PNG")[:-300], b"<html>" * 99], ids=range(5)
)
def test_what_is_no_image_is_refused(data):
    with pytest.raises(DataError, match=r"^image\.jpg cannot be decoded.*replace it or remove it\.$"):
        jpeg.plain(data, "image.jpg")


def test_an_image_too_large_to_be_honest_is_refused(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(DataError, match=r"image\.jpg"):
        jpeg.plain(encoded(photograph()), "image.jpg")

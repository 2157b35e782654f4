"""The images of a COCO dataset against its JSON."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from PIL import Image

from ...runner.core.errors import DataError
from ...runner.core.found_files import open_regular
from . import coco_json

_NUM_THREADS = 16
_ORIENTATION = 0x0112  # EXIF's tag; values above 4 exchange width and height


def check(annotations: Path, folder: Path, images: coco_json.Table) -> list[str]:
    """Return a sentence for each image that is unreadable, truncated, or of another size than the JSON says.

    Reads headers, and ends of JPEGs, with many threads; decodes JPEGs without an end marker and other formats.
    """

    def find_fault(name: str, image_id: int, height: int, width: int) -> str | None:
        path = folder / name
        try:
            with open_regular(path) as file, Image.open(file) as opened:
                size = opened.size
                if opened.format != "JPEG" or not _has_end_marker(file):
                    opened.load()
                turned = opened.getexif().get(_ORIENTATION, 1) > 4
        except (DataError, OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            return f"{path} cannot be decoded: it is truncated or not an image; replace or remove it."
        if size == (width, height):
            return None
        remedy = "replace the image or correct the JSON"
        if turned and size == (height, width):
            remedy = "its EXIF orientation turns it, which no loader applies: store it turned, or correct the JSON"
        return (
            f"{path} is {size[0]}x{size[1]} pixels, not {width}x{height} as {annotations} says of image {image_id}: "
            f"{remedy}."
        )

    columns = (images[key].tolist() for key in ("file_name", "id", "height", "width"))
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        return [sentence for sentence in pool.map(find_fault, *columns) if sentence]


def _has_end_marker(file: IO[bytes]) -> bool:
    """Return whether a JPEG has an end marker in its last bytes; editors append data to it."""
    file.seek(-min(64, os.fstat(file.fileno()).st_size), os.SEEK_END)
    return b"\xff\xd9" in file.read()

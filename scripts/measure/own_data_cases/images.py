"""Images in folders of their classes."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .case import MENDED, REFUSED, WORKS, Case, Write, file


def picture(mode: str = "RGB", size: tuple[int, int] = (48, 40)) -> Image.Image:
    """Return a picture of two ramps."""
    pixels = np.add.outer(np.arange(size[1]) * 3, np.arange(size[0]) * 2).astype(np.uint8)
    return Image.fromarray(np.stack([pixels] * 3, 2)).convert(mode)


def image_bytes(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    """Return an image encoded as Pillow's format `kind`."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


_JPEG = image_bytes(picture())


def _classes(folder: Path, suffix: str = "jpg", data: bytes = _JPEG, val: str = "val", inner: str = "") -> Path:
    for split in ("train", val):
        for name in ("bee", "wasp"):
            for index in range(3):
                file(f"photos/{split}/{name}/{inner}{index}.{suffix}", data)(folder)
    return folder / "photos"


def _deep(values: Any, mode: str | None = None) -> bytes:
    image = Image.fromarray(np.asarray(values))
    return image_bytes(image, "TIFF" if mode == "F" else "PNG")


def _tiny_imagenet(folder: Path) -> Path:
    root = _classes(folder, "JPEG", inner="images/")
    rows = []
    for name in ("bee", "wasp"):
        file(f"photos/train/{name}/{name}_boxes.txt", "0.JPEG\t0\t0\t9\t9\n")(folder)
        for path in sorted((root / "val" / name / "images").iterdir()):
            file(f"photos/val/images/{name}_{path.name}", path.read_bytes())(folder)
            path.unlink()
            rows.append(f"{name}_{path.name}\t{name}\t0\t0\t9\t9\n")
        (root / "val" / name / "images").rmdir()
        (root / "val" / name).rmdir()
    file("photos/val/val_annotations.txt", "".join(rows))(folder)
    return root


def _flat_val(folder: Path) -> Path:
    root = _classes(folder)
    for path in sorted((root / "val").glob("*/*")):
        path.rename(root / "val" / f"{path.parent.name}{path.name}")
    for path in sorted((root / "val").iterdir()):
        if path.is_dir():
            path.rmdir()
    return root


def _webdataset(folder: Path) -> Path:
    for split in ("train", "val"):
        (folder / "photos" / split).mkdir(parents=True)
        with tarfile.open(folder / "photos" / split / "0.tar", "w") as tar:
            for index in range(4):
                for suffix, data in (("jpg", _JPEG), ("cls", str(index % 2).encode())):
                    member = tarfile.TarInfo(f"{index:04d}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return folder / "photos"


def cases() -> Iterator[Case]:
    """Yield folders of images."""

    def withfile(name: str, data: str | bytes) -> Write:
        def write(folder: Path) -> Path:
            root = _classes(folder)
            file(f"photos/{name}", data)(folder)
            return root

        return write

    def case(title: str, outcome: str, says: str, write: Write) -> Case:
        return Case("images", title, outcome, says, write)

    def of(data: bytes, suffix: str = "jpg") -> Write:
        return lambda folder: _classes(folder, suffix, data)

    rotated = Image.Exif()
    rotated[274] = 6
    deep = "have more than 8 bits a pixel: they are scaled to 8"
    ramp = np.add.outer(np.arange(40) * 900, np.arange(48) * 400).astype(np.uint16)
    yield case("class folders of JPEGs", WORKS, "", _classes)
    for suffix, kind in (("png", "PNG"), ("webp", "WEBP"), ("bmp", "BMP"), ("tiff", "TIFF"), ("ppm", "PPM")):
        yield case(f".{suffix}", WORKS, "", of(image_bytes(picture(), kind), suffix))
    yield case("suffixes in capitals", WORKS, "", of(_JPEG, "JPG"))
    yield case(
        "half of the images in .webp", WORKS, "12 training", lambda folder: _classes(folder) and _more_webp(folder)
    )
    yield case(".heic beside them", MENDED, "1 files with the suffix .heic are not read",
               withfile("train/bee/0.heic", b"x"))  # fmt: skip
    yield case("gray of 16 bits", MENDED, deep, of(_deep(ramp), "png"))
    yield case("gray of 12 bits in 16", MENDED, deep, of(_deep(ramp // 16), "png"))
    yield case("floats in a TIFF", MENDED, deep, of(_deep((ramp / 65535).astype(np.float32), "F"), "tif"))
    for mode in ("L", "CMYK"):
        yield case(f"JPEGs of mode {mode}", WORKS, "", of(image_bytes(picture(mode))))
    for mode in ("P", "RGBA", "1"):
        yield case(f"PNGs of mode {mode}", WORKS, "", of(image_bytes(picture(mode), "PNG"), "png"))
    yield case("progressive JPEGs", WORKS, "", of(image_bytes(picture(), progressive=True)))
    yield case("turned by EXIF", WORKS, "", of(image_bytes(picture(), exif=rotated)))
    yield case("a GIF named .jpg", WORKS, "", of(image_bytes(picture("P"), "GIF")))
    yield case("Tiny ImageNet", MENDED, "with the suffix .txt are not read", _tiny_imagenet)
    yield case("val/ without class folders", REFUSED, "holds images without class folders", _flat_val)
    for val in ("validation", "valid", "test"):
        yield case(f"{val}/ in place of val/", WORKS, "", lambda folder, val=val: _classes(folder, val=val))
    yield case("no val/", REFUSED, "val is missing", lambda folder: _classes(folder, val="train"))
    yield case("a class in train/ alone", REFUSED, "lacks the class ant", withfile("train/ant/0.jpg", _JPEG))
    yield case("an empty class folder", REFUSED, "contains no image", withfile("train/ant/notes.txt", "x"))
    yield case("macOS' ._ files", WORKS, "6 training", withfile("train/bee/._0.jpg", b"x"))
    yield case("Thumbs.db", MENDED, "suffix .db are not read", withfile("train/bee/Thumbs.db", b"x"))
    yield case("class names with spaces and accents", WORKS, "", _unicode_classes)
    yield case("a truncated JPEG", REFUSED, "cannot be decoded", withfile("train/bee/9.jpg", _JPEG[: len(_JPEG) // 2]))
    yield case("an empty file .jpg", REFUSED, "cannot be decoded", withfile("train/bee/9.jpg", b""))
    yield case("a page of HTML named .jpg", REFUSED, "cannot be decoded", withfile("train/bee/9.jpg", "<html>"))
    yield case("WebDataset shards", WORKS, "", _webdataset)
    yield case("classes without train/", REFUSED, "is no dataset that a workload reads",
               lambda folder: _classes(folder) / "train")  # fmt: skip


def _more_webp(folder: Path) -> Path:
    for name in ("bee", "wasp"):
        for index in range(3):
            file(f"photos/train/{name}/{index}.webp", image_bytes(picture(), "WEBP"))(folder)
    return folder / "photos"


def _unicode_classes(folder: Path) -> Path:
    root = _classes(folder)
    for split in ("train", "val"):
        (root / split / "bee").rename(root / split / "Schön & groß, 蜂")
    return root

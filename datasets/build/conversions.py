"""Detection sets from the forms in which their makers publish them, written as COCO's."""

import io
import json
import random
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ...runner.core.errors import DataError
from ..download.archives import Step, Zip
from ..formats import coco
from ..registry.catalog import Source
from . import imagenet_archives
from .dataset_builder import Part, Workshop

Things = dict[str, Any]  # of COCO's json: an image or an annotation


def convert(source: Source, raw: Mapping[str, Path], shop: Workshop) -> None:
    """Makes `source` of its raw files as its `convert` says; raises `DataError` where they are not what they should."""
    options = dict(source.convert)
    kind = options.pop("kind")
    if kind == "imagenet":
        imagenet_archives.convert(shop, [raw.get(file.name) for file in source.files], **options)
        return
    main, *others = (raw[file.name] for file in source.files)
    makers: dict[str, Callable[..., None]] = {"bccd": _bccd, "nwpu": _nwpu, "dsb2018": _dsb2018}
    make = makers[kind]

    def whole(folder: Path, step: Step) -> None:
        (folder / "images").mkdir()
        (folder / "annotations").mkdir()
        with Zip(main, source.files[0].place) as archive:
            try:
                make(folder, archive, others, shop, **options)
            except (KeyError, ValueError, TypeError, AttributeError, ET.ParseError) as error:
                if isinstance(error, DataError):
                    raise
                raise DataError(f"{main} is not of the form that it had ({error!r}): it is another edition.") from error
        step(main.stat().st_size)

    shop.make([Part("all", whole)])


def _bccd(folder: Path, archive: Zip, _: Sequence[Path], shop: Workshop) -> None:
    """BCCD's Pascal VOC form: an xml beside each photograph, and lists of the names of each side."""
    names = sorted(Path(place).stem for place in archive.places if place.startswith("JPEGImages/"))
    number = {name: index for index, name in enumerate(names, start=1)}
    trees = {name: ET.fromstring(archive.read(f"Annotations/{name}.xml")) for name in names}
    labels = sorted({_text(thing, "name") for tree in trees.values() for thing in tree.iter("object")})
    category = {label: index for index, label in enumerate(labels, start=1)}
    images, annotations = {}, []
    for name, tree in trees.items():
        image = _copied(folder, f"{name}.jpg", archive.read(f"JPEGImages/{name}.jpg"), number[name])
        images[name] = image
        for thing in tree.iter("object"):
            left, top, right, bottom = (
                float(_text(thing, f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax")
            )
            left, right = max(left, 0.0), min(right, image["width"])
            top, bottom = max(top, 0.0), min(bottom, image["height"])
            if right > left and bottom > top:  # of two points nothing can be learnt
                box = [left, top, right - left, bottom - top]
                label = category[_text(thing, "name")]
                annotations.append(
                    {"image_id": image["id"], "category_id": label, "bbox": box, "area": box[2] * box[3]}
                )
    for side in ("train", "val", "test"):
        wanted = archive.read(f"ImageSets/Main/{side}.txt").decode().split()
        _write(folder, side, [images[name] for name in sorted(wanted)], annotations, labels, masks=False)


def _nwpu(
    folder: Path, archive: Zip, others: Sequence[Path], shop: Workshop, *, longest: int, images: int, val: Sequence[int]
) -> None:
    """NWPU VHR-10's photographs with outlines in one json of COCO's form, shrunk to `longest` pixels, boxes and all."""
    found = json.loads(others[0].read_bytes())
    place = {Path(place).name: place for place in archive.places}
    listed = {image["file_name"]: image for image in found["images"]}
    if place.keys() != listed.keys() or len(place) != images:
        raise DataError(f"{others[0]} and its archive should hold the same {images} photographs: fetch both again.")

    def shrunk(name: str) -> tuple[Things, float]:
        data = archive.read(place[name])
        with Image.open(io.BytesIO(data)) as image:
            ratio = longest / max(image.size)
            if ratio < 1:
                size = round(image.width * ratio), round(image.height * ratio)
                small = io.BytesIO()
                image.convert("RGB").resize(size, Image.Resampling.LANCZOS).save(small, "JPEG", quality=90)
                data = small.getvalue()
        return _copied(folder, name, data, listed[name]["id"]), min(ratio, 1.0)

    seen = {image["id"]: (image, ratio) for image, ratio in shop.crew.map(shrunk, sorted(place))}
    annotations = [_scaled(thing, *seen[thing["image_id"]]) for thing in found["annotations"]]
    labels = [category["name"] for category in sorted(found["categories"], key=lambda category: category["id"])]
    held_out = {f"{number:03d}.jpg" for number in val}
    for side in ("train", "val"):
        chosen = [image for image, _ in seen.values() if (image["file_name"] in held_out) == (side == "val")]
        _write(folder, side, chosen, annotations, labels, masks=True)


def _scaled(thing: Things, image: Things, ratio: float) -> Things:
    """An annotation of the image as it is after its sides became `ratio` as long; nothing leaves the image."""
    edges = np.array([image["width"], image["height"]], dtype=float)
    outlines = [
        (np.array(outline).reshape(-1, 2) * ratio).clip(0, edges).round(2).ravel().tolist()
        for outline in thing["segmentation"]
    ]
    corner, size = np.split(np.array(thing["bbox"], dtype=float) * ratio, 2)
    low, high = corner.clip(0, edges), (corner + size).clip(0, edges)
    return {
        "image_id": image["id"], "category_id": thing["category_id"], "segmentation": outlines,
        "bbox": [*low.round(2).tolist(), *(high - low).round(2).tolist()], "area": round(thing["area"] * ratio**2, 2),
    }  # fmt: skip


def _dsb2018(folder: Path, archive: Zip, _: Sequence[Path], shop: Workshop, *, images: int, val: int) -> None:
    """The Data Science Bowl's folder an image, <id>/images/<id>.png and <id>/masks/*.png, a nucleus each."""
    from pycocotools import mask

    masks: dict[str, list[str]] = {}
    for place in archive.places:
        name, kind, _name = place.split("/")
        masks.setdefault(name, [])
        if kind == "masks":
            masks[name].append(place)
    names = sorted(masks)
    if len(names) != images:
        raise DataError(f"The archive of nuclei holds {len(names)} images, not {images}: it is another edition.")

    def read(index: int) -> tuple[Things, list[Things]]:
        name = names[index]
        image = _copied(folder, f"{name[:16]}.png", archive.read(f"{name}/images/{name}.png"), index + 1)
        nuclei = []
        for place in masks[name]:
            with Image.open(io.BytesIO(archive.read(place))) as picture:
                inside = np.asarray(picture.convert("L")) > 0
            packed = mask.encode(np.asfortranarray(inside, dtype=np.uint8))
            if inside.shape != (image["height"], image["width"]) or not inside.any():
                continue
            runs = {"size": [int(side) for side in packed["size"]], "counts": packed["counts"].decode()}
            box = [int(side) for side in mask.toBbox(packed)]
            nuclei.append(
                {"image_id": index + 1, "category_id": 1, "bbox": box, "area": int(inside.sum()), "segmentation": runs}
            )
        return image, nuclei

    found = list(shop.crew.map(read, range(len(names))))
    order = list(range(1, len(names) + 1))
    random.Random(0).shuffle(order)
    held_out = set(order[:val])
    annotations = [nucleus for _, nuclei in found for nucleus in nuclei]
    for side in ("train", "val"):
        chosen = [image for image, _ in found if (image["id"] in held_out) == (side == "val")]
        _write(folder, side, chosen, annotations, ["nucleus"], masks=True)


def _copied(folder: Path, name: str, data: bytes, number: int) -> Things:
    """Writes an image as it is; returns what COCO's json says of it."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
    except (OSError, ValueError) as error:
        raise DataError(f"{name} in the archive is no image: remove the archive and fetch it again.") from error
    (folder / "images" / name).write_bytes(data)
    return {"id": number, "file_name": name, "width": width, "height": height}


def _write(
    folder: Path,
    side: str,
    images: Sequence[Things],
    annotations: Sequence[Things],
    labels: Sequence[str],
    *,
    masks: bool,
) -> None:
    """Writes one side's json with those of the annotations that are its images', and looks it over as a run would."""
    ids = {image["id"] for image in images}
    found = {
        "images": list(images),
        "annotations": [
            {"id": number, **thing, "iscrowd": 0}
            for number, thing in enumerate(annotations, start=1)
            if thing["image_id"] in ids
        ],
        "categories": [{"id": number, "name": label} for number, label in enumerate(labels, start=1)],
    }
    path = folder / "annotations" / f"instances_{side}.json"
    path.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")
    for problem in coco.check(path, folder / "images", masks=masks):
        raise DataError(problem)


def _text(tree: ET.Element, path: str) -> str:
    found = tree.findtext(path)
    if found is None:
        raise DataError(f"An annotation in the archive lacks {path}: remove the archive and fetch it again.")
    return found

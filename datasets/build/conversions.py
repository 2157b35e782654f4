"""Conversion of detection datasets from their publishers' formats to COCO format."""

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
from ..download.archives import ZipReader
from ..download.worker_pool import ByteCounter
from ..formats import coco
from ..registry.catalog import Source
from . import imagenet_archives
from .dataset_builder import BuildStep, DatasetBuilder

Record = dict[str, Any]  # an image or an annotation in COCO's JSON


def convert(source: Source, raw: Mapping[str, Path], builder: DatasetBuilder) -> None:
    """Build `source` from its raw files as its `conversion` says; raises `DataError` if they are not as expected."""
    options = dict(source.conversion)
    source_format = options.pop("format")
    if source_format == "imagenet":
        imagenet_archives.convert(builder, [raw.get(file.name) for file in source.files], **options)
        return
    main, *others = (raw[file.name] for file in source.files)
    converters: dict[str, Callable[..., None]] = {"bccd": _bccd, "nwpu": _nwpu, "dsb2018": _dsb2018}
    convert_archive = converters[source_format]

    def build(folder: Path, count: ByteCounter) -> None:
        (folder / "images").mkdir()
        (folder / "annotations").mkdir()
        with ZipReader(main, source.files[0].target_path) as archive:
            try:
                convert_archive(folder, archive, others, builder, **options)
            except (KeyError, ValueError, TypeError, AttributeError, ET.ParseError) as error:
                if isinstance(error, DataError):
                    raise
                raise DataError(f"{main} has an unexpected format ({error!r}): it is another version.") from error
        count(main.stat().st_size)

    builder.run([BuildStep("all", build)])


def _bccd(folder: Path, archive: ZipReader, _: Sequence[Path], builder: DatasetBuilder) -> None:
    """Convert BCCD from Pascal VOC format: an XML file for each image, and lists of the image names of each split."""
    names = sorted(Path(path).stem for path in archive.paths if path.startswith("JPEGImages/"))
    image_ids = {name: index for index, name in enumerate(names, start=1)}
    trees = {name: ET.fromstring(archive.read(f"Annotations/{name}.xml")) for name in names}
    labels = sorted({_find_text(element, "name") for tree in trees.values() for element in tree.iter("object")})
    category_ids = {label: index for index, label in enumerate(labels, start=1)}
    images, annotations = {}, []
    for name, tree in trees.items():
        image = _copy_image(folder, f"{name}.jpg", archive.read(f"JPEGImages/{name}.jpg"), image_ids[name])
        images[name] = image
        for element in tree.iter("object"):
            left, top, right, bottom = (
                float(_find_text(element, f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax")
            )
            left, right = max(left, 0.0), min(right, image["width"])
            top, bottom = max(top, 0.0), min(bottom, image["height"])
            if right > left and bottom > top:  # else the box has no area
                box = [left, top, right - left, bottom - top]
                category = category_ids[_find_text(element, "name")]
                annotations.append(
                    {"image_id": image["id"], "category_id": category, "bbox": box, "area": box[2] * box[3]}
                )
    for split in ("train", "val", "test"):
        selected = archive.read(f"ImageSets/Main/{split}.txt").decode().split()
        _write_split(folder, split, [images[name] for name in sorted(selected)], annotations, labels, masks=False)


def _nwpu(
    folder: Path,
    archive: ZipReader,
    others: Sequence[Path],
    builder: DatasetBuilder,
    *,
    max_edge: int,
    num_images: int,
    val_images: Sequence[int],
) -> None:
    """Convert NWPU VHR-10, a zip of images and one COCO JSON file; shrink images to `max_edge` pixels."""
    source = json.loads(others[0].read_bytes())
    paths = {Path(path).name: path for path in archive.paths}
    records = {image["file_name"]: image for image in source["images"]}
    if paths.keys() != records.keys() or len(paths) != num_images:
        raise DataError(f"{others[0]} and its archive should contain the same {num_images} images: fetch both again.")

    def shrink(name: str) -> tuple[Record, float]:
        data = archive.read(paths[name])
        with Image.open(io.BytesIO(data)) as image:
            scale = max_edge / max(image.size)
            if scale < 1:
                size = round(image.width * scale), round(image.height * scale)
                out = io.BytesIO()
                image.convert("RGB").resize(size, Image.Resampling.LANCZOS).save(out, "JPEG", quality=90)
                data = out.getvalue()
        return _copy_image(folder, name, data, records[name]["id"]), min(scale, 1.0)

    scaled = {image["id"]: (image, scale) for image, scale in builder.pool.map(shrink, sorted(paths))}
    annotations = [_scale_annotation(record, *scaled[record["image_id"]]) for record in source["annotations"]]
    labels = [category["name"] for category in sorted(source["categories"], key=lambda category: category["id"])]
    val_names = {f"{number:03d}.jpg" for number in val_images}
    for split in ("train", "val"):
        selected = [image for image, _ in scaled.values() if (image["file_name"] in val_names) == (split == "val")]
        _write_split(folder, split, selected, annotations, labels, masks=True)


def _scale_annotation(annotation: Record, image: Record, scale: float) -> Record:
    """Return an annotation scaled with its image and clipped to it."""
    edges = np.array([image["width"], image["height"]], dtype=float)
    polygons = [
        (np.array(polygon).reshape(-1, 2) * scale).clip(0, edges).round(2).ravel().tolist()
        for polygon in annotation["segmentation"]
    ]
    corner, size = np.split(np.array(annotation["bbox"], dtype=float) * scale, 2)
    low, high = corner.clip(0, edges), (corner + size).clip(0, edges)
    return {
        "image_id": image["id"], "category_id": annotation["category_id"], "segmentation": polygons,
        "bbox": [*low.round(2).tolist(), *(high - low).round(2).tolist()],
        "area": round(annotation["area"] * scale**2, 2),
    }  # fmt: skip


def _dsb2018(
    folder: Path, archive: ZipReader, _: Sequence[Path], builder: DatasetBuilder, *, num_images: int, num_val: int
) -> None:
    """Convert Data Science Bowl 2018: <id>/images/<id>.png, and a PNG for each nucleus in <id>/masks/."""
    from pycocotools import mask

    mask_paths: dict[str, list[str]] = {}
    for path in archive.paths:
        name, subfolder, _file = path.split("/")
        mask_paths.setdefault(name, [])
        if subfolder == "masks":
            mask_paths[name].append(path)
    names = sorted(mask_paths)
    if len(names) != num_images:
        raise DataError(f"The archive of nuclei contains {len(names)} images, not {num_images}: it is another version.")

    def read(index: int) -> tuple[Record, list[Record]]:
        name = names[index]
        image = _copy_image(folder, f"{name[:16]}.png", archive.read(f"{name}/images/{name}.png"), index + 1)
        nuclei = []
        for path in mask_paths[name]:
            with Image.open(io.BytesIO(archive.read(path))) as opened:
                pixels = np.asarray(opened.convert("L")) > 0
            rle = mask.encode(np.asfortranarray(pixels, dtype=np.uint8))
            if pixels.shape != (image["height"], image["width"]) or not pixels.any():
                continue
            segmentation = {"size": [int(side) for side in rle["size"]], "counts": rle["counts"].decode()}
            box = [int(side) for side in mask.toBbox(rle)]
            area = int(pixels.sum())
            nuclei.append(
                {"image_id": index + 1, "category_id": 1, "bbox": box, "area": area, "segmentation": segmentation}
            )
        return image, nuclei

    records = list(builder.pool.map(read, range(len(names))))
    image_ids = list(range(1, len(names) + 1))
    random.Random(0).shuffle(image_ids)
    val_ids = set(image_ids[:num_val])
    annotations = [nucleus for _, nuclei in records for nucleus in nuclei]
    for split in ("train", "val"):
        selected = [image for image, _ in records if (image["id"] in val_ids) == (split == "val")]
        _write_split(folder, split, selected, annotations, ["nucleus"], masks=True)


def _copy_image(folder: Path, name: str, data: bytes, image_id: int) -> Record:
    """Write an image unchanged and return its record."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
    except (OSError, ValueError) as error:
        raise DataError(f"{name} in the archive is not an image: remove the archive and fetch it again.") from error
    (folder / "images" / name).write_bytes(data)
    return {"id": image_id, "file_name": name, "width": width, "height": height}


def _write_split(
    folder: Path,
    split: str,
    images: Sequence[Record],
    annotations: Sequence[Record],
    labels: Sequence[str],
    *,
    masks: bool,
) -> None:
    """Write the JSON file of a split with those of the annotations that belong to its images, and check it."""
    image_ids = {image["id"] for image in images}
    instances = {
        "images": list(images),
        "annotations": [
            {"id": number, **annotation, "iscrowd": 0}
            for number, annotation in enumerate(annotations, start=1)
            if annotation["image_id"] in image_ids
        ],
        "categories": [{"id": number, "name": label} for number, label in enumerate(labels, start=1)],
    }
    path = folder / "annotations" / f"instances_{split}.json"
    path.write_text(json.dumps(instances, separators=(",", ":")) + "\n", encoding="utf-8")
    for problem in coco.check(path, folder / "images", masks=masks):
        raise DataError(problem)


def _find_text(tree: ET.Element, path: str) -> str:
    text = tree.findtext(path)
    if text is None:
        raise DataError(f"An annotation in the archive has no {path}: remove the archive and fetch it again.")
    return text

"""COCO detection sets of one rank: annotations in an instances json beside a folder of images, for each split."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import MISSING

from ....datasets.formats import coco, coco_problems
from ....datasets.formats.coco import CocoSet
from ....datasets.synthetic import detection
from ....datasets.synthetic.spec_digest import path_with_digest
from ....runner.core.errors import DataError
from ....runner.core.found_files import open_regular
from ....runner.core.progress import ProgressCallback
from ..manifest import manifest_path, read_manifest, write_manifest
from ..vision.image_data import ImageData
from ..vision.pipeline import GeneratedSource

_MANIFEST_VERSION = "2"  # change it with what is counted


@dataclass(frozen=True)
class Split:
    """Where the annotations and the images of the training or the validation set lie."""

    annotations: Path
    images: Path
    train: bool


class CocoData(ImageData):
    """One rank's part of a detection set.

    `train_set` and `val_set` hold the images that the workload selects (`select_images`). `truth` is the whole
    validation set, against which detections are scored. Until `open`, `val_set` is one random image, for the warm-up.
    `counts` is the manifest: see `_count`. `max_boxes` is the largest number of boxes of a training image; `dropped`
    training boxes had no area.
    """

    loader = "torch"
    dataset_keys = ("train_annotations", "train_images", "val_annotations", "val_images")
    masks = False
    train_set: CocoSet
    val_set: CocoSet
    truth: CocoSet
    counts: dict[str, Any]
    max_boxes: int
    dropped = 0

    @dataclass
    class Settings:
        """The dataset in COCO's format and how it is read."""

        train_annotations: str = MISSING
        """COCO annotation file of the training images."""
        train_images: str = MISSING
        """Folder of the training images."""
        val_annotations: str = MISSING
        """COCO annotation file of the validation images."""
        val_images: str = MISSING
        """Folder of the validation images."""
        cache_dir: str = MISSING
        """Folder of the arrays that are prepared from the files."""
        generate: detection.DetectionSpec | None = None
        """Synthetic dataset to generate and read instead; null: none."""
        eval_batch_size: int = 64
        """Images of an evaluation batch of one rank."""
        workers: int | None = None
        """Processes of a rank that read images, and decode them unless a GPU does; 0: none; null: one for each of the
        rank's cores, at most 16, and where a GPU decodes, at most one for 32 training images."""

        def __post_init__(self) -> None:
            if self.eval_batch_size < 1 or (self.workers is not None and self.workers < 0):
                raise ValueError("eval_batch_size must be 1 or more, workers 0 or more.")

    @classmethod
    def prepare_data(cls, settings: Settings, progress: ProgressCallback) -> None:
        """Generate the set if asked to, read and check both splits, store their annotations and a manifest."""
        cls._generate(settings)
        prepared = []
        for split in splits(settings):
            progress(f"reading {split.annotations.name}", 0)
            prepared.append(cls._prepare(settings, split))
        manifest, sets = cls._manifest_path(settings), {"train": prepared[0].name, "val": prepared[1].name}
        sets["version"] = _MANIFEST_VERSION
        with contextlib.suppress(DataError):
            if sets.items() <= read_manifest(manifest).items():
                return  # these sets have been counted
        train, val = map(coco.load_prepared, prepared)
        for problem in cls._check_together(train, val):
            raise DataError(problem)
        write_manifest(manifest, cls._count(train, val) | sets)

    @classmethod
    def preparation_notes(cls, settings: Settings) -> Sequence[str]:
        """Return what was mended in the annotations of both splits."""
        return list(map(str, read_manifest(cls._manifest_path(settings))["mended"]))

    @classmethod
    def prepared_content(cls, settings: Settings) -> Iterator[Path | bytes]:
        """Yield the annotations of both splits and the names and sizes of their images, not their pixels."""
        manifest = read_manifest(cls._manifest_path(settings))
        for split in ("train", "val"):
            yield from coco.load_prepared(Path(settings.cache_dir) / manifest[split]).content()

    @classmethod
    def verify(cls, settings: Settings) -> Iterator[str]:
        """Yield a message for every problem of the annotations, of the images, and of the two splits together."""
        readable = []
        cls._generate(settings)
        for split in splits(settings):
            options = {"masks": cls.masks, "segmentations": cls.masks, "drop_empty": split.train}
            yield from coco.check(split.annotations, split.images, **options, files=True)
            with contextlib.suppress(DataError):  # `check` has yielded it
                readable.append(coco.read(split.annotations, split.images, masks=False))
        if len(readable) == 2:
            yield from cls._check_together(*readable)

    @classmethod
    def _generate(cls, settings: Settings) -> None:
        if settings.generate is not None and not (folder := _generated_folder(settings, settings.generate)).exists():
            detection.write_detection_dataset(folder, settings.generate)

    @classmethod
    def _count(cls, train: CocoSet, val: CocoSet) -> dict[str, Any]:
        """Return what a run must know of both whole splits before its clock starts."""
        selected = cls.select_images(train, True)
        return {
            "train_size": len(selected),
            "eval_size": len(cls.select_images(val, False)),
            "num_classes": len(val.category_id),
            "max_boxes": int(np.diff(selected.first).max()),
            "dropped": train.dropped,
            "mended": [f"{Path(part.annotations).name}: {note}" for part in (train, val) for note in part.mended],
        }

    @classmethod
    def select_images(cls, dataset: CocoSet, train: bool) -> CocoSet:
        """Return the images that the workload trains on or evaluates, with the annotations that it learns from."""
        raise NotImplementedError

    def build_warm_up_source(self) -> GeneratedSource | None:
        """Return the random image of `val_set`."""
        return GeneratedSource(480, 640, CocoImage(self.val_set, 0)) if self.loader == "torch" else None

    def build_source(self, train: bool) -> "CocoSource":
        """Return the images of the training or the validation set."""
        return CocoSource(self.train_set if train else self.val_set)

    def mlperf_params(self) -> dict[str, Any]:
        """Return loader, image size and the number of dropped training boxes, which MLPerf does not ask for."""
        return {
            "timetrial_loader": self.loader,
            "timetrial_image_size": self.image_size,
            "timetrial_dropped_boxes": self.dropped,
        }

    @classmethod
    def _prepare(cls, settings: Settings, split: Split) -> Path:
        """Store the annotations of a split as arrays.

        Boxes without area are dropped from training alone: pycocotools counts them in the ground truth as missed.
        """
        folder = Path(settings.cache_dir)
        return coco.prepare(split.annotations, split.images, folder, masks=cls.masks, drop_empty=split.train)

    @classmethod
    def _check_together(cls, train: CocoSet, val: CocoSet) -> Iterator[str]:
        """Yield why two splits that are valid alone cannot be used together."""
        names = [part.category_name.tolist() for part in (train, val)]
        if names[0] != names[1]:
            yield coco_problems.different_categories([train.annotations, val.annotations], names)
        if len(train.crowd) and train.crowd.all():
            yield f"{train.annotations} {coco_problems.ONLY_CROWDS}"
        elif not len(cls.select_images(train, True)):
            yield f"{train.annotations} has no image with a box: add one."
        if val.crowd.all():
            yield f"{val.annotations} has no box of a single object, by which to judge what is found: add one."

    @classmethod
    def _manifest_path(cls, settings: Settings) -> Path:
        sources = [source for split in splits(settings) for source in (split.annotations, split.images)]
        return manifest_path(settings.cache_dir, cls.__name__, *sources)

    def _read_sizes(self) -> tuple[int, int]:
        self.counts = read_manifest(self._manifest_path(self.settings))
        self.num_classes, self.max_boxes = self.counts["num_classes"], self.counts["max_boxes"]
        self.dropped = self.counts["dropped"]
        self.val_set = synthetic_coco_set(1, 1, self.num_classes)
        return self.counts["train_size"], self.counts["eval_size"]

    def _open_sets(self) -> None:
        folder = Path(self.settings.cache_dir)
        train, self.truth = (coco.load_prepared(folder / self.counts[split]) for split in ("train", "val"))
        self.train_set, self.val_set = self.select_images(train, True), self.select_images(self.truth, False)


@dataclass(frozen=True)
class CocoImage:
    """An image of a set with its annotations: the target of `CocoSource`."""

    dataset: CocoSet
    index: int

    def pixel_boxes(self) -> NDArray[np.float64]:
        """Return the boxes, float64 [M, 4]: x, y, width, height in pixels."""
        return self.dataset.boxes(self.index).astype(np.float64)

    def normalized_boxes(self) -> NDArray[np.float64]:
        """Return the boxes as fractions of the image, float64 [M, 4]: left, top, right, bottom."""
        corner, size = np.split(self.pixel_boxes(), 2, axis=1)
        image_size = np.array([self.dataset.width[self.index], self.dataset.height[self.index]])
        corners = np.concatenate([corner, corner + size], 1) / np.tile(image_size, 2)
        return corners.clip(0, 1)

    def labels(self) -> NDArray[np.int64]:
        """Return the classes of the boxes, int64 [M], from 1."""
        return self.dataset.categories(self.index).astype(np.int64) + 1


@dataclass(frozen=True)
class CocoSource:
    """The encoded images of a set; the target of each is its `CocoImage`."""

    dataset: CocoSet

    def name(self, index: int) -> str:
        """Return the path of image `index`."""
        return str(self.dataset.path(index))

    def read(self, index: int) -> bytes:
        """Return the encoded image; raise `DataError` if it cannot be read."""
        try:
            with open_regular(self.dataset.path(index)) as file:
                return file.read()
        except OSError as error:
            raise DataError(f"{self.name(index)} cannot be read ({error.strerror}): put it back.") from error

    def target(self, index: int, height: int, width: int) -> CocoImage:
        """Return the image's annotations; raise `DataError` if the json has another size for it."""
        dataset = self.dataset
        annotated = int(dataset.height[index]), int(dataset.width[index])
        if (height, width) != annotated:
            raise DataError(
                f"{self.name(index)} is {width}x{height} pixels, not {annotated[1]}x{annotated[0]} as "
                f"{dataset.annotations} says of image {dataset.image_id[index]}: put the right image there or mend the "
                "json."
            )
        return CocoImage(dataset, index)


def splits(settings: CocoData.Settings) -> list[Split]:
    """Return the training and the validation split, generated or not."""
    if settings.generate is None:
        return [
            Split(Path(settings.train_annotations), Path(settings.train_images), True),
            Split(Path(settings.val_annotations), Path(settings.val_images), False),
        ]
    folder = _generated_folder(settings, settings.generate)
    return [
        Split(folder / "annotations" / f"instances_{name}.json", folder / name, name == "train")
        for name in ("train", "val")
    ]


def _generated_folder(settings: CocoData.Settings, spec: detection.DetectionSpec) -> Path:
    return path_with_digest(Path(settings.train_images).parent, spec)


def synthetic_coco_set(images: int, boxes: int, classes: int) -> CocoSet:
    """Return a set of `images` of 640 by 480 pixels without files, with `boxes` random boxes each; always the same.

    The mask of each object fills its box.
    """
    random, count = np.random.default_rng(1), images * boxes
    corner, size = random.uniform(0, 300, (count, 2)), random.uniform(8, 180, (count, 2))
    low, high = corner, corner + size
    corners = np.stack([low, np.stack([high[:, 0], low[:, 1]], 1), high, np.stack([low[:, 0], high[:, 1]], 1)], 1)
    numbers = np.arange(count + 1)
    return CocoSet(
        annotations="synthetic", folder="", dropped=0,
        image_id=np.arange(images), file_name=np.full(images, ""),
        height=np.full(images, 480, dtype=np.int32), width=np.full(images, 640, dtype=np.int32),
        first=np.arange(images + 1) * boxes,
        annotation_id=np.arange(1, count + 1), image=np.repeat(np.arange(images, dtype=np.int32), boxes),
        category=random.integers(classes, size=count).astype(np.int32),
        box=np.concatenate([corner, size], 1).astype(np.float32), area=size.prod(1), crowd=np.zeros(count, dtype=bool),
        category_id=np.arange(1, classes + 1), category_name=np.arange(1, classes + 1).astype(str),
        outline=np.stack([numbers[:-1], numbers[1:]], 1), corner=4 * numbers,
        corners=corners.reshape(-1, 2).astype(np.float32), run=np.zeros((count, 2), np.int64),
        runs=np.zeros(0, np.uint32), mended=np.zeros(0, np.str_),
    )  # fmt: skip

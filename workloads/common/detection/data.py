"""Detection sets of one rank: an instances json a side beside its images, prepared once, seen as a task wants them."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import MISSING
from torch import Tensor

from ....datasets.formats import coco
from ....datasets.formats.coco import CocoSet
from ....datasets.synthetic import detection
from ....datasets.synthetic.spec_digest import path_with_digest
from ....runner.core.errors import DataError
from ....runner.core.progress import ProgressCallback
from ....runner.training.seeds import Seeds
from ....runner.training.workload import Batch, BatchSharding
from ..vision import gpu_decode
from ..vision.decode_workers import DecodedBatch, EncodedBatch, ImageSource, Plan, WorkerReader, worker_count
from ..vision.image_data import ImageData

Side = tuple[Path, Path, bool]  # annotations, images, and whether they are to be trained on


class CocoData(ImageData):
    """One rank's share of a detection set; `train_set` and `val_set` hold the images that the task looks at.

    `truth` is the whole validation set, by which detections are judged; `most` is the largest number of boxes on an
    image that is trained on; `dropped` boxes to train on had no area. A task says in `seen` which images those are, in
    `views` how it sees them, and in `render` how an NVIDIA card does; elsewhere the reading processes decode and render.
    """

    loader = "torch"
    masks = False
    train_set: CocoSet
    val_set: CocoSet
    truth: CocoSet
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
        """Decoding processes of a rank; 0: none; null: one for each of the rank's cores."""

        def __post_init__(self) -> None:
            if self.eval_batch_size < 1 or (self.workers is not None and self.workers < 0):
                raise ValueError("eval_batch_size must be 1 or more, workers 0 or more.")

    def __init__(
        self, settings: Settings, *, global_batch_size: int, sharding: BatchSharding, device: torch.device, seeds: Seeds
    ) -> None:
        super().__init__(settings, global_batch_size=global_batch_size, sharding=sharding, device=device, seeds=seeds)
        self._readers = self._start_readers()

    @classmethod
    def prepare_data(cls, settings: Settings, progress: ProgressCallback) -> None:
        """Draws the set where it is to be generated, reads and checks both sides, and keeps them as arrays."""
        for side in sides(settings):
            annotations, *_ = side
            progress(f"reading {annotations.name}", 0)
            cls._prepare(settings, side)

    @classmethod
    def verify(cls, settings: Settings) -> Iterator[str]:
        """A sentence for every problem of both sides: of the jsons, of the images, and of the two together."""
        readable = []
        for annotations, images, _ in sides(settings):
            yield from coco.check(annotations, images, masks=cls.masks, files=True)
            with contextlib.suppress(DataError):  # which has been said
                readable.append(coco.read(annotations, images, masks=False))
        if len(readable) == 2:
            yield from cls._unfit(*readable)

    @classmethod
    def seen(cls, whole: CocoSet, train: bool) -> CocoSet:
        """The images that the task looks at, in training or not, with the annotations that it learns from."""
        raise NotImplementedError

    def views(self, train: bool) -> ImageSource:
        """How the task sees the images of `train_set` or `val_set`."""
        raise NotImplementedError

    def render(self, addresses: Tensor, batch: EncodedBatch) -> Tensor:
        """The views of a batch uint8 [N, H, W, 3], of images whose planes lie at addresses int64 [N] on the card."""
        raise NotImplementedError

    def eval_batches(self) -> Iterable[Batch]:
        """This rank's share of the validation images, each once: pixels, and its views' targets."""
        for found in self._views(False, 0, self.eval_plan()):
            yield self._on_device(found.pixels, found.targets, self.eval_size)

    def mlperf_params(self) -> dict[str, Any]:
        """What MLPerf does not ask for: loader and size are on record, and how many boxes training is without."""
        return {
            "timetrial_loader": self.loader,
            "timetrial_image_size": self.image_size,
            "timetrial_dropped_boxes": self.dropped,
        }

    @classmethod
    def _prepare(cls, settings: Settings, side: Side) -> Path:
        """A side as arrays. Boxes without area are left out of training alone: left out of the truth, they would count
        for nothing, where pycocotools counts them as not found.
        """
        annotations, images, train = side
        return coco.prepare(annotations, images, Path(settings.cache_dir), masks=cls.masks, drop_empty=train)

    @classmethod
    def _unfit(cls, train: CocoSet, val: CocoSet) -> Iterator[str]:
        """Why two sides that are sound make no data for a run."""
        if train.category_name.tolist() != val.category_name.tolist():
            yield f"{train.annotations} and {val.annotations} name other categories: both sides need the same."
        if not len(cls.seen(train, True)):
            yield f"{train.annotations} has no image with a box: add one."
        if val.crowd.all():
            yield f"{val.annotations} has no box of a single object, by which to judge what is found: add one."

    def _open(self) -> tuple[int, int]:
        whole = [coco.open_set(self._prepare(self._settings, side)) for side in sides(self._settings)]
        for sentence in self._unfit(*whole):
            raise DataError(sentence)
        self.truth, self.dropped = whole[1], whole[0].dropped
        self.train_set, self.val_set = self.seen(whole[0], True), self.seen(whole[1], False)
        self.num_classes = len(self.truth.category_id)
        self.max_boxes = int(np.diff(self.train_set.first).max())
        return len(self.train_set), len(self.val_set)

    def _start_readers(self) -> dict[bool, WorkerReader]:
        """For training (True) and evaluation."""
        decode, pin = self._readers_decode(), gpu_decode.is_supported(self._device)
        workers = worker_count(self._settings.workers, self._sharding.ranks)
        return {side: WorkerReader(self.views(side), workers=workers, decode=decode, pin=pin) for side in (True, False)}

    def _readers_decode(self) -> bool:
        """Whether the reading processes make the pixels."""
        return not gpu_decode.is_supported(self._device)

    def _views(self, train: bool, epoch: int, plan: Plan) -> Iterator[DecodedBatch]:
        batches = self._readers[train].read(epoch, plan)
        if not gpu_decode.is_supported(self._device):
            return batches
        return gpu_decode.prefetch(self._decoded(train, batches), self._device)

    def _decoded(self, train: bool, batches: Iterator[EncodedBatch]) -> Iterator[DecodedBatch]:
        for batch in batches:
            try:
                yield gpu_decode.decode(batch, self.render, self._device)
            except RuntimeError as error:
                raise self._readers[train].locate_bad_image(batch, error) from error

    def _on_device(self, pixels: Tensor, targets: Sequence[Tensor], global_samples: int) -> Batch:
        """Of pixels uint8 [N, height, width, 3], which lie so in memory and render [N, 3, height, width] to the model."""
        pixels = pixels.to(self._device, non_blocking=True).permute(0, 3, 1, 2)
        content = (pixels, *(target.to(self._device, non_blocking=True) for target in targets))
        return Batch(content, len(pixels), global_samples, global_samples)


@dataclass(frozen=True)
class Files:
    """The images of a set as files, and their boxes."""

    coco: CocoSet

    def name(self, number: int) -> str:
        """What to call image `number` in a message."""
        return str(self.coco.path(number))

    def read(self, number: int) -> bytes:
        """The encoded image; raises `DataError` where it is gone."""
        try:
            return self.coco.path(number).read_bytes()
        except OSError as error:
            raise DataError(f"{self.name(number)} cannot be read ({error.strerror}): put it back.") from error

    def check_size(self, number: int, height: int, width: int) -> None:
        """Raises `DataError` where the image is not of the size that its annotations were made for."""
        said = int(self.coco.height[number]), int(self.coco.width[number])
        if (height, width) != said:
            raise DataError(
                f"{self.name(number)} is {width}x{height} pixels, not {said[1]}x{said[0]} as {self.coco.annotations} "
                f"says of image {self.coco.image_id[number]}: put the right image there or mend the json."
            )

    def boxes(self, number: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Corners as fractions of the image, float64 [M, 4] (left, top, right, bottom), and labels [M] from 1."""
        corner, size = np.split(self.coco.boxes(number).astype(np.float64), 2, axis=1)
        whole = np.array([self.coco.width[number], self.coco.height[number]])
        corners = np.concatenate([corner, corner + size], 1) / np.tile(whole, 2)
        return corners.clip(0, 1), self.coco.categories(number).astype(np.int64) + 1


def sides(settings: CocoData.Settings) -> list[Side]:
    """The training and the validation side; draws them where they are to be generated."""
    if settings.generate is None:
        return [
            (Path(settings.train_annotations), Path(settings.train_images), True),
            (Path(settings.val_annotations), Path(settings.val_images), False),
        ]
    folder = path_with_digest(Path(settings.train_images).parent, settings.generate)
    if not folder.exists():
        detection.write_detection_dataset(folder, settings.generate)
    return [
        (folder / "annotations" / f"instances_{side}.json", folder / side, side == "train") for side in ("train", "val")
    ]


def synthetic_coco_set(images: int, boxes: int, classes: int) -> CocoSet:
    """`images` of 640 by 480 pixels without files, with `boxes` each of any of the `classes`; always the same.

    What is in a box is all of it.
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
        runs=np.zeros(0, np.uint32),
    )  # fmt: skip

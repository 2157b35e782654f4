"""ImageNet as every loader sees it. The loaders differ only in what decodes and transforms."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import MISSING

from ....datasets.formats import imagenet
from ....datasets.formats.imagenet import ImageSet
from ....datasets.synthetic import images
from ....datasets.synthetic.spec_digest import path_with_digest
from ....runner.core.progress import ProgressCallback
from ....runner.training.seeds import Seeds
from ....runner.training.workload import BatchSharding
from ..manifest import manifest_path, read_manifest, write_manifest
from ..vision.image_data import ImageData
from .transforms import ImageNetTransform


class ImageNetData(ImageData):
    """One rank's images and labels, from class folders or shards."""

    dataset_keys = ("folder",)

    @dataclass
    class Settings:
        """The dataset and how it is read."""

        folder: str = MISSING
        """Folder with `train/` and `val/`, each of class folders, TFRecord shards or WebDataset shards."""
        generate: images.ClassificationSpec | None = None
        """Synthetic dataset to generate and read instead; null: none."""
        cache_dir: str = MISSING
        """Folder of the index of the images, which is prepared once."""
        image_size: int = 224
        """Edge of a cropped image in pixels."""
        min_crop_area: float = 0.1
        """Smallest area of a random crop as a fraction of the image. MLPerf samples from 0.05, but a crop must cover
        0.1 of the image."""
        eval_batch_size: int = 256
        """Images of an evaluation batch of one rank."""
        workers: int | None = None
        """Processes of a rank that read images, and decode them unless a GPU does; 0: none; null: one for each of the
        rank's cores, at most 16, and where a GPU decodes, at most one for 32 training images."""

        def __post_init__(self) -> None:
            if self.image_size < 32 or self.eval_batch_size < 1:
                raise ValueError("image_size must be 32 or more, eval_batch_size 1 or more.")
            if not 0 < self.min_crop_area <= 1 or (self.workers is not None and self.workers < 0):
                raise ValueError("min_crop_area must be above 0 and at most 1, workers 0 or more.")

    def __init__(
        self, settings: Settings, *, global_batch_size: int, sharding: BatchSharding, device: torch.device, seeds: Seeds
    ) -> None:
        self.image_size = settings.image_size
        super().__init__(settings, global_batch_size=global_batch_size, sharding=sharding, device=device, seeds=seeds)

    @classmethod
    def prepare_data(cls, settings: Settings, progress: ProgressCallback) -> None:
        """Generate the set if asked to, and store an index of its images and a manifest."""
        folder = _folder(settings)
        if settings.generate is not None and not folder.exists():
            images.write_images(folder, settings.generate)
        progress(f"reading {folder.name}", 0)
        index = imagenet.write_index(folder, Path(settings.cache_dir))
        train, val, num_classes, layout = imagenet.read_index(index, folder)
        sizes = {"train_size": len(train), "eval_size": len(val), "num_classes": num_classes, "layout": layout}
        write_manifest(_manifest_path(settings), {"index": index.name, **sizes})

    @classmethod
    def preparation_notes(cls, settings: Settings) -> Sequence[str]:
        """Return which files are not read and which images are converted."""
        index = Path(settings.cache_dir) / read_manifest(_manifest_path(settings))["index"]
        return [f"{_folder(settings)}: {note}" for note in imagenet.read_notes(index)]

    @classmethod
    def verify(cls, settings: Settings) -> Iterator[str]:
        """Yield a sentence for what is wrong with the folders, or for each image that cannot be decoded."""
        problems = list(super().verify(settings))
        yield from problems
        if problems:
            return
        with ThreadPoolExecutor() as threads:
            for images in imagenet.open_dataset(_folder(settings))[:2]:
                yield from filter(None, threads.map(images.find_problem, range(len(images))))

    @classmethod
    def prepared_content(cls, settings: Settings) -> Iterator[Path | bytes]:
        """Yield the index: names, places and labels of the images, not their pixels."""
        yield Path(settings.cache_dir) / read_manifest(_manifest_path(settings))["index"]

    def build_source(self, train: bool) -> "ImageNetSource":
        """Return the images of the training or the validation set."""
        return ImageNetSource(self.train_set if train else self.val_set)

    def build_transform(self, train: bool) -> ImageNetTransform:
        """Return random crops for training, center crops for evaluation."""
        return ImageNetTransform(self.image_size, self.settings.min_crop_area if train else None)

    def mlperf_params(self) -> dict[str, Any]:
        """Return the loader, the form of the data and the image size, which MLPerf does not ask for."""
        return {
            "timetrial_loader": self.loader,
            "timetrial_data_form": self._form,
            "timetrial_image_size": self.image_size,
        }

    def _read_sizes(self) -> tuple[int, int]:
        manifest = read_manifest(_manifest_path(self.settings))
        self._index = Path(self.settings.cache_dir) / manifest["index"]
        self.num_classes, self._form = manifest["num_classes"], manifest["layout"]
        return manifest["train_size"], manifest["eval_size"]

    def _open_sets(self) -> None:
        self.train_set, self.val_set, *_ = imagenet.read_index(self._index, _folder(self.settings))


@dataclass(frozen=True)
class ImageNetSource:
    """The encoded images of one set; the target of each is its label, int64 []."""

    images: ImageSet

    def name(self, index: int) -> str:
        """Return what messages call image `index`."""
        return self.images.name(index)

    def read(self, index: int) -> bytes:
        """Return the encoded image; raise `DataError` if it cannot be read."""
        return self.images.read(index)

    def target(self, index: int, height: int, width: int) -> Any:
        """Return the label; it suits images of any size."""
        return self.images.label[index]


def _folder(settings: ImageNetData.Settings) -> Path:
    """Return the folder of the dataset, generated or not."""
    folder = Path(settings.folder)
    return folder if settings.generate is None else path_with_digest(folder, settings.generate)


def _manifest_path(settings: ImageNetData.Settings) -> Path:
    return manifest_path(settings.cache_dir, "imagenet", _folder(settings))

"""The image input pipeline: source → transform → loader → batch.

    ImageSource   encoded images and their targets (labels or annotations), by index
    Transform     crop, resize, flip and color jitter of a workload: `sample` draws their parameters, `cpu` applies them
                  to one image in a worker process, `gpu` to a batch of decoded images on an NVIDIA GPU
    ImageDataset  a source and a transform, from which worker processes make batches
    ImageLoader   reads planned batches, decodes them in the workers or by an `ImageDecoder`, prefetches them to the GPU

For example, with a source and a transform of your own:

    dataset = ImageDataset(FolderOfImages("images"), CropAndFlip(size=224), seed=1)
    decoder = GpuDecoder(dataset.transform, device)  # without one, the workers decode and transform
    loader = ImageLoader(workers=8, device=device, decoder=decoder)
    loader.open(dataset)
    indices = np.random.default_rng(1).permutation(50_000).tolist()
    plan = [(0, indices[first : first + 256]) for first in range(0, len(indices), 256)]  # (epoch, images) of a batch
    for batch in loader.batches(plan):
        (labels,) = batch.targets  # as `CropAndFlip.sample` returned them, stacked
        logits = model(batch.pixels.permute(0, 3, 1, 2).float() / 255)  # pixels are uint8 [N, H, W, 3] on the device
        loss = cross_entropy(logits, labels)

`ImageData` (image_data.py) plans the epochs and makes each `ImageBatch` of a loader a `Batch` for the model.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ....datasets.formats import jpeg
from ....datasets.formats.jpeg import Jpeg
from ....runner.core import execution_paths
from ....runner.core.errors import DataError
from ....runner.hardware.devices import is_nvidia_gpu
from . import gpu_decode
from .batches import EncodedBatch, ImageBatch
from .decode_workers import BatchWorkers, Key
from .gpu_decode import GpuImages

Box = tuple[int, int, int, int]  # top, left, height, width in pixels
Arrays = tuple[NDArray[Any], ...]


class ImageSource(Protocol):
    """Encoded images and their targets, by index. Must be picklable."""

    def name(self, index: int) -> str:
        """Return what messages call image `index`, such as its path."""
        ...

    def read(self, index: int) -> bytes:
        """Return the encoded image; raise `DataError` if it cannot be read."""
        ...

    def target(self, index: int, height: int, width: int) -> Any:
        """Return the label or the annotations of image `index`.

        Raises `DataError` if they were made for an image that is not `height` by `width` pixels.
        """
        ...


class Crop(NamedTuple):
    """What a transform does to one image: crop box, horizontal-flip flag, targets after both, other parameters."""

    box: Box
    flipped: bool
    targets: Arrays
    params: Arrays = ()


class Transform:
    """The crop, resize, flip and color jitter of a workload. Must be picklable."""

    def sample(self, target: Any, height: int, width: int, generator: np.random.Generator) -> Crop:
        """Draw the crop of an image of `height` by `width` pixels, whose target is as the source returns it."""
        raise NotImplementedError

    def cpu(self, pixels: Tensor, crop: Crop) -> Tensor:
        """Apply `crop` to the whole image `pixels` uint8 [height, width, 3].

        Returns uint8 [H, W, 3], where H and W are equal for all images of a batch.
        """
        raise NotImplementedError

    def gpu(self, images: GpuImages, batch: EncodedBatch) -> Tensor:
        """Apply the crops of `batch` to its decoded images; return uint8 [N, H, W, 3] on the GPU."""
        raise NotImplementedError

    def collate(self, targets: Sequence[Arrays]) -> tuple[Tensor, ...]:
        """Return the targets of a batch as CPU tensors; by default each part is stacked to [N, ...]."""
        return stack_arrays(targets)


def stack_arrays(arrays: Sequence[Arrays]) -> tuple[Tensor, ...]:
    """Stack the arrays of N images, equal in shape, to one tensor [N, ...] for each part."""
    return tuple(torch.from_numpy(np.stack(part)) for part in zip(*arrays, strict=True))


@dataclass(frozen=True)
class ImageDataset:
    """A source and a transform. An image's crop depends on `seed`, epoch and index alone."""

    source: ImageSource
    transform: Transform
    seed: int

    def crop(self, index: int, height: int, width: int, epoch: int) -> Crop:
        """Return the crop of image `index`, of `height` by `width` pixels, in an epoch."""
        target = self.source.target(index, height, width)
        return self.transform.sample(target, height, width, np.random.default_rng((self.seed, epoch, index)))

    def encoded_batch(self, epoch: int, indices: Sequence[int]) -> EncodedBatch:
        """Read and check images and draw their crops, for a decoder outside of the workers."""
        images, crops = self._read(epoch, indices)
        return EncodedBatch(
            torch.frombuffer(bytearray().join([image.data for image in images]), dtype=torch.uint8),
            torch.tensor([len(image.data) for image in images]),
            torch.tensor([(image.height, image.width) for image in images], dtype=torch.int32),
            torch.tensor([crop.box for crop in crops], dtype=torch.int32),
            torch.tensor([crop.flipped for crop in crops]),
            self.transform.collate([crop.targets for crop in crops]),
            stack_arrays([crop.params for crop in crops]),
            indices,
        )

    def image_batch(self, epoch: int, indices: Sequence[int]) -> ImageBatch:
        """Read, decode and transform images on the CPU."""
        images, crops = self._read(epoch, indices)
        transformed = []
        for index, image, crop in zip(indices, images, crops, strict=True):
            pixels = jpeg.decode(image.data, self.source.name(index))
            transformed.append(self.transform.cpu(torch.from_numpy(pixels.copy()), crop))
        return ImageBatch(torch.stack(transformed), self.transform.collate([crop.targets for crop in crops]))

    def _read(self, epoch: int, indices: Sequence[int]) -> tuple[list[Jpeg], list[Crop]]:
        images = [jpeg.to_rgb_jpeg(self.source.read(index), self.source.name(index)) for index in indices]
        crops = [
            self.crop(index, image.height, image.width, epoch) for index, image in zip(indices, images, strict=True)
        ]
        return images, crops


@dataclass(frozen=True)
class GeneratedSource:
    """Black images of `height` by `width` pixels, all with the same target: for the warm-up of decoders."""

    height: int
    width: int
    common_target: Any

    def name(self, index: int) -> str:
        """Return what messages call an image."""
        return "generated image"

    def read(self, index: int) -> bytes:
        """Return the encoded image."""
        return self._jpeg

    @cached_property
    def _jpeg(self) -> bytes:
        return jpeg.encode(np.zeros((self.height, self.width, 3), dtype=np.uint8))

    def target(self, index: int, height: int, width: int) -> Any:
        """Return the target."""
        return self.common_target


class ImageDecoder(Protocol):
    """Decodes and transforms batches outside of the workers."""

    def decode(self, batch: EncodedBatch) -> ImageBatch:
        """Return the transformed images on the device; raise RuntimeError if an image cannot be decoded.

        The memory of `batch.data` is used again once this has returned.
        """
        ...


class GpuDecoder:
    """Decodes JPEGs on an NVIDIA GPU and applies `Transform.gpu`."""

    def __init__(self, transform: Transform, device: torch.device) -> None:
        self._transform, self._device = transform, device

    def decode(self, batch: EncodedBatch) -> ImageBatch:
        """Return the transformed images on the GPU; raise RuntimeError if an image cannot be decoded."""
        images = gpu_decode.decode_jpegs(batch.data, batch.lengths, batch.sizes, self._device)
        pixels = self._transform.gpu(images, batch)
        targets = tuple(target.to(self._device) for target in batch.targets)
        torch.accelerator.current_stream(self._device).synchronize()  # from here on the images' memory is reused
        del images
        return ImageBatch(pixels, targets)

    def warm_up(self, batch: EncodedBatch) -> None:
        """Start the JPEG engines, and compile the transform's kernels for batches like this one."""
        list(gpu_decode.prefetch(map(self.decode, [batch]), self._device))


class Loader(Protocol):
    """Makes the batches of a plan. It is built before the clock starts; on Linux, its processes start then too."""

    def open(self, dataset: ImageDataset) -> None:
        """Take the dataset to read; called once, when the clock runs."""
        ...

    def batches(self, plan: Iterable[Key]) -> Generator[ImageBatch]:
        """Yield the batches of `plan`, on the device or in CPU memory; raise `DataError` on a bad image.

        The plan may be endless. Reading begins with this call or with the first batch that is asked for. Exhaust or
        close the batches of one call before the next call.
        """
        ...


class ImageLoader:
    """Reads the batches of a dataset with `workers` processes; without a `decoder` these also decode and transform."""

    _source: ImageSource

    def __init__(self, *, workers: int, device: torch.device, decoder: ImageDecoder | None = None) -> None:
        self._device, self._decoder = device, decoder
        if decoder is None:
            execution_paths.take("decoder", "Pillow")
            self._workers = BatchWorkers(workers, pin_memory=is_nvidia_gpu(device))
        else:
            self._workers = BatchWorkers(workers, reuse_memory=True)

    def open(self, dataset: ImageDataset) -> None:
        """Take the dataset to read."""
        self._source = dataset.source
        self._workers.open(dataset.image_batch if self._decoder is None else dataset.encoded_batch)

    def batches(self, plan: Iterable[Key]) -> Generator[ImageBatch]:
        """Yield the batches of `plan`, read from this call on; on an NVIDIA GPU they are prefetched to it."""
        batches = self._workers.run(plan)
        if self._decoder is not None:
            batches = _decode(batches, self._decoder, self._source)
        if is_nvidia_gpu(self._device):
            return gpu_decode.prefetch((batch.to(self._device) for batch in batches), self._device)
        return (batch for batch in batches)


def _decode(batches: Iterator[EncodedBatch], decoder: ImageDecoder, source: ImageSource) -> Iterator[ImageBatch]:
    for batch in batches:
        try:
            yield decoder.decode(batch)
        except RuntimeError as error:
            raise locate_bad_image(source, batch, error) from error


def locate_bad_image(source: ImageSource, batch: EncodedBatch, error: Exception) -> DataError:
    """Find the image of `batch` that a decoder rejected with `error`, by decoding one at a time on the CPU."""
    for index, data in zip(batch.indices, batch.jpegs(), strict=True):
        try:
            jpeg.decode(data.numpy().tobytes(), source.name(index))
        except DataError as bad_image:
            return bad_image
    names = f"{source.name(batch.indices[0])} and the {len(batch.indices) - 1} after it in the batch"
    reason = str(error).partition("\n")[0]
    return DataError(f"The decoder rejected one of {names} ({reason}): try another loader, as in data=torch.")

"""NVIDIA DALI as a decoder, on the GPU if there is one. Only data=dali imports the package."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ....runner.core import execution_paths
from ....runner.core.errors import ConfigurationError
from ....runner.hardware.devices import is_nvidia_gpu
from .batches import EncodedBatch, ImageBatch

Augment = Callable[..., Any]  # DALI operators on pixels uint8 [size, size, 3], with `Crop.params` on the CPU


def require_dali() -> None:
    """Raise `ConfigurationError` if DALI is not installed."""
    try:
        import nvidia.dali  # noqa: F401
    except ImportError as error:
        raise ConfigurationError("data=dali needs NVIDIA DALI: pip install 'timetrial[dali]'.") from error


class DaliDecoder:
    """Decodes crops by DALI, resizes them to squares of `size` pixels, and flips and augments them.

    `antialias` widens the filter when an image is reduced. `augment` takes as many arguments after the pixels as a crop
    has `params`.
    """

    def __init__(
        self, size: int, *, antialias: bool, threads: int, device: torch.device, augment: Augment | None = None
    ) -> None:
        self._size, self._antialias, self._threads, self._device = size, antialias, max(1, threads), device
        self._augment = augment
        self._pipelines: dict[int, Any] = {}

    def decode(self, batch: EncodedBatch) -> ImageBatch:
        """Return the transformed images; raise RuntimeError if an image cannot be decoded."""
        pipeline = self._pipeline(len(batch.lengths), len(batch.params))
        pipeline.feed_input("jpegs", [data.numpy() for data in batch.jpegs()])
        pipeline.feed_input("start", list(batch.boxes[:, :2].numpy()))
        pipeline.feed_input("shape", list(batch.boxes[:, 2:].numpy()))
        pipeline.feed_input("flipped", list(batch.flipped.int().numpy()))
        for number, param in enumerate(batch.params):
            pipeline.feed_input(f"param{number}", list(param.numpy()))
        (pixels,) = pipeline.run()
        tensor = pixels.as_tensor()
        if not is_nvidia_gpu(self._device):
            return ImageBatch(torch.from_numpy(np.array(tensor)), batch.targets)
        copy = torch.utils.dlpack.from_dlpack(tensor).clone()
        targets = tuple(target.to(self._device, non_blocking=True) for target in batch.targets)
        torch.accelerator.current_stream(self._device).synchronize()  # from here on DALI's memory is reused
        return ImageBatch(copy, targets)

    def _pipeline(self, batch_size: int, params: int) -> Any:
        """Return a pipeline for at least `batch_size` images: the last batch of an epoch is smaller than the first."""
        large_enough = next((size for size in self._pipelines if size >= batch_size), None)
        if large_enough is None:
            self._pipelines[batch_size] = self._build(batch_size, params)
            large_enough = batch_size
        return self._pipelines[large_enough]

    def _build(self, batch_size: int, params: int) -> Any:
        from nvidia.dali import fn, pipeline_def, types

        gpu = self._device.index if is_nvidia_gpu(self._device) else None
        execution_paths.take("decoder", "DALI on the CPU" if gpu is None else "DALI on the GPU")

        @pipeline_def(
            batch_size=batch_size,
            num_threads=self._threads,
            device_id=gpu,
            prefetch_queue_depth=1,
            enable_conditionals=True,
        )
        def transformed_images() -> Any:
            pixels = fn.decoders.image_slice(
                fn.external_source(name="jpegs", dtype=types.UINT8, ndim=1),
                fn.external_source(name="start", dtype=types.INT32, ndim=1),
                fn.external_source(name="shape", dtype=types.INT32, ndim=1),
                axis_names="HW",
                device="cpu" if gpu is None else "mixed",
                output_type=types.RGB,
                jpeg_fancy_upsampling=True,
                adjust_orientation=False,
            )
            square = [self._size, self._size]
            pixels = fn.resize(pixels, size=square, interp_type=types.INTERP_LINEAR, antialias=self._antialias)
            pixels = fn.flip(pixels, horizontal=fn.external_source(name="flipped", dtype=types.INT32, ndim=0))
            if self._augment is None:
                return pixels
            return self._augment(pixels, *(fn.external_source(name=f"param{number}") for number in range(params)))

        pipeline = transformed_images()
        pipeline.build()
        return pipeline

"""NVIDIA DALI as a maker of views, on the card where there is one; imported for data=dali alone."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ....runner.core.errors import ConfigurationError
from . import gpu_decode
from .decode_workers import DecodedBatch, EncodedBatch, Plan, WorkerReader


def require() -> None:
    """Raises `ConfigurationError` where DALI is not installed."""
    try:
        import nvidia.dali  # noqa: F401
    except ImportError as error:
        raise ConfigurationError("data=dali needs NVIDIA DALI: pip install 'timetrial[dali]'.") from error


class Views:
    """What a reader chose of its images, made by DALI: decoded, resized to a square, flipped, and finished.

    `size` is the square's edge in pixels; `antialias` filters as widely as an image is shrunk. `finish` is what a task
    does then to an image's pixels, uint8 [size, size, 3], with DALI's operators: it takes them with those targets that
    `uses` numbers, which lie on the CPU.
    """

    def __init__(
        self,
        reader: WorkerReader,
        size: int,
        *,
        antialias: bool,
        threads: int,
        device: torch.device,
        finish: Callable[..., Any] | None = None,
        uses: Sequence[int] = (),
    ) -> None:
        self._reader, self._size, self._antialias, self._threads = reader, size, antialias, max(1, threads)
        self._device, self._finish, self._uses = device, finish, uses
        self._pipelines: dict[int, Any] = {}

    def read(self, epoch: int, plan: Plan) -> Iterator[DecodedBatch]:
        """The batches of `plan` on the device; raises `DataError` on an image that is wrong."""
        views = map(self._decoded, self._reader.read(epoch, plan))
        return gpu_decode.prefetch(views, self._device) if gpu_decode.is_supported(self._device) else views

    def _decoded(self, batch: EncodedBatch) -> DecodedBatch:
        pipeline = self._pipeline(len(batch.lengths))
        pipeline.feed_input("jpegs", [data.numpy() for data in batch.jpegs()])
        pipeline.feed_input("start", list(batch.boxes[:, :2].numpy()))
        pipeline.feed_input("shape", list(batch.boxes[:, 2:].numpy()))
        pipeline.feed_input("flipped", list(batch.flipped.int().numpy()))
        for number in self._uses:
            pipeline.feed_input(f"target{number}", list(batch.targets[number].numpy()))
        try:
            (pixels,) = pipeline.run()
        except RuntimeError as error:
            raise self._reader.locate_bad_image(batch, error) from error
        tensor = pixels.as_tensor()
        if not gpu_decode.is_supported(self._device):
            return DecodedBatch(torch.from_numpy(np.array(tensor)), batch.targets)
        copy = torch.utils.dlpack.from_dlpack(tensor).clone()
        targets = tuple(target.to(self._device, non_blocking=True) for target in batch.targets)
        torch.accelerator.current_stream(self._device).synchronize()  # DALI's memory is used again from here on
        return DecodedBatch(copy, targets)

    def _pipeline(self, batch_size: int) -> Any:
        """A pipeline for batches of up to the size first seen; the last batch of an epoch is a smaller one."""
        known = next((size for size in self._pipelines if size >= batch_size), None)
        if known is None:
            self._pipelines[batch_size] = self._build(batch_size)
            known = batch_size
        return self._pipelines[known]

    def _build(self, batch_size: int) -> Any:
        from nvidia.dali import fn, pipeline_def, types

        card = self._device.index if gpu_decode.is_supported(self._device) else None

        @pipeline_def(
            batch_size=batch_size,
            num_threads=self._threads,
            device_id=card,
            prefetch_queue_depth=1,
            enable_conditionals=True,
        )
        def views() -> Any:
            cut = fn.decoders.image_slice(
                fn.external_source(name="jpegs", dtype=types.UINT8, ndim=1),
                fn.external_source(name="start", dtype=types.INT32, ndim=1),
                fn.external_source(name="shape", dtype=types.INT32, ndim=1),
                axis_names="HW",
                device="cpu" if card is None else "mixed",
                output_type=types.RGB,
                jpeg_fancy_upsampling=True,
                adjust_orientation=False,
            )
            square = [self._size, self._size]
            small = fn.resize(cut, size=square, interp_type=types.INTERP_LINEAR, antialias=self._antialias)
            seen = fn.flip(small, horizontal=fn.external_source(name="flipped", dtype=types.INT32, ndim=0))
            if self._finish is None:
                return seen
            return self._finish(seen, *(fn.external_source(name=f"target{number}") for number in self._uses))

        pipeline = views()
        pipeline.build()
        return pipeline

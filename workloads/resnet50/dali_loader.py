"""data=dali: NVIDIA DALI decodes the crop, resizes and flips, on the card where there is one."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from timetrial.runner.errors import ConfigurationError
from timetrial.workloads.common import on_card
from timetrial.workloads.common.reading import Decoded, Encoded, Plan, workers_of
from timetrial.workloads.resnet50.data import Images


class DaliImages(Images):
    """The same reading processes and crops as data=torch; `nvidia-dali` makes the pixels."""

    loader = "dali"

    def __init__(self, *arguments: Any, **named: Any) -> None:
        try:
            import nvidia.dali  # noqa: F401
        except ImportError as error:
            raise ConfigurationError("data=dali needs NVIDIA DALI: pip install 'timetrial[dali]'.") from error
        super().__init__(*arguments, **named)
        self._pipelines: dict[int, Any] = {}

    def _pixels(self, train: bool, epoch: int, plan: Plan) -> Iterator[Decoded]:
        made = self._decoded(train, self.encoded(train, epoch, plan))
        return on_card.ahead(made, self._device) if on_card.works(self._device) else made

    def _decoded(self, train: bool, batches: Iterator[Encoded]) -> Iterator[Decoded]:
        for batch in batches:
            pipeline = self._pipeline(len(batch.lengths))
            pipeline.feed_input("jpegs", [data.numpy() for data in batch.jpegs()])
            pipeline.feed_input("start", list(batch.boxes[:, :2].numpy()))
            pipeline.feed_input("shape", list(batch.boxes[:, 2:].numpy()))
            pipeline.feed_input("mirrored", list(batch.mirrored.int().numpy()))
            try:
                (pixels,) = pipeline.run()
            except RuntimeError as error:
                raise self._readers[train].blame(batch, error) from error
            tensor = pixels.as_tensor()
            if on_card.works(self._device):
                pixels = torch.utils.dlpack.from_dlpack(tensor).clone()
                yield Decoded(pixels, (batch.targets[0].to(self._device, non_blocking=True),))
            else:
                yield Decoded(torch.from_numpy(np.array(tensor)), batch.targets)

    def _pipeline(self, batch_size: int) -> Any:
        """A pipeline for batches of up to the size first seen; the last batch of an epoch is a smaller one."""
        known = next((size for size in self._pipelines if size >= batch_size), None)
        if known is None:
            self._pipelines[batch_size] = self._build(batch_size)
            known = batch_size
        return self._pipelines[known]

    def _build(self, batch_size: int) -> Any:
        from nvidia.dali import fn, pipeline_def, types

        card = self._device.index if on_card.works(self._device) else None
        threads = max(1, workers_of(self._settings.workers, self._share.ranks))
        size = self.image_size

        @pipeline_def(batch_size=batch_size, num_threads=threads, device_id=card, prefetch_queue_depth=1)
        def images() -> Any:
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
            small = fn.resize(cut, size=[size, size], interp_type=types.INTERP_LINEAR, antialias=False)
            return fn.flip(small, horizontal=fn.external_source(name="mirrored", dtype=types.INT32, ndim=0))

        pipeline = images()
        pipeline.build()
        return pipeline

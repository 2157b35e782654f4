"""data=tfdata: TensorFlow's input pipeline decodes the crop, resizes and flips, on the CPU."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from ....runner.core.errors import ConfigurationError
from ..vision.decode_workers import DecodedBatch, EncodedBatch, Plan
from .data import ImageNetData


class TfDataImageNetData(ImageNetData):
    """The same reading processes and crops as data=torch; `tf.data` makes the pixels."""

    loader = "tfdata"

    def __init__(self, *arguments: Any, **named: Any) -> None:
        try:
            from . import tensorflow_import
        except ImportError as error:
            raise ConfigurationError("data=tfdata needs TensorFlow: pip install 'timetrial[tensorflow]'.") from error
        self._tf: Any = tensorflow_import.tensorflow
        super().__init__(*arguments, **named)

    @property
    def device(self) -> torch.device:
        """Where the run trains."""
        return self._device

    def batches(self, train: bool, epoch: int, plan: Plan) -> Iterator[tuple[Any, Any]]:
        """The batches of `plan` as tensors on the CPU: pixels uint8 [N, size, size, 3], labels int64 [N].

        Raises `DataError` on an image that is wrong.
        """
        tf, failed, under_way = self._tf, list[Exception](), deque[EncodedBatch]()
        batches = self.encoded(train, epoch, plan)

        def read() -> Iterator[Any]:
            try:
                for encoded in batches:
                    under_way.append(encoded)
                    jpegs = [data.numpy().tobytes() for data in encoded.jpegs()]
                    yield jpegs, encoded.boxes.numpy(), encoded.flipped.numpy(), encoded.targets[0].numpy()
            except Exception as error:
                failed.append(error)  # TensorFlow would hand on its text alone
                raise

        try:
            for pixels, labels in self._dataset(read):
                under_way.popleft()
                yield pixels, labels
        except tf.errors.OpError as error:
            if failed:
                raise failed[0] from error
            if not under_way or not isinstance(error, tf.errors.InvalidArgumentError):
                raise
            # Batches come out in the order in which they went in: the first that has not is the one.
            raise self._readers[train].locate_bad_image(under_way[0], error) from error

    def _dataset(self, read: Any) -> Any:
        tf, size = self._tf, self.image_size

        def single(data: Any, box: Any, flipped: Any) -> Any:
            cut = tf.image.decode_and_crop_jpeg(data, box, channels=3, dct_method="INTEGER_ACCURATE")
            small = tf.image.resize(cut, (size, size), method="bilinear", antialias=False)
            small = tf.cond(flipped, lambda: tf.reverse(small, [1]), lambda: small)
            return tf.cast(tf.floor(small + 0.5), tf.uint8)

        def batch(data: Any, boxes: Any, flipped: Any, labels: Any) -> Any:
            kind = tf.TensorSpec((size, size, 3), tf.uint8)
            return tf.map_fn(lambda parts: single(*parts), (data, boxes, flipped), fn_output_signature=kind), labels

        kinds = (
            tf.TensorSpec((None,), tf.string),
            tf.TensorSpec((None, 4), tf.int32),
            tf.TensorSpec((None,), tf.bool),
            tf.TensorSpec((None,), tf.int64),
        )
        source = tf.data.Dataset.from_generator(read, output_signature=kinds)
        return source.map(batch, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)

    def _pixels(self, train: bool, epoch: int, plan: Plan) -> Iterator[DecodedBatch]:
        for pixels, labels in self.batches(train, epoch, plan):
            yield DecodedBatch(torch.tensor(pixels.numpy()), (torch.tensor(labels.numpy()),))

"""data=tfdata: TensorFlow's input pipeline decodes the crop, resizes and flips, on the CPU."""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import torch

from ....runner.core import execution_paths
from ....runner.core.errors import ConfigurationError
from ....runner.hardware.devices import is_nvidia_gpu
from ..vision.batches import EncodedBatch, ImageBatch
from ..vision.decode_workers import BatchWorkers, Key
from ..vision.pipeline import ImageDataset, ImageSource, locate_bad_image
from .data import ImageNetData


class TfDataImageNetData(ImageNetData):
    """The reading processes and crops of data=torch; `tf.data` decodes and transforms."""

    loader = "tfdata"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        try:
            from . import tensorflow_import
        except ImportError as error:
            raise ConfigurationError("data=tfdata needs TensorFlow: pip install 'timetrial[tensorflow]'.") from error
        self._tf: Any = tensorflow_import.tensorflow
        self._loaders: dict[bool, TfDataLoader] = {}
        super().__init__(*args, **kwargs)

    def build_loader(self, train: bool) -> "TfDataLoader":
        """Return the loader of training or of evaluation."""
        pin_memory = is_nvidia_gpu(self.device)
        loader = TfDataLoader(self._tf, self.image_size, workers=self._workers(), pin_memory=pin_memory)
        self._loaders[train] = loader
        return loader

    def tensorflow_batches(self, train: bool, plan: Iterable[Key]) -> Iterator[tuple[Any, Any]]:
        """Yield the batches of `plan` as `TfDataLoader.tensorflow_batches` does, for TensorFlow's engine."""
        return self._loaders[train].tensorflow_batches(plan)


class TfDataLoader:
    """Reads the batches of a dataset with `workers` processes, and decodes and transforms them by `tf.data`."""

    _source: ImageSource

    def __init__(self, tf: Any, size: int, *, workers: int, pin_memory: bool) -> None:
        self._tf, self._size = tf, size
        execution_paths.take("decoder", "TensorFlow")
        self._workers = BatchWorkers(workers, pin_memory=pin_memory)

    def open(self, dataset: ImageDataset) -> None:
        """Take the dataset to read."""
        self._source = dataset.source
        self._workers.open(dataset.encoded_batch)

    def batches(self, plan: Iterable[Key]) -> Generator[ImageBatch]:
        """Yield the batches of `plan` in CPU memory; raise `DataError` on a bad image."""
        for pixels, labels in self.tensorflow_batches(plan):
            yield ImageBatch(torch.tensor(pixels.numpy()), (torch.tensor(labels.numpy()),))

    def tensorflow_batches(self, plan: Iterable[Key]) -> Iterator[tuple[Any, Any]]:
        """Yield TensorFlow's tensors on the CPU: pixels uint8 [N, size, size, 3], labels int64 [N].

        Raises `DataError` on a bad image.
        """
        tf, read_errors, pending = self._tf, list[Exception](), deque[EncodedBatch]()
        encoded_batches = self._workers.run(plan)

        def read() -> Iterator[Any]:
            try:
                for batch in encoded_batches:
                    pending.append(batch)
                    jpegs = [data.numpy().tobytes() for data in batch.jpegs()]
                    yield jpegs, batch.boxes.numpy(), batch.flipped.numpy(), batch.targets[0].numpy()
            except Exception as error:
                read_errors.append(error)  # TensorFlow passes on its message alone
                raise

        try:
            for pixels, labels in self._dataset(read):
                pending.popleft()
                yield pixels, labels
        except tf.errors.OpError as error:
            if read_errors:
                raise read_errors[0] from error
            if not pending or not isinstance(error, tf.errors.InvalidArgumentError):
                raise
            # Batches leave in the order in which they entered: the first pending one was rejected.
            raise locate_bad_image(self._source, pending[0], error) from error

    def _dataset(self, read: Any) -> Any:
        tf, size = self._tf, self._size

        def transform(data: Any, box: Any, flipped: Any) -> Any:
            pixels = tf.image.decode_and_crop_jpeg(data, box, channels=3, dct_method="INTEGER_ACCURATE")
            pixels = tf.image.resize(pixels, (size, size), method="bilinear", antialias=False)
            pixels = tf.cond(flipped, lambda: tf.reverse(pixels, [1]), lambda: pixels)
            return tf.cast(tf.floor(pixels + 0.5), tf.uint8)

        def transform_batch(data: Any, boxes: Any, flipped: Any, labels: Any) -> Any:
            spec = tf.TensorSpec((size, size, 3), tf.uint8)
            pixels = tf.map_fn(lambda image: transform(*image), (data, boxes, flipped), fn_output_signature=spec)
            return pixels, labels

        signature = (
            tf.TensorSpec((None,), tf.string),
            tf.TensorSpec((None, 4), tf.int32),
            tf.TensorSpec((None,), tf.bool),
            tf.TensorSpec((None,), tf.int64),
        )
        dataset = tf.data.Dataset.from_generator(read, output_signature=signature)
        return dataset.map(transform_batch, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)

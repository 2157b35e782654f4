"""data=tfdata: TensorFlow's input pipeline decodes the crop, resizes and flips, on the CPU."""

from collections.abc import Iterator
from typing import Any

import torch

from timetrial.runner.errors import ConfigurationError
from timetrial.workloads.resnet50.data import Images
from timetrial.workloads.resnet50.reading import Decoded, Plan


class TfDataImages(Images):
    """The same reading processes and crops as data=torch; `tf.data` makes the pixels."""

    loader = "tfdata"

    def __init__(self, *arguments: Any, **named: Any) -> None:
        try:
            from timetrial.workloads.resnet50 import quiet_tensorflow
        except ImportError as error:
            raise ConfigurationError("data=tfdata needs TensorFlow: pip install 'timetrial[tensorflow]'.") from error
        self._tf: Any = quiet_tensorflow.tensorflow
        super().__init__(*arguments, **named)

    def dataset(self, train: bool, epoch: int, plan: Plan) -> Any:
        """A `tf.data.Dataset` of the batches of `plan`: pixels uint8 [N, size, size, 3], labels int64 [N]."""
        tf, size = self._tf, self.image_size

        def single(data: Any, box: Any, mirrored: Any) -> Any:
            cut = tf.image.decode_and_crop_jpeg(data, box, channels=3, dct_method="INTEGER_ACCURATE")
            small = tf.image.resize(cut, (size, size), method="bilinear", antialias=False)
            small = tf.cond(mirrored, lambda: tf.reverse(small, [1]), lambda: small)
            return tf.cast(tf.floor(small + 0.5), tf.uint8)

        def batch(data: Any, boxes: Any, mirrored: Any, labels: Any) -> Any:
            kind = tf.TensorSpec((size, size, 3), tf.uint8)
            return tf.map_fn(lambda parts: single(*parts), (data, boxes, mirrored), fn_output_signature=kind), labels

        def batches() -> Iterator[Any]:
            for encoded in self.encoded(train, epoch, plan):
                jpegs = [data.numpy().tobytes() for data in encoded.jpegs()]
                yield jpegs, encoded.boxes.numpy(), encoded.mirrored.numpy(), encoded.labels.numpy()

        kinds = (
            tf.TensorSpec((None,), tf.string),
            tf.TensorSpec((None, 4), tf.int32),
            tf.TensorSpec((None,), tf.bool),
            tf.TensorSpec((None,), tf.int64),
        )
        source = tf.data.Dataset.from_generator(batches, output_signature=kinds)
        return source.map(batch, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)

    def _pixels(self, train: bool, epoch: int, plan: Plan) -> Iterator[Decoded]:
        for pixels, labels in self.dataset(train, epoch, plan):
            yield Decoded(torch.tensor(pixels.numpy()), torch.tensor(labels.numpy()))

"""ResNet-50 v1.5 in Keras: the network of model.py under the same names, and the updates of its optimizers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..common.imagenet.tensorflow_import import tensorflow
from . import lars
from .model import MEANS

tf: Any = tensorflow
layers: Any = tf.keras.layers


def copies(variable: Any) -> tuple[Any, ...]:
    """The plain variables behind a Keras one, one a replica."""
    return tuple(tf.distribute.get_strategy().experimental_local_results(variable.value))


def replica() -> int:
    """The number of the replica for which the caller is being traced."""
    return int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))


def build(stages: Sequence[int], classes: int, precision: str = "float32", *, zero_last_gamma: bool = False) -> Any:
    """A `keras.Model` from pixels uint8 [N, H, W, 3] to logits float32 [N, classes]; initial values as in model.py.

    `precision` is the Keras policy of all but batch norms' statistics, the mean over the image and the dense layer;
    with `zero_last_gamma` the last batch norm of each block starts at zero.
    """
    last_gamma = "zeros" if zero_last_gamma else "ones"
    pixels = tf.keras.Input((None, None, 3), dtype="uint8")
    features = layers.Rescaling(1.0, [-mean for mean in MEANS], dtype="float32", name="means")(pixels)
    features = _convolve(features, 64, 7, 2, precision, "conv1", "bn1")
    # After the ReLU nothing is below zero, so that padding with zeros is padding with minus infinity.
    features = layers.MaxPooling2D(3, 2, dtype=precision)(layers.ZeroPadding2D(1, dtype=precision)(features))
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            name = f"layer{stage + 1}.{block}"
            features = _bottleneck(features, 64 << stage, stride, block == 0, precision, last_gamma, name)
    features = layers.GlobalAveragePooling2D(dtype="float32")(features)
    initial = tf.keras.initializers.RandomNormal(stddev=0.01)
    logits = layers.Dense(classes, kernel_initializer=initial, dtype="float32", name="fc")(features)
    return tf.keras.Model(pixels, logits)


def load_torch(model: Any, state: Mapping[str, Tensor]) -> None:
    """Takes up weights and moving statistics of model.py's network, from its `state_dict`."""
    for layer in model.layers:
        for variable in layer.weights:
            key, turn = _TORCH[variable.name]
            values = turn(state[f"{layer.name}.{key}"].detach().cpu()).contiguous().numpy()
            variable.assign(values)


def undecayed(model: Any, optimizer: str) -> set[str]:
    """Paths of the weights that are not decayed, nor adapted by LARS: batch norms', and under LARS all vectors."""
    return {
        variable.path
        for layer in model.layers
        for variable in layer.trainable_variables
        if isinstance(layer, BatchNorm) or (optimizer == "lars" and len(variable.shape) == 1)
    }


def move_by_sgd(weight: Any, velocity: Any, gradient: Any, rate: Any, momentum: float, decay: float | None) -> None:
    """One update as torch.optim.SGD makes it: the rate is outside of the momentum."""
    _move(weight, velocity, gradient + decay * weight if decay else gradient, rate, momentum)


def move_by_lars(weight: Any, velocity: Any, gradient: Any, rate: Any, momentum: float, decay: float | None) -> None:
    """One update as lars.py makes it: the rate, adapted to the layer unless `decay` is None, is inside the momentum."""
    change = gradient
    if decay is not None:
        length, slope = tf.norm(weight), tf.norm(gradient)
        trust = lars.COEFFICIENT * length / (slope + decay * length)
        change = (gradient + decay * weight) * tf.where((length > 0) & (slope > 0), trust, 1.0)
    _move(weight, velocity, rate * change, 1.0, momentum)


def _move(weight: Any, velocity: Any, change: Any, rate: Any, momentum: float) -> None:
    """One kernel: of a sum of three, TensorFlow would choose the order, and another one on another replica."""
    weight, velocity = weight.handle, velocity.handle
    tf.raw_ops.ResourceApplyMomentum(var=weight, accum=velocity, lr=rate, grad=change, momentum=momentum)


class BatchNorm(layers.Layer):  # type: ignore[misc]
    """The fused kernel, with torch's moving statistics; Keras' own layer would leave it in half precision.

    Each replica normalises by its own images and moves its own copy of the statistics, which nothing adds up between
    the replicas during training. The kernel hands back the unbiased variance, which is what torch keeps too; Keras'
    own layer keeps the biased one.
    """

    MOMENTUM, EPSILON = 0.9, 1e-5

    def __init__(self, *, initial_gamma: str = "ones", **named: Any) -> None:
        super().__init__(**named)
        self._initial_gamma = initial_gamma

    def build(self, shape: Sequence[int | None]) -> None:
        """Makes the four vectors, float32 whatever the policy."""

        def vector(name: str, initial: str, trainable: bool) -> Any:
            return self.add_weight(
                (shape[-1],), initial, dtype="float32", trainable=trainable, autocast=False, name=name
            )

        self.gamma, self.beta = vector("gamma", self._initial_gamma, True), vector("beta", "zeros", True)
        self.moving_mean = vector("moving_mean", "zeros", False)
        self.moving_variance = vector("moving_variance", "ones", False)

    def call(self, features: Any, training: bool = False) -> Any:
        """Normalises by the batch in training, by the moving statistics else."""
        moving = [copies(variable)[replica()] for variable in (self.moving_mean, self.moving_variance)]
        result = tf.raw_ops.FusedBatchNormV3(
            x=features,
            scale=self.gamma.value,
            offset=self.beta.value,
            mean=[] if training else moving[0],
            variance=[] if training else moving[1],
            epsilon=self.EPSILON,
            is_training=training,
        )
        if training:
            for variable, now in zip(moving, (result.batch_mean, result.batch_variance), strict=True):
                variable.assign_sub((variable - now) * (1 - self.MOMENTUM))
        return result.y

    def compute_output_spec(self, features: Any, training: bool = False) -> Any:
        """The shape that came in: Keras need not call the layer to find it out."""
        return tf.keras.KerasTensor(features.shape, self.compute_dtype)


_TORCH: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "kernel": ("weight", lambda values: values.permute(2, 3, 1, 0) if values.ndim == 4 else values.T),
    "bias": ("bias", lambda values: values),
    "gamma": ("weight", lambda values: values),
    "beta": ("bias", lambda values: values),
    "moving_mean": ("running_mean", lambda values: values),
    "moving_variance": ("running_var", lambda values: values),
}


def _bottleneck(features: Any, width: int, stride: int, first: bool, precision: str, last_gamma: str, name: str) -> Any:
    """torchvision's Bottleneck: the stride is in the 3x3 convolution, the first of a stage projects its shortcut."""
    shortcut = features
    if first:
        names = f"{name}.downsample.0", f"{name}.downsample.1"
        shortcut = _convolve(features, 4 * width, 1, stride, precision, *names, active=False)
    features = _convolve(features, width, 1, 1, precision, f"{name}.conv1", f"{name}.bn1")
    features = _convolve(features, width, 3, stride, precision, f"{name}.conv2", f"{name}.bn2")
    names = f"{name}.conv3", f"{name}.bn3"
    features = _convolve(features, 4 * width, 1, 1, precision, *names, active=False, gamma=last_gamma)
    return layers.ReLU(dtype=precision)(layers.Add(dtype=precision)([features, shortcut]))


def _convolve(
    features: Any,
    width: int,
    kernel: int,
    stride: int,
    precision: str,
    name: str,
    norm: str,
    *,
    active: bool = True,
    gamma: str = "ones",
) -> Any:
    """Convolution, batch norm and, if `active`, ReLU. The padding is symmetric: TensorFlow's own is not at a stride."""
    if kernel > 1 and stride > 1:
        features = layers.ZeroPadding2D(kernel // 2, dtype=precision)(features)
    # An instance each: one that is used again draws the same numbers again.
    initial = tf.keras.initializers.VarianceScaling(2.0, "fan_in", "untruncated_normal")
    padding = "valid" if stride > 1 else "same"
    settings = {"padding": padding, "use_bias": False, "kernel_initializer": initial, "dtype": precision, "name": name}
    features = layers.Conv2D(width, kernel, stride, **settings)(features)
    features = BatchNorm(initial_gamma=gamma, dtype=precision, name=norm)(features)
    return layers.ReLU(dtype=precision)(features) if active else features

"""ResNet-50 v1.5 in Keras, with the layer names of model.py, and the updates of its optimizers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..common.imagenet.tensorflow_import import tensorflow
from . import lars
from .model import MEAN

tf: Any = tensorflow
layers: Any = tf.keras.layers


def replica_variables(variable: Any) -> tuple[Any, ...]:
    """Return the plain variables of a Keras variable, one per replica."""
    return tuple(tf.distribute.get_strategy().experimental_local_results(variable.value))


def current_replica() -> int:
    """Return the index of the replica for which the caller is being traced."""
    return int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))


def build_resnet(
    stages: Sequence[int], classes: int, precision: str = "float32", *, zero_last_gamma: bool = False
) -> Any:
    """Build a `keras.Model` from pixels uint8 [N, H, W, 3] to logits float32 [N, classes], initialized as in model.py.

    `precision` is the Keras policy of all layers except the statistics of batch norms, the global pooling and the dense
    layer. `zero_last_gamma` initializes the last batch norm of each block with zero.
    """
    last_gamma = "zeros" if zero_last_gamma else "ones"
    pixels = tf.keras.Input((None, None, 3), dtype="uint8")
    features = layers.Rescaling(1.0, [-mean for mean in MEAN], dtype="float32", name="mean")(pixels)
    features = _conv_norm_relu(features, 64, 7, 2, precision, "conv1", "bn1")
    # After the ReLU nothing is negative, so padding with zeros equals padding with minus infinity.
    features = layers.MaxPooling2D(3, 2, dtype=precision)(layers.ZeroPadding2D(1, dtype=precision)(features))
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            name = f"layer{stage + 1}.{block}"
            features = _bottleneck(features, 64 << stage, stride, block == 0, precision, last_gamma, name)
    features = layers.GlobalAveragePooling2D(dtype="float32")(features)
    initializer = tf.keras.initializers.RandomNormal(stddev=0.01)
    logits = layers.Dense(classes, kernel_initializer=initializer, dtype="float32", name="fc")(features)
    return tf.keras.Model(pixels, logits)


def load_torch(model: Any, state: Mapping[str, Tensor]) -> None:
    """Load weights and moving statistics from a `state_dict` of model.py's network."""
    for layer in model.layers:
        for variable in layer.weights:
            key, convert = _TORCH_VARIABLES[variable.name]
            values = convert(state[f"{layer.name}.{key}"].detach().cpu()).contiguous().numpy()
            variable.assign(values)


def undecayed_paths(model: Any, optimizer: str) -> set[str]:
    """Return the paths of weights without weight decay and LARS scaling: batch norms, and with LARS all vectors."""
    return {
        variable.path
        for layer in model.layers
        for variable in layer.trainable_variables
        if isinstance(layer, BatchNorm) or (optimizer == "lars" and len(variable.shape) == 1)
    }


def apply_sgd(weight: Any, velocity: Any, gradient: Any, rate: Any, momentum: float, decay: float | None) -> None:
    """Update as torch.optim.SGD does: the learning rate is not part of the momentum."""
    _apply_momentum(weight, velocity, gradient + decay * weight if decay else gradient, rate, momentum)


def apply_lars(weight: Any, velocity: Any, gradient: Any, rate: Any, momentum: float, decay: float | None) -> None:
    """Update as lars.py does: the rate, scaled by layer unless `decay` is None, is part of the momentum."""
    update = gradient
    if decay is not None:
        weight_norm, gradient_norm = tf.norm(weight), tf.norm(gradient)
        trust_ratio = lars.TRUST_COEFFICIENT * weight_norm / (gradient_norm + decay * weight_norm)
        has_norms = (weight_norm > 0) & (gradient_norm > 0)
        update = (gradient + decay * weight) * tf.where(has_norms, trust_ratio, 1.0)
    _apply_momentum(weight, velocity, rate * update, 1.0, momentum)


def _apply_momentum(weight: Any, velocity: Any, update: Any, rate: Any, momentum: float) -> None:
    """Update in one kernel: TensorFlow may order a sum of three terms differently on each replica."""
    weight, velocity = weight.handle, velocity.handle
    tf.raw_ops.ResourceApplyMomentum(var=weight, accum=velocity, lr=rate, grad=update, momentum=momentum)


class BatchNorm(layers.Layer):  # type: ignore[misc]
    """The fused kernel with PyTorch's moving statistics; Keras' own layer does not use it in half precision.

    Each replica normalizes by its own images and updates its own statistics, which are not reduced during training. The
    kernel returns the unbiased variance, which PyTorch keeps too; Keras' own layer keeps the biased one.
    """

    MOMENTUM, EPSILON = 0.9, 1e-5

    def __init__(self, *, initial_gamma: str = "ones", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._initial_gamma = initial_gamma

    def build(self, shape: Sequence[int | None]) -> None:
        """Create the four vectors in float32, for any policy."""

        def vector(name: str, initializer: str, trainable: bool) -> Any:
            return self.add_weight(
                (shape[-1],), initializer, dtype="float32", trainable=trainable, autocast=False, name=name
            )

        self.gamma, self.beta = vector("gamma", self._initial_gamma, True), vector("beta", "zeros", True)
        self.moving_mean = vector("moving_mean", "zeros", False)
        self.moving_variance = vector("moving_variance", "ones", False)

    def call(self, features: Any, training: bool = False) -> Any:
        """Normalize by the batch in training, else by the moving statistics."""
        moving = [
            replica_variables(variable)[current_replica()] for variable in (self.moving_mean, self.moving_variance)
        ]
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
            for variable, statistic in zip(moving, (result.batch_mean, result.batch_variance), strict=True):
                variable.assign_sub((variable - statistic) * (1 - self.MOMENTUM))
        return result.y

    def compute_output_spec(self, features: Any, training: bool = False) -> Any:
        """Return the input's shape, so that Keras need not call the layer."""
        return tf.keras.KerasTensor(features.shape, self.compute_dtype)


_TORCH_VARIABLES: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "kernel": ("weight", lambda values: values.permute(2, 3, 1, 0) if values.ndim == 4 else values.T),
    "bias": ("bias", lambda values: values),
    "gamma": ("weight", lambda values: values),
    "beta": ("bias", lambda values: values),
    "moving_mean": ("running_mean", lambda values: values),
    "moving_variance": ("running_var", lambda values: values),
}


def _bottleneck(features: Any, width: int, stride: int, first: bool, precision: str, last_gamma: str, name: str) -> Any:
    """Add torchvision's Bottleneck: stride in the 3x3 convolution, projected shortcut in a stage's first block."""
    shortcut = features
    if first:
        names = f"{name}.downsample.0", f"{name}.downsample.1"
        shortcut = _conv_norm_relu(features, 4 * width, 1, stride, precision, *names, relu=False)
    features = _conv_norm_relu(features, width, 1, 1, precision, f"{name}.conv1", f"{name}.bn1")
    features = _conv_norm_relu(features, width, 3, stride, precision, f"{name}.conv2", f"{name}.bn2")
    names = f"{name}.conv3", f"{name}.bn3"
    features = _conv_norm_relu(features, 4 * width, 1, 1, precision, *names, relu=False, gamma=last_gamma)
    return layers.ReLU(dtype=precision)(layers.Add(dtype=precision)([features, shortcut]))


def _conv_norm_relu(
    features: Any,
    width: int,
    kernel: int,
    stride: int,
    precision: str,
    name: str,
    norm: str,
    *,
    relu: bool = True,
    gamma: str = "ones",
) -> Any:
    """Add convolution, batch norm and, if `relu`, ReLU; padding is symmetric, unlike TensorFlow's with a stride."""
    if kernel > 1 and stride > 1:
        features = layers.ZeroPadding2D(kernel // 2, dtype=precision)(features)
    # One instance per layer: a reused one draws the same numbers again.
    initializer = tf.keras.initializers.VarianceScaling(2.0, "fan_in", "untruncated_normal")
    padding = "valid" if stride > 1 else "same"
    settings = {
        "padding": padding,
        "use_bias": False,
        "kernel_initializer": initializer,
        "dtype": precision,
        "name": name,
    }
    features = layers.Conv2D(width, kernel, stride, **settings)(features)
    features = BatchNorm(initial_gamma=gamma, dtype=precision, name=norm)(features)
    return layers.ReLU(dtype=precision)(features) if relu else features

"""The TensorFlow engine: ResNet-50 in one process on the GPUs of a machine, with MirroredStrategy."""

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ...runner.core import execution_paths
from ...runner.core.errors import ConfigurationError, Diverged
from ...runner.training import seeds
from ...runner.training.engine import EvalResult, StepResult, TrainingStats
from ..common.imagenet.tensorflow_import import tensorflow
from ..common.imagenet.tfdata_loader import TfDataImageNetData
from . import tensorflow_devices, tensorflow_model
from .tensorflow_devices import raise_out_of_memory, to_torch
from .tensorflow_model import apply_lars, apply_sgd, current_replica, replica_variables, undecayed_paths
from .workload import ResNet50

tf: Any = tensorflow
_compile = functools.partial(tf.function, jit_compile=True, autograph=False)

_POLICIES = {"fp32": "float32", "tf32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
_INITIAL_SCALE, _SCALE_GROWTH_INTERVAL = 2.0**16, 2000  # those of torch.amp.GradScaler


class TensorFlowEngine:
    """Trains `workload` on all images of `data`; each replica is one GPU and trains its slice of each batch.

    The replicas hold plain copies of all variables and sum their gradients, so that all copies are updated alike. Batch
    norms use the images of their replica only, as in PyTorch. Raises `ConfigurationError` and `DeviceError` for
    settings that are not supported.
    """

    def __init__(
        self,
        workload: ResNet50,
        data: TfDataImageNetData,
        *,
        global_batch_size: int,
        accumulation: int,
        precision: str,
        gpus: int,
        compile_mode: str | None,
        run_seeds: seeds.Seeds,
    ) -> None:
        if not isinstance(data, TfDataImageNetData):  # `timetrial throughput` wraps the data
            raise ConfigurationError(
                "engine=tensorflow cannot be measured by `timetrial throughput`: "
                "read the throughput that `timetrial run` prints, or measure engine=torch data=tfdata."
            )
        if accumulation > 1:
            raise ConfigurationError("engine=tensorflow does not accumulate gradients: use more GPUs or engine=torch.")
        if workload.settings.block != "bottleneck":
            raise ConfigurationError(
                "engine=tensorflow has no basic blocks: remove recipe.training.block or use engine=torch."
            )
        if compile_mode not in (None, "default"):
            raise ConfigurationError("engine=tensorflow compiles with XLA only: use engine.compile=default.")
        self.workload, self.data, self.global_batch_size = workload, data, global_batch_size
        devices = tensorflow_devices.select_devices(gpus, precision, on_cpu=data.device.type == "cpu")
        self.replicas, self.compiled = len(devices), compile_mode is not None
        execution_paths.take("model", "compiled" if self.compiled else "not compiled")
        tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
        tf.keras.utils.set_random_seed(run_seeds.initialization % 2**32)
        self.strategy = tf.distribute.MirroredStrategy(devices)
        with self.strategy.scope():
            settings = workload.settings
            self.model = tensorflow_model.build_resnet(
                settings.stages, data.num_classes, _POLICIES[precision], zero_last_gamma=settings.zero_last_gamma
            )
            self._statistics = {
                variable.path: replica_variables(variable) for variable in self.model.non_trainable_variables
            }
            self._weights = {variable.path: replica_variables(variable) for variable in self.model.trainable_variables}
            zeros = {path: tf.Variable(tf.zeros(copies[0].shape), False) for path, copies in self._weights.items()}
        self._momenta = {path: self.strategy.experimental_local_results(zero) for path, zero in zeros.items()}
        self._undecayed_paths = undecayed_paths(self.model, settings.optimizer)
        self._scaling = precision == "fp16"
        self._scale = tf.Variable(_INITIAL_SCALE if self._scaling else 1.0, trainable=False)
        self._finite_steps = tf.Variable(0.0, trainable=False)  # since the last overflow
        self._loss_sum = tf.Variable(0.0, trainable=False)
        self._steps = self._updates = 0
        self._data_wait_seconds = 0.0
        self._position = (0, 0)  # current epoch, and steps made in it
        self._build_functions(data.image_size)

    def mlperf_params(self) -> dict[str, Any]:
        """Return sizes and hyperparameters under their MLPerf names."""
        return {
            "global_batch_size": self.global_batch_size,
            "gradient_accumulation_steps": 1,
            **self.workload.mlperf_params(),
            **self.data.mlperf_params(),
            "model_bn_span": math.ceil(self.global_batch_size / self.replicas),  # the data assumes one replica
            "train_samples": self.data.train_size,
            "eval_samples": self.data.eval_size,
            "timetrial_engine": "tensorflow",
        }

    def warm_up(self, steps: int = 3) -> None:
        """Trace, compile and allocate on random pixels, then restore the state: nothing is learned."""
        state = self.state_dict()
        generator, image_size = np.random.default_rng(0), self.data.image_size

        def images(size: int) -> tuple[Any, Any]:
            pixels = generator.integers(256, size=(size, image_size, image_size, 3), dtype=np.uint8)
            return tf.constant(pixels), tf.constant(generator.integers(self.data.num_classes, size=size))

        batch = images(self.data.step_size)
        for _ in range(steps):
            self._train(*batch)
        with raise_out_of_memory():
            self._count_correct(*images(self._eval_batch_size()))
        self.load_state_dict(state)

    def open_data(self) -> None:
        """Open the data; there is one process."""
        self.data.open()

    def train_epoch(self, epoch: int) -> Iterator[StepResult]:
        """Train the 1-based `epoch`; after a resume within it, only its remaining steps."""
        current_epoch, steps = self._position
        if epoch < current_epoch:  # resumed in a later epoch
            return
        steps = steps if current_epoch == epoch else 0
        plan = self.data.train_plan(epoch)[steps:]
        batches = self.data.tensorflow_batches(True, ((epoch, indices) for indices in plan))
        for _ in plan:
            started = time.perf_counter()
            pixels, labels = next(batches)
            self._data_wait_seconds += time.perf_counter() - started
            self._train(pixels, labels)
            steps += 1
            self._position = (epoch, steps)
            yield StepResult(self.data.step_size)

    def synchronize(self) -> TrainingStats:
        """Wait for all devices and return the statistics since the last call; raise `Diverged` for NaN."""
        with raise_out_of_memory():
            tf.test.experimental.sync_devices()
        loss, data_wait_seconds = float(self._loss_sum.numpy()) / max(1, self._steps), self._data_wait_seconds
        self._loss_sum.assign(0.0)
        self._steps, self._data_wait_seconds = 0, 0.0
        if not math.isfinite(loss):
            raise Diverged(
                "The training loss is no longer a finite number: lower the learning rate, or use precision=fp32."
            )
        return TrainingStats(loss, data_wait_seconds)

    def evaluate(self, stop_requested: Callable[[], bool] = lambda: False) -> EvalResult | None:
        """Return the top-1 accuracy over all validation images, or None if `stop_requested` ended it early."""
        for copies in self._statistics.values() if self.replicas > 1 else ():
            mean = sum(copy.numpy() for copy in copies) / self.replicas
            for copy in copies:
                copy.assign(mean)
        batch_size, correct = self._eval_batch_size(), tf.constant(0, tf.int64)
        plan = ((0, indices) for indices in self.data.eval_plan())
        with raise_out_of_memory():
            for pixels, labels in self.data.tensorflow_batches(False, plan):
                if stop_requested():
                    return None
                # Pad to one batch size, so that nothing is compiled on the clock; no prediction equals the label -1.
                padding = batch_size - len(labels)
                pixels = tf.pad(pixels, [(0, padding), (0, 0), (0, 0), (0, 0)])
                correct += self._count_correct(pixels, tf.pad(labels, [(0, padding)], constant_values=-1))
            return EvalResult(self.workload.score([(int(correct), self.data.eval_size)]))

    def state_dict(self) -> dict[str, Any]:
        """Return weights, statistics of all replicas, momenta, loss scale, and the position in data and schedule."""
        return {
            "weights": {path: to_torch(copies[0]) for path, copies in self._weights.items()},
            "momenta": {path: to_torch(copies[0]) for path, copies in self._momenta.items()},
            "statistics": {
                path: torch.stack([to_torch(copy) for copy in copies]) for path, copies in self._statistics.items()
            },
            "scale": float(self._scale.numpy()),
            "finite_steps": float(self._finite_steps.numpy()),
            "loss_sum": float(self._loss_sum.numpy()),
            "steps": self._steps,
            "updates": self._updates,
            "position": self._position,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict()` of the same number of replicas."""
        for name, variables in (("weights", self._weights), ("momenta", self._momenta)):
            for path, copies in variables.items():
                for copy in copies:
                    copy.assign(state[name][path].numpy())
        for path, copies in self._statistics.items():
            for copy, values in zip(copies, state["statistics"][path], strict=True):
                copy.assign(values.numpy())
        self._scale.assign(state["scale"])
        self._finite_steps.assign(state["finite_steps"])
        self._loss_sum.assign(state["loss_sum"])
        self._steps, self._updates, self._position = state["steps"], state["updates"], tuple(state["position"])

    def _eval_batch_size(self) -> int:
        return max(self.replicas, len(self.data.eval_plan()[0]))

    def _train(self, pixels: Any, labels: Any) -> None:
        """Make one update without waiting for the device."""
        rate = self.workload.learning_rate(self._updates, self.data.steps_per_epoch)
        with raise_out_of_memory():
            self._step(pixels, labels, tf.constant(rate, tf.float32))
        self._steps += 1
        self._updates += 1

    def _build_functions(self, image_size: int) -> None:
        """Build the step and evaluation functions; they are traced at the first call, once for all batch sizes."""
        images = [tf.TensorSpec((None, image_size, image_size, 3), tf.uint8), tf.TensorSpec((None,), tf.int64)]
        signature = [*images, tf.TensorSpec((), tf.float32)]
        # Only the parts within a replica are compiled: the strategy sums the gradients.
        compile_function = _compile if self.compiled else lambda function: function
        self._step = tf.function(self._build_step(compile_function), input_signature=signature, autograph=False)
        predict = compile_function(lambda pixels: tf.argmax(self.model(pixels, training=False), 1))

        def count_correct_on_replica(pixels: Any, labels: Any) -> Any:
            pixels, labels = self._slice(pixels, labels)
            return tf.math.count_nonzero(predict(pixels) == labels)

        def count_correct(pixels: Any, labels: Any) -> Any:
            counts = self.strategy.run(count_correct_on_replica, (pixels, labels))
            return self.strategy.reduce(tf.distribute.ReduceOp.SUM, counts, axis=None)

        self._count_correct = tf.function(count_correct, input_signature=images, autograph=False)

    def _build_step(self, compile_function: Callable[[Any], Any]) -> Callable[[Any, Any, Any], None]:
        """Return the training step, with forward-backward and update passed through `compile_function`."""
        backward = compile_function(self._backward)
        updates = [compile_function(self._build_update(number)) for number in range(self.replicas)]

        def step(pixels: Any, labels: Any, rate: Any) -> None:
            batch_size, scale = tf.cast(tf.shape(labels)[0], tf.float32), self._scale.read_value()

            def on_replica() -> Any:
                results = backward(*self._slice(pixels, labels), batch_size, scale)
                return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, results)

            summed = [self.strategy.experimental_local_results(tensor) for tensor in self.strategy.run(on_replica)]
            self._loss_sum.assign_add(summed[0][0])
            for number, update in enumerate(updates):
                with tf.device(next(iter(self._weights.values()))[number].device):
                    finite = update([tensors[number] for tensors in summed[1:]], rate, scale)
            if self._scaling:
                self._adjust_scale(finite, scale)

        return step

    def _slice(self, pixels: Any, labels: Any) -> tuple[Any, Any]:
        """Return this replica's images of a batch, sliced on the host, so that a GPU receives only its own."""
        with tf.device("CPU:0"):
            size, number = tf.shape(labels)[0], current_replica()
            part = slice(size * number // self.replicas, size * (number + 1) // self.replicas)
            return pixels[part], labels[part]

    def _backward(self, pixels: Any, labels: Any, batch_size: Any, scale: Any) -> list[Any]:
        """Return this replica's part of the mean loss, and the gradients of it times `scale`."""
        weights = [copies[current_replica()] for copies in self._weights.values()]
        smoothing, classes = self.workload.settings.label_smoothing, self.data.num_classes
        targets = tf.one_hot(labels, classes, 1 - smoothing + smoothing / classes, smoothing / classes)
        with tf.GradientTape() as tape:
            logits = self.model(pixels, training=True)
            loss = tf.reduce_sum(tf.nn.softmax_cross_entropy_with_logits(targets, logits)) / batch_size
            scaled = loss * scale if self._scaling else loss
        return [loss, *tape.gradient(scaled, weights)]

    def _build_update(self, number: int) -> Callable[[Sequence[Any], Any, Any], Any]:
        """Return a function that updates a replica if the gradients are finite, and returns whether they are."""
        weights = [copies[number] for copies in self._weights.values()]
        momenta = [copies[number] for copies in self._momenta.values()]
        settings = self.workload.settings
        decays = [None if path in self._undecayed_paths else settings.weight_decay for path in self._weights]
        apply_optimizer = apply_lars if settings.optimizer == "lars" else apply_sgd

        def apply(gradients: Sequence[Any], rate: Any) -> Any:
            for weight, velocity, gradient, decay in zip(weights, momenta, gradients, decays, strict=True):
                apply_optimizer(weight, velocity, gradient, rate, settings.momentum, decay)
            return tf.constant(True)

        def update(gradients: Sequence[Any], rate: Any, scale: Any) -> Any:
            if not self._scaling:
                return apply(gradients, rate)
            gradients = [gradient / scale for gradient in gradients]
            finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])
            return tf.cond(finite, lambda: apply(gradients, rate), lambda: tf.constant(False))

        return update

    def _adjust_scale(self, finite: Any, scale: Any) -> None:
        """Halve the scale after an overflow, double it after many steps without one."""
        finite_steps = tf.where(finite, self._finite_steps + 1, 0.0)
        grow = finite_steps >= _SCALE_GROWTH_INTERVAL
        self._scale.assign(tf.where(finite, tf.where(grow, scale * 2, scale), scale / 2))
        self._finite_steps.assign(tf.where(grow, 0.0, finite_steps))

"""engine=tensorflow: ResNet-50 in one process over the GPUs of a machine (MirroredStrategy)."""

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ...runner.core.errors import ConfigurationError, DeviceError, Diverged, OutOfMemory
from ...runner.training import seeds
from ...runner.training.engine import EvalResult, StepResult, TrainingStats
from ..common.imagenet.tensorflow_import import tensorflow
from ..common.imagenet.tfdata_loader import TfDataImageNetData
from . import tensorflow_model
from .tensorflow_model import copies, move_by_lars, move_by_sgd, replica, undecayed
from .workload import ResNet50

tf: Any = tensorflow
_compile = functools.partial(tf.function, jit_compile=True, autograph=False)

_POLICIES = {"fp32": "float32", "tf32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
_FIRST_SCALE, _STEPS_TO_DOUBLE = 2.0**16, 2000  # those of torch.amp.GradScaler


class TensorFlowEngine:
    """Trains `workload` on all images that `data` reads; every replica is one GPU and takes its slice of each batch.

    The replicas hold plain copies of all variables and add up their gradients, so that every copy makes the same
    update. Batch norms see the images of their replica alone, as torch's do. Raises `ConfigurationError` and
    `DeviceError` for what it cannot run.
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
        if not isinstance(data, TfDataImageNetData):  # as the measuring command wraps them
            raise ConfigurationError(
                "engine=tensorflow cannot be measured by `timetrial throughput`: "
                "read the throughput that `timetrial run` prints, or measure engine=torch data=tfdata."
            )
        if accumulation > 1:
            raise ConfigurationError("engine=tensorflow does not accumulate gradients: use more GPUs or engine=torch.")
        if workload.settings.block != "bottleneck":
            raise ConfigurationError("engine=tensorflow has no basic blocks: leave out block, or use engine=torch.")
        if compile_mode not in (None, "default"):
            raise ConfigurationError("engine=tensorflow compiles with XLA alone: use engine.compile=default.")
        self.workload, self.data, self.global_batch_size = workload, data, global_batch_size
        devices = _devices(gpus, precision, on_cpu=data.device.type == "cpu")
        self.replicas, self.compiled = len(devices), compile_mode is not None
        tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
        tf.keras.utils.set_random_seed(run_seeds.initialization % 2**32)
        self.strategy = tf.distribute.MirroredStrategy(devices)
        with self.strategy.scope():
            chosen = workload.settings
            self.model = tensorflow_model.build(
                chosen.stages, data.num_classes, _POLICIES[precision], zero_last_gamma=chosen.zero_last_gamma
            )
            # Batch norms' moving statistics come last in this order: they alone are not trained.
            self._moving = {variable.path: copies(variable) for variable in self.model.non_trainable_variables}
            self._weights = {variable.path: copies(variable) for variable in self.model.trainable_variables}
            zeros = {path: tf.Variable(tf.zeros(those[0].shape), False) for path, those in self._weights.items()}
        self._momenta = {path: self.strategy.experimental_local_results(zero) for path, zero in zeros.items()}
        self._undecayed = undecayed(self.model, chosen.optimizer)
        self._scaling = precision == "fp16"
        self._scale = tf.Variable(_FIRST_SCALE if self._scaling else 1.0, trainable=False)
        self._whole_steps = tf.Variable(0.0, trainable=False)  # since an overflow
        self._loss_sum = tf.Variable(0.0, trainable=False)
        self._steps = self._updates = 0
        self._waited = 0.0
        self._position = (0, 0)  # the epoch last trained in, and the steps made in it
        self._make_functions(data.image_size)

    def mlperf_params(self) -> dict[str, Any]:
        """Sizes and hyperparameters under their MLPerf names."""
        return {
            "global_batch_size": self.global_batch_size,
            "gradient_accumulation_steps": 1,
            **self.workload.mlperf_params(),
            **self.data.mlperf_params(),
            "model_bn_span": math.ceil(self.global_batch_size / self.replicas),  # the data know of one rank
            "train_samples": self.data.train_size,
            "eval_samples": self.data.eval_size,
            "timetrial_engine": "tensorflow",
        }

    def warm_up(self, steps: int = 3) -> None:
        """Traces, compiles and allocates on random pixels, then puts the state back as it was: nothing is learned."""
        before = self.state_dict()
        generator, edge = np.random.default_rng(0), self.data.image_size

        def images(size: int) -> tuple[Any, Any]:
            pixels = generator.integers(256, size=(size, edge, edge, 3), dtype=np.uint8)
            return tf.constant(pixels), tf.constant(generator.integers(self.data.num_classes, size=size))

        for size in sorted(set(self._plan(1)[0])):  # the last batch of an epoch may be smaller
            batch = images(size)
            for _ in range(steps):
                self._train(*batch)
        with _enough_memory():
            self._count_right(*images(self._eval_width()))
        self.load_state_dict(before)

    def train_epoch(self, number: int) -> Iterator[StepResult]:
        """Trains the 1-based epoch `number`; after a resume in its middle, only the steps that are left."""
        epoch, made = self._position
        if number < epoch:  # resumed in a later epoch of this block
            return
        made = made if epoch == number else 0
        sizes, plan = self._plan(number)
        batches = self.data.batches(True, number, plan[made:])
        for size in sizes[made:]:
            started = time.perf_counter()
            pixels, labels = next(batches)
            self._waited += time.perf_counter() - started
            self._train(pixels, labels)
            made += 1
            self._position = (number, made)
            yield StepResult(size)

    def synchronize(self) -> TrainingStats:
        """Waits for all devices; sums up since the last call, or raises `Diverged`."""
        with _enough_memory():
            tf.test.experimental.sync_devices()
        loss, waited = float(self._loss_sum.numpy()) / max(1, self._steps), self._waited
        self._loss_sum.assign(0.0)
        self._steps, self._waited = 0, 0.0
        if not math.isfinite(loss):
            raise Diverged(
                "The training loss is no longer a finite number: lower the learning rate, or use precision=fp32."
            )
        return TrainingStats(loss, waited)

    def evaluate(self) -> EvalResult:
        """Top-1 accuracy, every validation image counted once."""
        for moving in self._moving.values() if self.replicas > 1 else ():
            mean = sum(copy.numpy() for copy in moving) / self.replicas
            for copy in moving:
                copy.assign(mean)
        width, right = self._eval_width(), tf.constant(0, tf.int64)
        with _enough_memory():
            for pixels, labels in self.data.batches(False, 0, self.data.eval_plan()):
                # Padded to one width, so that nothing is compiled on the clock; no guess equals the label -1.
                missing = width - len(labels)
                pixels = tf.pad(pixels, [(0, missing), (0, 0), (0, 0), (0, 0)])
                right += self._count_right(pixels, tf.pad(labels, [(0, missing)], constant_values=-1))
            return EvalResult(self.workload.score([(int(right), self.data.eval_size)]))

    def state_dict(self) -> dict[str, Any]:
        """Weights, statistics of all replicas, momenta, loss scale, and the position in data and schedule."""
        return {
            "weights": {path: _to_torch(those[0]) for path, those in self._weights.items()},
            "momenta": {path: _to_torch(those[0]) for path, those in self._momenta.items()},
            "moving": {path: torch.stack([_to_torch(copy) for copy in those]) for path, those in self._moving.items()},
            "scale": float(self._scale.numpy()),
            "whole_steps": float(self._whole_steps.numpy()),
            "loss_sum": float(self._loss_sum.numpy()),
            "steps": self._steps,
            "updates": self._updates,
            "position": self._position,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up a `state()` of the same number of replicas."""
        for name, variables in (("weights", self._weights), ("momenta", self._momenta)):
            for path, those in variables.items():
                for copy in those:
                    copy.assign(state[name][path].numpy())
        for path, those in self._moving.items():
            for copy, values in zip(those, state["moving"][path], strict=True):
                copy.assign(values.numpy())
        self._scale.assign(state["scale"])
        self._whole_steps.assign(state["whole_steps"])
        self._loss_sum.assign(state["loss_sum"])
        self._steps, self._updates, self._position = state["steps"], state["updates"], tuple(state["position"])

    def _plan(self, epoch: int) -> tuple[list[int], list[list[int]]]:
        """The epoch's batches and their sizes, without one that is too small for every replica to have an image."""
        sizes, plan = self.data.train_plan(epoch)
        kept = sum(size >= self.replicas for size in sizes)
        return sizes[:kept], plan[:kept]

    def _eval_width(self) -> int:
        return max(self.replicas, len(self.data.eval_plan()[0]))

    def _train(self, pixels: Any, labels: Any) -> None:
        """One update. Nothing here waits for the device."""
        rate = self.workload.rate(self._updates, self.data.steps_per_epoch)
        # XLA compiles for every size anew: not worth it on the clock for the smaller batch that ends an epoch.
        whole = len(labels) == min(self.global_batch_size, self.data.train_size)
        step = self._step if whole else self._rare_step
        with _enough_memory():
            step(pixels, labels, tf.constant(rate, tf.float32))
        self._steps += 1
        self._updates += 1

    def _make_functions(self, edge: int) -> None:
        """Traces are made at the first call; None in a signature spares another trace for another batch size."""
        images = [tf.TensorSpec((None, edge, edge, 3), tf.uint8), tf.TensorSpec((None,), tf.int64)]
        signature = [*images, tf.TensorSpec((), tf.float32)]
        self._rare_step = tf.function(
            self._step_of(lambda function: function), input_signature=signature, autograph=False
        )
        self._step, guess = self._rare_step, lambda pixels: tf.argmax(self.model(pixels, training=False), 1)
        if self.compiled:
            # Only what runs within one replica is compiled: adding up the gradients is left to the strategy.
            self._step = tf.function(self._step_of(_compile), input_signature=signature, autograph=False)
            guess = _compile(guess)

        def right_on_replica(pixels: Any, labels: Any) -> Any:
            pixels, labels = self._slice(pixels, labels)
            return tf.math.count_nonzero(guess(pixels) == labels)

        def count_right(pixels: Any, labels: Any) -> Any:
            counts = self.strategy.run(right_on_replica, (pixels, labels))
            return self.strategy.reduce(tf.distribute.ReduceOp.SUM, counts, axis=None)

        self._count_right = tf.function(count_right, input_signature=images, autograph=False)

    def _step_of(self, compiled: Callable[[Any], Any]) -> Callable[[Any, Any, Any], None]:
        """The training step, its two parts passed through `compiled`."""
        backward = compiled(self._backward)
        updates = [compiled(self._update_of(number)) for number in range(self.replicas)]

        def step(pixels: Any, labels: Any, rate: Any) -> None:
            total, scale = tf.cast(tf.shape(labels)[0], tf.float32), self._scale.read_value()

            def on_replica() -> Any:
                own = backward(*self._slice(pixels, labels), total, scale)
                return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, own)

            summed = [self.strategy.experimental_local_results(tensor) for tensor in self.strategy.run(on_replica)]
            self._loss_sum.assign_add(summed[0][0])
            for number, update in enumerate(updates):
                with tf.device(next(iter(self._weights.values()))[number].device):
                    finite = update([tensors[number] for tensors in summed[1:]], rate, scale)
            if self._scaling:
                self._adjust_scale(finite, scale)

        return step

    def _slice(self, pixels: Any, labels: Any) -> tuple[Any, Any]:
        """This replica's images of a batch; cut on the host, so that no GPU receives those of the others."""
        with tf.device("CPU:0"):
            size, number = tf.shape(labels)[0], replica()
            mine = slice(size * number // self.replicas, size * (number + 1) // self.replicas)
            return pixels[mine], labels[mine]

    def _backward(self, pixels: Any, labels: Any, total: Any, scale: Any) -> list[Any]:
        """This replica's share of the mean loss, and of its gradients times `scale`."""
        weights = [those[replica()] for those in self._weights.values()]
        smoothing, classes = self.workload.settings.label_smoothing, self.data.num_classes
        targets = tf.one_hot(labels, classes, 1 - smoothing + smoothing / classes, smoothing / classes)
        with tf.GradientTape() as tape:
            logits = self.model(pixels, training=True)
            loss = tf.reduce_sum(tf.nn.softmax_cross_entropy_with_logits(targets, logits)) / total
            scaled = loss * scale if self._scaling else loss
        return [loss, *tape.gradient(scaled, weights)]

    def _update_of(self, number: int) -> Callable[[Sequence[Any], Any, Any], Any]:
        """Updates a replica's weights where the gradients are finite, and returns whether they are."""
        weights = [those[number] for those in self._weights.values()]
        momenta = [those[number] for those in self._momenta.values()]
        chosen = self.workload.settings
        decays = [None if path in self._undecayed else chosen.weight_decay for path in self._weights]
        move = move_by_lars if chosen.optimizer == "lars" else move_by_sgd

        def apply(gradients: Sequence[Any], rate: Any) -> Any:
            for weight, velocity, gradient, decay in zip(weights, momenta, gradients, decays, strict=True):
                move(weight, velocity, gradient, rate, chosen.momentum, decay)
            return tf.constant(True)

        def update(gradients: Sequence[Any], rate: Any, scale: Any) -> Any:
            if not self._scaling:
                return apply(gradients, rate)
            gradients = [gradient / scale for gradient in gradients]
            finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])
            return tf.cond(finite, lambda: apply(gradients, rate), lambda: tf.constant(False))

        return update

    def _adjust_scale(self, finite: Any, scale: Any) -> None:
        """Halves the scale after an overflow, doubles it after many steps without one."""
        whole_steps = tf.where(finite, self._whole_steps + 1, 0.0)
        doubled = whole_steps >= _STEPS_TO_DOUBLE
        self._scale.assign(tf.where(finite, tf.where(doubled, scale * 2, scale), scale / 2))
        self._whole_steps.assign(tf.where(doubled, 0.0, whole_steps))


def _devices(gpus: int, precision: str, *, on_cpu: bool) -> list[str]:
    """The first `gpus` GPUs, made the only ones that TensorFlow allocates on, or the CPU; raises `DeviceError`."""
    found = [] if on_cpu else tf.config.list_physical_devices("GPU")
    if on_cpu and gpus > 1:
        raise DeviceError(f"engine=tensorflow has one replica on a CPU, not {gpus}: use gpus=1, or engine=torch.")
    if not on_cpu and gpus > len(found):
        raise DeviceError(f"TensorFlow finds {len(found)} GPUs here, not {gpus}: install one built for these GPUs.")
    used = found[:gpus]
    details = [tf.config.experimental.get_device_details(gpu) for gpu in used]
    old = [each.get("device_name", "This GPU") for each in details if each.get("compute_capability", (8,)) < (8,)]
    if precision == "tf32" and not used:
        old = ["The CPU"]
    if old and precision in ("tf32", "bf16"):
        raise DeviceError(f"{old[0]} has no {precision.upper()} units: use precision=fp32 or precision=fp16.")
    try:
        tf.config.set_visible_devices(used, "GPU")  # it takes nearly all memory of those that it may see
    except RuntimeError as error:
        raise ConfigurationError("TensorFlow has begun with other GPUs in this process: use launcher=local.") from error
    return [f"GPU:{number}" for number in range(len(used))] or ["CPU:0"]


@contextmanager
def _enough_memory() -> Iterator[None]:
    """Raises `OutOfMemory` where TensorFlow runs out of it."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise OutOfMemory("The batch does not fit into memory: lower recipe.global_batch_size.") from error


def _to_torch(variable: Any) -> torch.Tensor:
    return torch.tensor(variable.numpy())

"""Count the floating-point operations and the memory traffic of training steps.

As in `torch.utils.flop_counter`, the operations are those of matrix products, convolutions, recurrent layers and
attention; a multiply-add counts as two. Elementwise operations are left out, as in papers on models.
"""

import itertools
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from ..record.throughput_result import StepCost
from .engine import Engine
from .torch_engine import TorchEngine
from .workload import Batch

_STEPS, _MAX_SECONDS = 4, 10.0  # several steps, because the lengths of texts vary; fewer if counting is slow
_aten = torch.ops.aten


def try_count_flops(engine: Engine) -> StepCost | None:
    """Return the cost of training steps; None if counting fails, which must not lose a finished measurement."""
    if not isinstance(engine, TorchEngine):
        return None
    try:
        return count_flops(engine)
    except Exception as error:
        print(f"Counting operations failed: {type(error).__name__}: {error}", file=sys.stderr)
        return None


def count_flops(engine: TorchEngine) -> StepCost:
    """Count steps of `engine` on its first batches, which leaves its weights and gradients unusable.

    The model runs uncompiled, so that every operation is seen. There is no communication with other ranks.
    """
    engine.optimizer.zero_grad(set_to_none=True)
    engine.model.train()
    operations = unfused_bytes = batch_bytes = samples = tokens = updates = 0.0
    steps, started = 0, time.monotonic()
    with torch.compiler.set_stance("force_eager"), engine.replication.paused():
        for step, batch in _micro_batches(engine):
            flop_counter, byte_counter = make_counters()
            with flop_counter, byte_counter:
                with engine.precision.autocast():
                    loss = engine.workload.compute_loss(engine.model, batch) / max(batch.weight, 1.0)
                loss.backward()
            operations += flop_counter.get_total_flops()
            unfused_bytes += byte_counter.total
            batch_bytes += sum(map(_num_bytes, _find_tensors(batch.inputs)))
            # Micro-batches can differ by a sample.
            equal_fraction = 1 / engine.world.size / engine.accumulation
            fraction = batch.weight / batch.global_weight if batch.global_weight else equal_fraction
            samples += batch.global_samples * fraction
            tokens += batch.global_tokens * fraction
            updates += 1 / engine.accumulation
            steps = step
            if time.monotonic() - started > _MAX_SECONDS:
                break
        with ByteCounter() as update_counter:
            engine.optimizer.step()
    parameters = list(engine.model.parameters())
    state = [*parameters, *(parameter.grad for parameter in parameters if parameter.grad is not None)]
    state += _find_tensors(list(engine.optimizer.state.values()))
    return StepCost(
        steps=steps,
        samples=samples,
        tokens=tokens,
        operations=operations,
        unfused_bytes=unfused_bytes + updates * update_counter.total,
        least_bytes=batch_bytes + updates * 2 * sum(map(_num_bytes, state)),
    )


def _micro_batches(engine: TorchEngine) -> Iterator[tuple[int, Batch]]:
    """Yield this rank's micro-batches of the first steps, each with its 1-based step."""
    for step, micro_batches in enumerate(itertools.islice(engine.data.train_batches(1), _STEPS), start=1):
        for batch in micro_batches:
            yield step, batch


class ByteCounter(TorchDispatchMode):
    """Sum in `total` the bytes of the tensors that operations read and write, without views and empty tensors.

    Kernels that bypass torch's dispatcher are not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._overloadpacket.__name__ if isinstance(func, torch._ops.OpOverload) else ""
        if name and not func.is_view and not name.startswith(_WITHOUT_TRAFFIC):
            kwargs = kwargs or {}
            written = sum(map(_num_bytes, _find_tensors(out)))
            inputs = args[1:] if name in _OVERWRITING else [args, [kwargs[key] for key in kwargs if key != "out"]]
            read = sum(map(_num_bytes, _find_tensors(inputs)))
            # A look-up reads the selected rows, not the table.
            self.total += written + (min(read, 2 * written) if name in _LOOK_UPS else read)
            if func._schema.is_mutable and not _find_tensors(out):  # _foreach operations change tensors in place
                self.total += sum(map(_num_bytes, _mutated_tensors(func, args)))
        return out


_WITHOUT_TRAFFIC = (
    *("empty", "new_empty", "detach", "_unsafe_view", "_reshape_alias"),
    *("_local_scalar", "is_", "_has_", "record_"),
)
_OVERWRITING = ("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_")
_LOOK_UPS = ("embedding", "index_select", "gather", "index", "take")


def make_counters() -> tuple[FlopCounterMode, ByteCounter]:
    """Return new counters of operations and of bytes, to be entered in this order."""
    return FlopCounterMode(display=False, custom_mapping=dict(_FORMULAS)), ByteCounter()


def _recurrent_flops(passes: int, x: Sequence[int], weights: Sequence[Sequence[int]]) -> int:
    """Count the products of the rows of x [..., input] with each weight matrix of a recurrent layer."""
    return passes * 2 * math.prod(x[:-1]) * sum(math.prod(weight) for weight in weights if len(weight) == 2)


def _addmm_flops(_: Any, a: Sequence[int], b: Sequence[int], *__: Any, **___: Any) -> int:
    return 2 * math.prod(a) * b[-1]


def _rnn_flops(passes: int) -> Any:
    """Return the formula of an operator that takes a list of weights."""
    return lambda x, weights, *_, **__: _recurrent_flops(passes, x, weights)


def _rnn_layer_flops(passes: int) -> Any:
    """Return the formula of an operator that takes the input and the recurrent weights one by one."""
    return lambda x, input_weight, recurrent_weight, *_, **__: _recurrent_flops(
        passes, x, [input_weight, recurrent_weight]
    )


def _convolution_backward_flops(
    grad_out: Sequence[int], x: Sequence[int], weight: Sequence[int], _bias: Any, _stride: Any, _padding: Any,
    _dilation: Any, transposed: bool, _output_padding: Any, _groups: int, output_mask: Sequence[bool], **__: Any,
) -> int:  # fmt: skip
    """Count the gradients of input and weight: each as many operations as the forward pass.

    The shape of the weight [out, in / groups, ...] accounts for the groups.
    """
    positions = math.prod((x if transposed else grad_out)[2:])
    return sum(map(bool, output_mask[:2])) * 2 * grad_out[0] * positions * math.prod(weight)


# Operators that torch's registry lacks (in-place, with vectors, recurrent, attention on CPUs), and one whose formula
# there ignores groups: the backward pass of convolutions.
_FORMULAS: Mapping[Any, Any] = {
    _aten.convolution_backward: _convolution_backward_flops,
    _aten.addmm_: _addmm_flops,
    _aten.baddbmm_: _addmm_flops,
    _aten.mv: lambda matrix, *_, **__: 2 * math.prod(matrix),
    _aten.addmv: lambda _, matrix, *__, **___: 2 * math.prod(matrix),
    _aten.dot: lambda vector, *_, **__: 2 * math.prod(vector),
    _aten._cudnn_rnn: _rnn_flops(1),
    _aten._cudnn_rnn_backward: _rnn_flops(2),
    _aten.mkldnn_rnn_layer: _rnn_layer_flops(1),
    _aten.mkldnn_rnn_layer_backward: _rnn_layer_flops(2),
    _aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda grad_out, q, k, v, *_, **__: (
        sdpa_backward_flop_count(grad_out, q, k, v)
    ),
}


def _num_bytes(tensor: Tensor) -> int:
    """Return the memory of the tensor's elements; an expanded tensor counts its storage once."""
    if tensor.device.type == "meta":
        return 0
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())


def _mutated_tensors(func: Any, args: Sequence[Any]) -> Iterator[Tensor]:
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _find_tensors(value)


def _find_tensors(tree: Any) -> list[Tensor]:
    """Return all tensors in nested tuples, lists, mappings and dataclasses."""
    if is_dataclass(tree) and not isinstance(tree, type):
        return _find_tensors([getattr(tree, field.name) for field in fields(tree)])
    leaves = tree_leaves(tree)
    nested = (_find_tensors(leaf) for leaf in leaves if is_dataclass(leaf) and not isinstance(leaf, type))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)] + list(itertools.chain.from_iterable(nested))

"""How many operations and bytes a training step takes: torch's counter of operations, and one of bytes like it.

Operations are those of matrix products, convolutions, recurrent layers and attention, a multiply-add being two, as
`torch.utils.flop_counter` counts them: what runs over single numbers is left out, as model papers leave it out.
"""

import itertools
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from .engine import Engine
from .torch_engine import TorchEngine
from .workload import Batch

_STEPS, _PATIENCE_SECONDS = 4, 10.0  # texts differ from step to step: so many are counted, or for so long
_aten = torch.ops.aten


@dataclass(frozen=True)
class Counted:
    """What one device does for `samples` samples with `tokens` tokens, over `steps` steps.

    `unfused_bytes` is the traffic of device memory if every operation reads its inputs and writes its outputs there:
    fused kernels and caches save some of it. `least_bytes` is what no execution gets around: weights, gradients and the
    optimizer's state each read and written once a step, the batch read once. The truth lies between.
    """

    steps: int
    samples: float
    tokens: float
    operations: float
    unfused_bytes: float
    least_bytes: float


def counted(engine: Engine) -> dict[str, Any] | None:
    """`count` for status.json; None where it does not work: a measurement that is over must not be lost by that."""
    if not isinstance(engine, TorchEngine):
        return None
    try:
        return asdict(count(engine))
    except Exception as error:
        print(f"Operations were not counted: {type(error).__name__}: {error}", file=sys.stderr)
        return None


def count(engine: TorchEngine) -> Counted:
    """Counts real steps of `engine` on its first batches; its weights and gradients are spoiled by that.

    The model runs uncompiled, so that every operation is seen. No other rank is asked for anything.
    """
    engine.optimizer.zero_grad(set_to_none=True)
    engine.unwrapped_model.train()
    operations = unfused = batches = samples = tokens = updates = 0.0
    steps, began = 0, time.monotonic()
    with torch.compiler.set_stance("force_eager"):
        for number, batch in _shares(engine):
            operation_counter, byte_counter = counters()
            with operation_counter, byte_counter:
                with engine.precision.autocast():
                    loss = engine.workload.compute_loss(engine.unwrapped_model, batch) / max(batch.weight, 1.0)
                loss.backward()
            operations += operation_counter.get_total_flops()
            unfused += byte_counter.total
            batches += sum(map(_bytes, _tensors(batch.inputs)))
            even = 1 / engine.world.size / engine.accumulation  # ranks and micro-batches can differ by a sample
            share = batch.weight / batch.global_weight if batch.global_weight else even
            samples += batch.global_samples * share
            tokens += batch.global_tokens * share
            updates += 1 / engine.accumulation
            steps = number
            if time.monotonic() - began > _PATIENCE_SECONDS:
                break
        with ByteCounter() as update:
            engine.optimizer.step()
    parameters = list(engine.unwrapped_model.parameters())
    kept = [*parameters, *(one.grad for one in parameters if one.grad is not None)]
    kept += _tensors(list(engine.optimizer.state.values()))
    least = batches + updates * 2 * sum(map(_bytes, kept))
    return Counted(steps, samples, tokens, operations, unfused + updates * update.total, least)


def _shares(engine: TorchEngine) -> Iterator[tuple[int, Batch]]:
    """This rank's micro-batches of the first steps, with the number of their step."""
    for number, micro_batches in enumerate(itertools.islice(engine.data.train_batches(1), _STEPS), start=1):
        for batch in micro_batches:
            yield number, batch


class ByteCounter(TorchDispatchMode):
    """Adds up in `total` the bytes of the tensors that operations read and write, views and empty tensors left out.

    Kernels that are started past torch's dispatcher are not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._overloadpacket.__name__ if isinstance(func, torch._ops.OpOverload) else ""
        if name and not func.is_view and not name.startswith(_FREE):
            told = kwargs or {}
            written = sum(map(_bytes, _tensors(out)))
            given = args[1:] if name in _OVERWRITING else [args, [told[key] for key in told if key != "out"]]
            read = sum(map(_bytes, _tensors(given)))
            # Who looks rows up reads those and not the table.
            self.total += written + (min(read, 2 * written) if name in _LOOKING_UP else read)
            if func._schema.is_mutable and not _tensors(out):  # lists of tensors that are changed where they are
                self.total += sum(_bytes(one) for one in _changed(func, args))
        return out


_FREE = ("empty", "new_empty", "detach", "_unsafe_view", "_reshape_alias", "_local_scalar", "is_", "_has_", "record_")
_OVERWRITING = ("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_")
_LOOKING_UP = ("embedding", "index_select", "gather", "index", "take")


def counters() -> tuple[FlopCounterMode, ByteCounter]:
    """Fresh counters of operations (a multiply-add being two) and bytes, to be entered in this order."""
    return FlopCounterMode(display=False, custom_mapping=dict(_FORMULAS)), ByteCounter()


def _recurrent(times: int, x: Sequence[int], weights: Sequence[Sequence[int]]) -> int:
    """A recurrent layer's products: each of the rows of x [..., I] with each weight matrix."""
    return times * 2 * math.prod(x[:-1]) * sum(math.prod(one) for one in weights if len(one) == 2)


def _added(_: Any, one: Sequence[int], other: Sequence[int], *__: Any, **___: Any) -> int:
    return 2 * math.prod(one) * other[-1]


def _listed(times: int) -> Any:
    return lambda x, weights, *_, **__: _recurrent(times, x, weights)


def _named(times: int) -> Any:
    return lambda x, own, past, *_, **__: _recurrent(times, x, [own, past])


def _convolved_back(
    given: Sequence[int], x: Sequence[int], w: Sequence[int], _b: Any, _s: Any, _p: Any, _d: Any, transposed: bool,
    _o: Any, _groups: int, wanted: Sequence[bool], **__: Any,
) -> int:  # fmt: skip
    """Gradients of input and weight: as many operations each as the forward pass, whose weight has its groups in it."""
    places = math.prod((x if transposed else given)[2:])
    return sum(map(bool, wanted[:2])) * 2 * given[0] * places * math.prod(w)


# What torch's own registry lacks, in place, with vectors, recurrent layers, attention on processors; and what it gets
# wrong: the way back of convolutions in groups.
_FORMULAS: Mapping[Any, Any] = {
    _aten.convolution_backward: _convolved_back,
    _aten.addmm_: _added,
    _aten.baddbmm_: _added,
    _aten.mv: lambda matrix, *_, **__: 2 * math.prod(matrix),
    _aten.addmv: lambda _, matrix, *__, **___: 2 * math.prod(matrix),
    _aten.dot: lambda vector, *_, **__: 2 * math.prod(vector),
    _aten._cudnn_rnn: _listed(1),
    _aten._cudnn_rnn_backward: _listed(2),
    _aten.mkldnn_rnn_layer: _named(1),
    _aten.mkldnn_rnn_layer_backward: _named(2),
    _aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda given, q, k, v, *_, **__: (
        sdpa_backward_flop_count(given, q, k, v)
    ),
}


def _bytes(tensor: Tensor) -> int:
    """What of memory the tensor's elements are, each place counted once where it was expanded."""
    if tensor.device.type == "meta":
        return 0
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())


def _changed(func: Any, args: Sequence[Any]) -> Iterator[Tensor]:
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(value)


def _tensors(thing: Any) -> list[Tensor]:
    """All tensors in tuples, lists, mappings and dataclasses."""
    if is_dataclass(thing) and not isinstance(thing, type):
        return _tensors([getattr(thing, field.name) for field in fields(thing)])
    leaves = tree_leaves(thing)
    inside = (_tensors(leaf) for leaf in leaves if is_dataclass(leaf) and not isinstance(leaf, type))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)] + list(itertools.chain.from_iterable(inside))

"""Functions that torch.compile leaves as they are.

Runs that compile nothing do without PyTorch's compiler, whose import would take 2 to 4 s of their start. PyTorch
loads it where a function that it excludes is called, such as `Optimizer.zero_grad`.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch._compile import _disable_dynamo
from torch.optim import SGD, Adam, AdamW, Optimizer

_Function = TypeVar("_Function", bound=Callable[..., Any])

_EXCLUDED = "__dynamo_disable"  # where `_disable_dynamo` keeps what it calls in place of a function
_optimizer_methods = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
_functions: list[Any] = [inspect.unwrap(getattr(Optimizer, name)) for name in _optimizer_methods]


def keep_eager(function: _Function) -> _Function:
    """Exclude a function from compilation; a decorator that, unlike `torch.compiler.disable`, loads no compiler."""
    _functions.append(function)
    excluded: Any = _disable_dynamo(function)
    return cast(_Function, excluded)


def leave_compiler_unloaded() -> None:
    """Let excluded functions and the steps of PyTorch's optimizers run without `torch._dynamo`, from now on."""
    for function in _functions:
        setattr(function, _EXCLUDED, function)
    for optimizer in (Adam, AdamW, SGD):
        if "step" in vars(optimizer):  # PyTorch wraps it for optimizers that are compiled or differentiated themselves
            optimizer.step = torch.no_grad()(inspect.unwrap(optimizer.step))  # type: ignore[method-assign]


def use_compiler() -> None:
    """Exclude functions from compilation again, for a model that is compiled in this process."""
    for function in _functions:
        vars(function).pop(_EXCLUDED, None)

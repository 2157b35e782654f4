"""Operators that torch.compile takes as a whole."""

from collections.abc import Callable
from typing import Any

import torch


def operator(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Make an operator of a function of tensors that changes none of them; a decorator.

    `torch.library.custom_op` would load the compiler at the operator's first call, also in runs that compile nothing.
    """

    def register(function: Callable[..., Any]) -> Any:
        torch.library.define(name, torch.library.infer_schema(function, mutates_args=()))
        torch.library.impl(name, "CompositeExplicitAutograd", function)
        namespace, short_name = name.split("::")
        return getattr(getattr(torch.ops, namespace), short_name)

    return register

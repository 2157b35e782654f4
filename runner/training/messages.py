"""Values as bytes, for exchange between ranks: JSON, followed by the raw elements of tensors and arrays.

Decoding runs no code, unlike pickle: a rank that lies can only send wrong values.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

_HEADER = struct.Struct("<Q")  # bytes of the JSON text
_KIND = "kind"


def encode(value: Any) -> Tensor:
    """Return `value` as a uint8 tensor.

    A value is None, a number, a text, bytes, a tensor (it arrives on the CPU), an array, or a list, tuple or dict of
    values. Raises `TypeError` for anything else.
    """
    elements: list[bytes] = []
    text = json.dumps(_to_plain(value, elements)).encode()
    return torch.frombuffer(bytearray(b"".join([_HEADER.pack(len(text)), text, *elements])), dtype=torch.uint8)


def decode(message: Tensor) -> Any:
    """Return the value of a message; raise `ValueError` if it is none."""
    data = message.numpy().tobytes()
    (length,) = _HEADER.unpack_from(data)
    plain = json.loads(data[_HEADER.size : _HEADER.size + length])
    return _from_plain(plain, _Reader(data, _HEADER.size + length))


def fields_of(value: Any) -> Any:
    """Return the fields of a dataclass as a tuple, anything else unchanged."""
    return tuple(getattr(value, field.name) for field in fields(value)) if is_dataclass(value) else value


def like(own: Any, received: Any) -> Any:
    """Return `received`, the `fields_of` a value of another rank, as a value of the type of `own`."""
    constructor: Any = type(own)
    return constructor(*received) if is_dataclass(own) else received


class _Reader:
    """Read the elements behind the JSON text, in the order in which they were written."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data, self._position = data, position

    def read(self, size: int) -> bytes:
        part = self._data[self._position : self._position + size]
        if size < 0 or len(part) != size:
            raise ValueError("a message of another rank is too short")
        self._position += size
        return part


def _to_plain(value: Any, elements: list[bytes]) -> Any:
    def convert(item: Any) -> Any:
        return _to_plain(item, elements)

    match value:
        case None | bool() | str():
            return value
        case int() | float():
            return value
        case list():
            return [convert(item) for item in value]
        case tuple():
            return {_KIND: "tuple", "items": [convert(item) for item in value]}
        case dict():
            return {_KIND: "dict", "items": [[convert(key), convert(item)] for key, item in value.items()]}
        case bytes():
            elements.append(value)
            return {_KIND: "bytes", "size": len(value)}
        case Tensor():
            # NumPy has no bfloat16: the elements travel as bytes.
            tensor = value.detach().cpu().contiguous()
            elements.append(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
            return {_KIND: "tensor", "dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
        case np.ndarray() if not value.dtype.hasobject:
            elements.append(np.ascontiguousarray(value).tobytes())
            return {_KIND: "array", "dtype": value.dtype.str, "shape": list(value.shape)}
    raise TypeError(f"ranks cannot exchange a {type(value).__name__}")


def _from_plain(plain: Any, reader: _Reader) -> Any:
    if isinstance(plain, list):
        return [_from_plain(item, reader) for item in plain]
    if not isinstance(plain, dict):
        return plain
    match plain.get(_KIND):
        case "tuple":
            return tuple(_from_plain(item, reader) for item in plain["items"])
        case "dict":
            return {_from_plain(key, reader): _from_plain(item, reader) for key, item in plain["items"]}
        case "bytes":
            return reader.read(plain["size"])
        case "tensor":
            dtype = getattr(torch, plain["dtype"], None)
            if not isinstance(dtype, torch.dtype):
                raise ValueError(f"a message of another rank has a tensor of type {plain['dtype']}")
            content = bytearray(reader.read(_num_elements(plain["shape"]) * dtype.itemsize))
            return (
                torch.frombuffer(content, dtype=torch.uint8).view(dtype).reshape(plain["shape"])
                if content
                else (torch.empty(plain["shape"], dtype=dtype))
            )
        case "array":
            array_dtype = np.dtype(plain["dtype"])
            content = bytearray(reader.read(_num_elements(plain["shape"]) * array_dtype.itemsize))
            return np.frombuffer(content, array_dtype).reshape(plain["shape"])
    raise ValueError("a message of another rank has a value of unknown kind")


def _num_elements(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))

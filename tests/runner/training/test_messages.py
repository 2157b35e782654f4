"""Messages between ranks: values come back equal, and bytes of a stranger run no code."""

import math
import pickle
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from timetrial.runner.training import messages

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


def roundtrip(value):
    return messages.decode(messages.encode(value))


@given(PLAIN)
def test_plain_values_come_back_equal_and_of_the_same_type(value):
    result = roundtrip(value)
    assert result == value
    assert repr(result) == repr(value)  # tells a tuple from a list, and 1 from True


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3, 4)])
def test_tensors_come_back_equal(dtype, shape):
    tensor = (torch.randn(shape) * 3).to(dtype)
    result = roundtrip([1, tensor, tensor])
    assert result[0] == 1
    for part in result[1:]:
        assert (part.dtype, part.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(part, tensor)


def test_arrays_of_any_layout_come_back_equal_and_writable():
    array = np.arange(12, dtype=np.int32).reshape(3, 4).T
    result = roundtrip({"array": array})["array"]
    np.testing.assert_array_equal(result, array)
    result += 1


def test_values_that_are_not_finite_come_back():
    infinite, nan = roundtrip([math.inf, math.nan])
    assert infinite == math.inf
    assert math.isnan(nan)


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array([object()])])
def test_other_values_are_refused(value):
    with pytest.raises(TypeError, match="ranks cannot exchange"):
        messages.encode(value)


def test_dataclass_travels_as_its_fields():
    @dataclass
    class Part:
        number: int
        scores: torch.Tensor

    own, other = Part(1, torch.ones(2)), Part(2, torch.zeros(2))
    received = messages.like(own, roundtrip(messages.fields_of(other)))
    assert (type(received), received.number) == (Part, 2)
    assert messages.like(5, roundtrip(messages.fields_of(6))) == 6


class _Mark:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_pickle_in_a_message_is_not_executed(tmp_path):
    attack = pickle.dumps(_Mark(tmp_path / "mark"))
    for message in (attack, len(attack).to_bytes(8, "little") + attack):
        with pytest.raises(ValueError, match=r"decode|Expecting"):
            messages.decode(torch.frombuffer(bytearray(message), dtype=torch.uint8))
    assert not (tmp_path / "mark").exists()
    pickle.loads(attack).close()
    assert (tmp_path / "mark").exists()  # the attack is a real one


@given(st.binary(min_size=8))
def test_random_bytes_are_refused_or_decoded_as_plain_values(data):
    with suppress(ValueError):
        messages.decode(torch.frombuffer(bytearray(data), dtype=torch.uint8))

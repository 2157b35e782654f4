"""Run one program of a Triton kernel on tensors too large to allocate, in the interpreter, and check its addresses.

Programs of the `interpret` fixture import it. The interpreter computes in the integer types that a GPU would use, so an
offset of 32 bits overflows here too.
"""

import contextlib
from unittest.mock import patch

import numpy as np
from triton.runtime import interpreter

_SPACE = 1 << 48  # of addresses for each tensor, which starts in its middle; memory of the process lies below the first


class HugeTensor:
    """A tensor without memory, which reads as zeros; `first` and `last` are the outermost elements reached."""

    _count = 0

    def __init__(self, dtype, size):
        HugeTensor._count += 1
        self.dtype, self.size, self.address = dtype, size, HugeTensor._count * _SPACE + _SPACE // 2
        self.first, self.last = size, -1

    def data_ptr(self):
        """Return the address, which Triton asks for."""
        return self.address

    def record(self, addresses):
        """Note which elements are reached; fail if one lies outside."""
        elements = (addresses.astype(np.int64) - self.address) // self.dtype.itemsize
        self.first, self.last = min(self.first, int(elements.min())), max(self.last, int(elements.max()))
        assert 0 <= self.first <= self.last < self.size, f"reached {self.first} to {self.last} of {self.size}"


def run_program(kernel, index, grid, **arguments):
    """Run the program at `index` of `grid`, three numbers each; tensors are `HugeTensor`s or small ones on the CPU."""
    builder = interpreter.interpreter_builder
    huge = {value.address // _SPACE: value for value in arguments.values() if isinstance(value, HugeTensor)}
    load, store = builder.create_masked_load, builder.create_masked_store

    def is_recorded(pointers, mask):
        addresses = pointers.data[mask.data]
        numbers = np.unique(addresses // _SPACE).tolist()
        assert len(numbers) < 2, "an access reached two tensors"
        if numbers and numbers[0]:
            huge[numbers[0]].record(addresses)
        return numbers != [0]

    def recorded_load(pointers, mask, *options):
        if not is_recorded(pointers, mask):
            return load(pointers, mask, *options)
        dtype = pointers.get_element_ty()
        return interpreter.TensorHandle(np.zeros(pointers.data.shape, interpreter._get_np_dtype(dtype)), dtype)

    def recorded_store(pointers, value, mask, *options):
        if not is_recorded(pointers, mask):
            store(pointers, value, mask, *options)

    constants = kernel.fn.__annotations__
    values = {key: value if key in constants else interpreter._implicit_cvt(value) for key, value in arguments.items()}
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(builder, "create_masked_load", recorded_load))
        stack.enter_context(patch.object(builder, "create_masked_store", recorded_store))
        stack.callback(interpreter._patch_lang(kernel.fn).restore)
        builder.set_grid_dim(*grid)
        builder.set_grid_idx(*index)
        kernel.rewrite()(**values)

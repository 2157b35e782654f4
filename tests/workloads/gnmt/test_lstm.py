"""The LSTM kernels in Triton's interpreter, against nn.LSTM in float64, sentence by sentence."""

import pytest

from timetrial.workloads.gnmt import lstm

INTERPRETED = """
import itertools, torch
from timetrial.workloads.gnmt.lstm import packed_lstm
torch.manual_seed(1)
of_many = (5, 70, [3] * 20 + [2] * 15)
for inputs, units, lengths in ((6, 4, [5, 3, 3, 1]), (8, 16, [1, 1]), (4, 24, [7]), (3, 300, [4, 4, 2]), of_many):
    layer = torch.nn.LSTM(inputs, units)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.uniform_(-0.8, 0.8)
    batch_sizes = [sum(length > step for length in lengths) for step in range(lengths[0])]
    x, grad_out = torch.randn(sum(lengths), inputs), torch.randn(sum(lengths), 2 * units)
    inputs = x.clone().requires_grad_()
    out = packed_lstm(layer, inputs, batch_sizes)
    (torch.cat([out, out.detach()], 1) * grad_out).sum().backward()  # the gradient of `out` is not contiguous
    (grad_of_sum,) = torch.autograd.grad(packed_lstm(layer, inputs, batch_sizes).sum(), inputs)  # of strides 0
    gradients = {name: weight.grad.double() for name, weight in layer.named_parameters()}
    starts = [0, *itertools.accumulate(batch_sizes)]
    wide = x.double().requires_grad_()
    layer.double().zero_grad()
    expected = torch.zeros(len(x), units, dtype=torch.float64)
    for number, length in enumerate(lengths):
        indices = [starts[step] + number for step in range(length)]
        expected[indices] = layer(wide[indices][:, None])[0][:, 0]
    (expected_of_sum,) = torch.autograd.grad(expected.sum(), wide, retain_graph=True)
    torch.testing.assert_close(grad_of_sum.double(), expected_of_sum, rtol=1e-4, atol=1e-5)
    (expected * grad_out[:, :units]).sum().backward()
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(inputs.grad.double(), wide.grad, rtol=1e-4, atol=1e-5)
    for name, weight in layer.named_parameters():
        torch.testing.assert_close(gradients[name], weight.grad, rtol=1e-4, atol=1e-5)
"""

HUGE = """
import torch
from huge_tensors import HugeTensor, run_program
from timetrial.workloads.gnmt import lstm
sentences, units = 1_500_000, 1536  # more than 2**31 units
gates, dgates = (HugeTensor(torch.bfloat16, sentences * 4 * units) for _ in range(2))
c, previous_c, dc = (HugeTensor(torch.float32, sentences * units) for _ in range(3))
h, recurrent_dh = (HugeTensor(torch.bfloat16, sentences * units) for _ in range(2))
dh = HugeTensor(torch.bfloat16, sentences * 2 * units)
shared = dict(gates_ptr=gates, c_ptr=c, previous_c_ptr=previous_c, num_sentences=sentences)
shared |= dict(H=units, FIRST=False, BLOCK=lstm._BLOCK)
programs = sentences * units // lstm._BLOCK
last = (programs - 1, 0, 0), (programs, 1, 1)
run_program(lstm._cell_forward, *last, h_ptr=h, **shared)
grads = dict(dh_ptr=dh, recurrent_dh_ptr=recurrent_dh, dc_ptr=dc, dgates_ptr=dgates)
run_program(lstm._cell_backward, *last, num_next_sentences=sentences, dh_stride=2 * units, **grads, **shared)
for tensor in (gates, dgates, c, previous_c, h, recurrent_dh, dc):
    assert tensor.last == tensor.size - 1
assert dh.last == dh.size - 1 - units
"""


def test_outputs_and_gradients_equal_float64(interpret):
    interpret(INTERPRETED)


def test_last_program_of_a_time_step_beyond_2_to_31_units_reaches_its_own_elements(interpret):
    interpret(HUGE)


@pytest.mark.integration
@pytest.mark.parametrize(("capability", "dtype"), [(75, "fp16"), (80, "fp32"), (90, "bf16")])
@pytest.mark.parametrize("first", [False, True])
def test_compiles_for_gpus(compile_for_gpu, capability, dtype, first):
    types = dict.fromkeys(("gates_ptr", "h_ptr", "dh_ptr", "recurrent_dh_ptr", "dgates_ptr"), f"*{dtype}")
    types |= dict.fromkeys(("c_ptr", "previous_c_ptr", "dc_ptr"), "*fp32")
    constants = {"H": 1024, "FIRST": first, "BLOCK": lstm._BLOCK}
    for kernel in (lstm._cell_forward, lstm._cell_backward):
        compile_for_gpu(kernel, capability, {k: v for k, v in types.items() if k in kernel.arg_names}, constants)

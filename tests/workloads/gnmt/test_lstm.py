"""The LSTM's kernels by Triton's interpreter, against nn.LSTM in float64 sentence by sentence."""

INTERPRETED = """
import itertools, torch
from timetrial.workloads.gnmt.lstm import packed_lstm
torch.manual_seed(1)
for inputs, units, lengths in ((6, 4, [5, 3, 3, 1]), (8, 16, [1, 1]), (4, 24, [7]), (3, 300, [4, 4, 2])):
    layer = torch.nn.LSTM(inputs, units)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.uniform_(-0.8, 0.8)
    alive = torch.tensor([sum(length > at for length in lengths) for at in range(lengths[0])])
    x, given = torch.randn(sum(lengths), inputs), torch.randn(sum(lengths), units)
    ours = x.clone().requires_grad_()
    found = packed_lstm(layer, ours, alive)
    (found * given).sum().backward()
    gradients = {name: weight.grad.double() for name, weight in layer.named_parameters()}
    starts = [0, *itertools.accumulate(alive.tolist())]
    wide = x.double().requires_grad_()
    layer.double().zero_grad()
    right = torch.zeros(len(x), units, dtype=torch.float64)
    for number, length in enumerate(lengths):
        places = [starts[at] + number for at in range(length)]
        right[places] = layer(wide[places][:, None])[0][:, 0]
    (right * given).sum().backward()
    torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.grad.double(), wide.grad, rtol=1e-4, atol=1e-5)
    for name, weight in layer.named_parameters():
        torch.testing.assert_close(gradients[name], weight.grad, rtol=1e-4, atol=1e-5)
"""


def test_outputs_and_gradients_are_those_of_float64(interpret):
    interpret(INTERPRETED)

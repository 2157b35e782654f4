"""The most probable words: the kernel in Triton's interpreter against PyTorch in float64."""

import torch

from timetrial.workloads.common.translation.top_words import top_words

INTERPRETED = """
import torch
from timetrial.workloads.common.translation.kernels import top_words
torch.manual_seed(1)
for vocab_size, count in ((5, 5), (37, 8), (9001, 8), (9001, 5), (8192, 1)):
    logits = 3 * torch.randn(6, vocab_size)
    logits[1] += 80.0
    logits[2] = torch.arange(vocab_size).flip(0) / 100  # falling: none of a later block is among the best
    logits[3] = torch.arange(vocab_size) / 100
    logits[4, : vocab_size // 2] = float("-inf")
    expected, ids = logits.double().log_softmax(1).topk(count)
    found = top_words(logits, count)
    torch.testing.assert_close(found[0].double(), expected, rtol=1e-5, atol=2e-5)
    distinct = expected[:, -1].isfinite()
    assert torch.equal(found[1][distinct], ids[distinct])
    half = logits[:1].bfloat16()
    half[0, :2] = 100.0  # the lower id of equal logits comes first
    assert top_words(half, min(count, 2))[1].tolist()[0] == [0, 1][: min(count, 2)]
"""


def test_kernel_equals_pytorch(interpret):
    interpret(INTERPRETED)


def test_words_fall_in_probability_and_are_no_more_than_there_are():
    words = top_words(torch.tensor([[0.0, 2.0, 1.0]]), 8)
    assert words.ids.tolist() == [[1, 2, 0]]
    torch.testing.assert_close(words.log_probabilities.exp().sum(1), torch.ones(1))

"""The most probable words after each hypothesis of a beam search.

Shapes: R rows, V vocabulary, W words.
"""

from typing import NamedTuple

from torch import Tensor

from ..nn.triton_support import triton_available
from . import kernels


class TopWords(NamedTuple):
    """Words by falling probability: `log_probabilities` float32 [R, W], and `ids` int64 [R, W]."""

    log_probabilities: Tensor
    ids: Tensor


def top_words(logits: Tensor, count: int) -> TopWords:
    """Return the `count` most probable words of each row, or all of a smaller vocabulary; `logits` are [R, V]."""
    count = min(count, logits.shape[1])
    if triton_available(logits):
        return TopWords(*kernels.top_words(logits.contiguous(), count))
    return TopWords(*logits.float().log_softmax(1).topk(count))

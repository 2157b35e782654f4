#!/usr/bin/env python
"""Measure the Transformer's attention kernels on a global batch of the reference recipe, in bf16 with dropout.

    python -P scripts/measure/attention.py [KEY=VALUE...]

Prints one JSON line for each attention (self-attention of encoder and decoder, and cross-attention) and each way to
launch its kernels: microseconds of the forward and of the backward pass, medians of many, and as `floors` those of
reading and writing their bytes once at the bandwidth of a copy. "tiles" are the kernels for long sentences, the others
those for whole sentences: block, warps and stages of each, and the heads of a program. Leave the GPU idle.
"""

import itertools
import json
import sys
import tempfile

import torch
import triton
from torch import Tensor

from timetrial.runner.config.compose import compose
from timetrial.runner.config.validation import validate
from timetrial.runner.hardware import devices
from timetrial.runner.launch import worker
from timetrial.runner.launch.overrides import with_accelerator
from timetrial.runner.training.distributed import World
from timetrial.workloads.transformer import kernels
from timetrial.workloads.transformer.data import PackedPairs, PackedSentences

_COPIED_BYTES = 1 << 30
_HEADS = (4, 1, 2, 8, 16)  # of a program, first those with which blocks are compared
_BLOCKS = {  # block, warps, stages of each kernel
    "32:2:1 64:4:1": ((32, 2, 1), (64, 4, 1)),
    "32:2:2 64:4:2": ((32, 2, 2), (64, 4, 2)),
    "32:4:1 64:4:1": ((32, 4, 1), (64, 4, 1)),
    "32:4:2 64:8:2": ((32, 4, 2), (64, 8, 2)),
    "32:4:3 64:4:2": ((32, 4, 3), (64, 4, 2)),
    "64:4:1": ((64, 4, 1),),
}


def first_batch(overrides: list[str]) -> tuple[PackedPairs, int, int]:
    """Return the inputs of the first training batch, and the number and size of heads."""
    with tempfile.TemporaryDirectory() as folder:
        choices = ["workload=transformer", "scale=reference", "data=synthetic", "precision=bf16", *overrides]
        config = validate(compose(with_accelerator([f"run_dir={folder}/run", *choices])).node)
        engine = worker.build_engine(config, World(), devices.select_device(config.accelerator.name, 0))
        engine.open_data()
        (batch, *_), *_ = itertools.islice(engine.data.train_batches(1), 1)
        settings = engine.workload.settings
    return batch.inputs, settings.num_heads, settings.hidden_size // settings.num_heads


def median_us(work) -> float:
    """Return the median time of `work` in microseconds, without that of launches."""
    return triton.testing.do_bench_cudagraph(work, rep=50, return_mode="median") * 1e3


class Attention:
    """One attention of a batch, with random queries, keys and values, to be launched in different ways."""

    def __init__(
        self, name: str, queries: PackedSentences, keys: PackedSentences, heads: int, head_size: int, *, causal: bool
    ) -> None:
        self._name, self._causal, self.max_seqlen = name, causal, max(queries.max_seqlen, keys.max_seqlen)
        shape = (len(queries.ids), 3 if queries is keys else 1, heads, head_size)
        self._q = torch.randn(shape, dtype=torch.bfloat16, device=queries.ids.device)
        self._kv = self._q if queries is keys else self._q.new_empty(len(keys.ids), 2, heads, head_size).normal_()
        self._grad_out = torch.randn_like(self._q[:, 0])
        seed = torch.zeros(1, dtype=torch.int32, device=self._q.device)
        self._layout = (queries.sentence_ids, keys.sentence_ids, queries.cu_seqlens, keys.cu_seqlens, seed)

    def num_bytes(self) -> tuple[int, int]:
        """Return the bytes that the forward and the backward pass read and write."""
        inputs = self._q.nbytes + (0 if self._kv is self._q else self._kv.nbytes)
        return inputs + self._grad_out.nbytes, 2 * inputs + self._grad_out.nbytes

    def measure(self, max_seqlen: int) -> tuple[float, float]:
        """Return microseconds of the forward and the backward pass."""
        options = (max_seqlen, self._causal, 0.1, False)

        def forward() -> tuple[Tensor, Tensor]:
            return kernels._attention(self._q, self._kv, *self._layout, *options)

        out, lse = forward()

        def backward() -> object:
            return kernels._attention_backward(self._grad_out, out, lse, self._q, self._kv, *self._layout, *options)

        return round(median_us(forward), 1), round(median_us(backward), 1)

    def report(self, launched: str, max_seqlen: int, copy_us_per_byte: float) -> float:
        """Measure, print a line and return the sum of both passes."""
        times = self.measure(max_seqlen)
        floors = [round(size * copy_us_per_byte, 1) for size in self.num_bytes()]
        line = {"attention": self._name, "launched": launched, "forward": times[0], "backward": times[1]}
        print(json.dumps({**line, "floors": floors}), flush=True)
        return sum(times)


def launch_as(blocks: str, heads: int) -> str:
    """Set how the kernels of whole sentences are launched, and return its description."""
    kernels._SENTENCES = tuple(
        {"BLOCK": block, "num_warps": warps, "num_stages": stages} for block, warps, stages in _BLOCKS[blocks]
    )
    kernels._HEADS = heads
    return f"{blocks}, {heads} heads"


def main() -> None:
    """Measure all blocks, and with the fastest of them all numbers of heads."""
    batch, heads, head_size = first_batch(sys.argv[1:])
    copied = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device=batch.source.ids.device)
    copy_us = median_us(lambda: copied.clone()) / (2 * _COPIED_BYTES)
    print(json.dumps({"copy_gb_per_s": round(1e-3 / copy_us), "tokens": len(batch.target.ids)}), flush=True)
    source, target = batch
    attentions = [
        Attention("encoder self-attention", source, source, heads, head_size, causal=False),
        Attention("decoder self-attention", target, target, heads, head_size, causal=True),
        Attention("cross-attention", target, source, heads, head_size, causal=False),
    ]

    def measure(blocks: str, heads: int) -> float:
        launched = launch_as(blocks, heads)
        return sum(attention.report(launched, attention.max_seqlen, copy_us) for attention in attentions)

    for attention in attentions:
        attention.report("tiles", kernels._SENTENCES[-1]["BLOCK"] + 1, copy_us)
    fastest = min(_BLOCKS, key=lambda blocks: measure(blocks, _HEADS[0]))
    for heads_of_program in _HEADS[1:]:
        measure(fastest, heads_of_program)


if __name__ == "__main__":
    main()

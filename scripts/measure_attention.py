#!/usr/bin/env python
"""Measure the Transformer's attention kernels on a global batch of the reference recipe, in bf16 with dropout.

    python -P scripts/measure_attention.py [KEY=VALUE...]

Prints one JSON line for each attention (the encoder's, the decoder's own and the one to the source) and each way to
launch the kernels: microseconds of the forward and of the backward pass, medians of many, and `floor`, those of their
bytes read and written once at the bandwidth of a copy. `tiles` are the kernels for long sentences; `heads` are those of
a program of the kernels for whole sentences, `blocks` their block sizes, warps and stages. Leave the GPU idle.
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
from timetrial.runner.training.distributed import World
from timetrial.workloads.transformer import kernels
from timetrial.workloads.transformer.data import PackedPairs

_COPIED_BYTES = 1 << 30
_HEADS = (1, 2, 4, 8, 16)  # of a program
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
        config = validate(compose([f"run_dir={folder}/run", *choices]).node)
        engine = worker.build_engine(config, World(), devices.select_device(config.accelerator.name, 0))
        engine.open_data()
        (batch, *_), *_ = itertools.islice(engine.data.train_batches(1), 1)
        settings = engine.workload.settings
    return batch.inputs, settings.num_heads, settings.hidden_size // settings.num_heads


def median_us(work) -> float:
    """Return the median time of `work` in microseconds, without that of launches."""
    return triton.testing.do_bench_cudagraph(work, rep=50, return_mode="median") * 1e3


def measure(pairs: PackedPairs, heads: int, head_size: int, copy_us_per_byte: float) -> None:
    """Print a line for each attention and way to launch it."""
    source, target = pairs
    cases = {
        "encoder": (source, source, False),
        "decoder": (target, target, True),
        "to the source": (target, source, False),
    }
    for name, (queries, keys, causal) in cases.items():
        is_self_attention = queries is keys
        shape = (len(queries.ids), 3 if is_self_attention else 1, heads, head_size)
        q = torch.randn(shape, dtype=torch.bfloat16, device=queries.ids.device)
        kv = q if is_self_attention else q.new_empty(len(keys.ids), 2, heads, head_size).normal_()
        seed = torch.zeros(1, dtype=torch.int32, device=q.device)
        layout = (queries.sentence_ids, keys.sentence_ids, queries.cu_seqlens, keys.cu_seqlens, seed)
        grad_out = torch.randn_like(q[:, 0])
        num_bytes = 2 * (q.nbytes + (0 if is_self_attention else kv.nbytes)) + grad_out.nbytes  # grads, and theirs
        floors = (num_bytes // 2 + grad_out.nbytes // 2, num_bytes)

        def run(variant: str, max_seqlen: int, **fields) -> None:
            options = (max_seqlen, causal, 0.1, False)  # noqa: B023

            def forward() -> tuple[Tensor, Tensor]:
                return kernels._attention(q, kv, *layout, *options)  # noqa: B023

            out, lse = forward()

            def backward() -> object:
                return kernels._attention_backward(grad_out, out, lse, q, kv, *layout, *options)  # noqa: B023

            times = {"forward": round(median_us(forward), 1), "backward": round(median_us(backward), 1)}
            floor = [round(size * copy_us_per_byte, 1) for size in floors]  # noqa: B023
            print(json.dumps({"attention": name, "kernels": variant, **fields, **times, "floor": floor}), flush=True)  # noqa: B023

        run("tiles", kernels._SENTENCES[-1]["BLOCK"] + 1)
        for blocks, options in _BLOCKS.items():
            kernels._SENTENCES = tuple(
                {"BLOCK": block, "num_warps": warps, "num_stages": stages} for block, warps, stages in options
            )
            for kernels._HEADS in _HEADS:
                run("sentences", queries.max_seqlen, blocks=blocks, heads=kernels._HEADS)


def main() -> None:
    """Measure all."""
    batch, heads, head_size = first_batch(sys.argv[1:])
    copied = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device=batch.source.ids.device)
    copy_us = median_us(lambda: copied.clone())
    print(json.dumps({"copy_gb_per_s": round(2 * _COPIED_BYTES / copy_us / 1e3), "tokens": len(batch.target.ids)}))
    measure(batch, heads, head_size, copy_us / (2 * _COPIED_BYTES))


if __name__ == "__main__":
    main()

"""Kernels that are compiled, and those that the cache holds."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

KERNEL = """
import json

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from timetrial.runner.hardware.kernel_compilation import compiled_kernels


@triton.jit
def add_one(values, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    tl.store(values + offsets, tl.load(values + offsets) + 1)


def compile_kernel(size):
    source = ASTSource(add_one, {"values": "*fp32", "SIZE": "constexpr"}, {"SIZE": size})
    triton.compile(source, target=GPUTarget("cuda", 90, 32))


with compiled_kernels() as cold:
    compile_kernel(32)
    compile_kernel(64)
with compiled_kernels() as warm:
    compile_kernel(64)
compile_kernel(128)
print(json.dumps([len(cold), min(end - begin for begin, end in cold), len(warm)]))
"""


def test_kernels_that_are_not_in_the_cache_are_counted(tmp_path):
    script = tmp_path / "kernel.py"  # Triton reads the source of a kernel from its file
    script.write_text(KERNEL)
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-P", script], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    num_cold, shortest, num_warm = json.loads(done.stdout)
    assert (num_cold, num_warm) == (2, 0)
    assert shortest > 0


def test_triton_is_prepared_as_its_first_kernel_would():
    program = (
        "import sys\n"
        "from timetrial.runner.hardware import kernel_compilation\n"
        "kernel_compilation.prepare_triton()\n"
        "hashed = sys.modules['triton.runtime.cache'].triton_key.cache_info().currsize\n"
        "print(hashed, kernel_compilation._LAZY_IMPORT in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("1 True\n", "")


def test_without_triton_nothing_is_counted():
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "from timetrial.runner.hardware.kernel_compilation import compiled_kernels, prepare_triton\n"
        "prepare_triton()\n"
        "with compiled_kernels() as spans: pass\n"
        "print(spans)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout == "[]\n"

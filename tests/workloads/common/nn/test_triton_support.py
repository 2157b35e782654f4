"""Kernel modules where Triton is not installed."""

import subprocess
import sys

import pytest

IMPORT_WITHOUT_TRITON = """
import importlib, sys
import torch, torchvision  # which import Triton themselves, if they can

sys.modules["triton"] = sys.modules["triton.language"] = None
for name in sys.argv[1:]:
    importlib.import_module(name)
from timetrial.workloads.common.nn.triton_support import has_triton, triton_available
assert not has_triton()
assert not triton_available(torch.empty(0, device="meta"))
"""


@pytest.mark.integration
def test_kernel_modules_can_be_imported_without_triton(root):
    paths = [path for path in (root / "workloads").rglob("*.py") if "triton_support import" in path.read_text()]
    names = ["timetrial." + ".".join(path.relative_to(root).with_suffix("").parts) for path in paths]
    assert "timetrial.workloads.ncf.counter_based" in names
    command = [sys.executable, "-P", "-c", IMPORT_WITHOUT_TRITON, *names]
    completed = subprocess.run(command, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr

"""Runs whose bits can be repeated: each is built in a process of its own, because the choice is that of a process."""

import json
import subprocess
import sys

import pytest

from timetrial.runner.core.errors import DeviceError
from timetrial.runner.hardware.error_translation import to_run_error

SCRIPT = """
import json, os, sys, torch
from timetrial.runner.benchmarks.accept.training import open_engine
_, engine = open_engine(["workload=resnet50", "accelerator=cpu", *sys.argv[1:]], torch.device("cpu"))
searched = torch.backends.cudnn.benchmark
print(json.dumps([torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic, searched,
                  os.environ.get("CUBLAS_WORKSPACE_CONFIG")]))
"""


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], [False, False, False, None]),
        (["engine.cudnn_benchmark=true"], [False, False, True, None]),
        (["engine.cudnn_benchmark=true", "engine.deterministic=true"], [True, True, False, ":4096:8"]),
    ],
)
def test_engine_chooses_its_algorithms(tmp_path, monkeypatch, overrides, expected):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    command = [sys.executable, "-P", "-c", SCRIPT, f"data_dir={tmp_path}", *overrides]
    completed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert json.loads(completed.stdout.splitlines()[-1]) == expected


def test_an_operation_without_a_deterministic_algorithm_is_named():
    error = to_run_error(
        RuntimeError("cumsum_cuda_kernel does not have a deterministic implementation, but you set 'torch.use_")
    )
    assert isinstance(error, DeviceError)
    assert str(error).startswith("cumsum_cuda_kernel has no deterministic algorithm here: leave engine.deterministic")

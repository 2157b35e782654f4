"""Runs that compile nothing load no compiler; runs that compile leave the excluded functions as they are."""

import subprocess
import sys

import pytest

PROGRAM = """
import runpy, sys
try:
    runpy.run_module("timetrial", run_name="__main__", alter_sys=True)
except SystemExit as end:
    assert end.code in (0, 10), end.code
assert "torch.optim" in sys.modules
sys.exit(3 if "torch._dynamo" in sys.modules else 0)
"""

EXCLUSION = """
import torch
from timetrial.runner.training import eager

@eager.keep_eager
def add_one(x):
    seen.append(torch.compiler.is_compiling())
    return x + 1

for choose in (eager.leave_compiler_unloaded, eager.use_compiler):
    choose()
    seen = []
    torch._dynamo.reset()
    assert torch.compile(lambda x: 2 * add_one(x), backend="eager")(torch.ones(1)).item() == 4
    print("traced" if seen == [True] else "excluded")
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("workload", "data"),
    [
        ("ncf", "{num_ratings: 6000}"),
        ("transformer", "{num_train: 400, num_test: 20}"),
        ("resnet50", "{train_per_class: 16, val_per_class: 4}"),
        ("maskrcnn", "{num_train: 40, num_val: 8}"),
    ],
)
def test_a_run_that_compiles_nothing_loads_no_compiler(workload, data, tmp_path):
    words = ["run", f"workload={workload}", "launcher=inline", "accelerator=cpu", "recipe.max_epochs=1", "seed=1"]
    few = [f"recipe.data.generate={data}", f"data_dir={tmp_path}/data", f"run_dir={tmp_path}/run"]
    command = [sys.executable, "-P", "-c", PROGRAM, *words, *few]
    assert subprocess.run(command, capture_output=True).returncode == 0


def test_a_function_is_excluded_where_the_compiler_is_used():
    # In a process of its own: later tests of this one fork, which the compiler forbids.
    output = subprocess.run([sys.executable, "-P", "-c", EXCLUSION], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["traced", "excluded"]

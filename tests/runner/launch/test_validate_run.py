"""What is known of a run before its configuration is validated."""

from importlib.util import find_spec
from pkgutil import resolve_name

import pytest

from timetrial.runner.launch.validate_run import modules_to_import


@pytest.mark.parametrize(("workload", "lazy"), [("cnn", "timm"), ("gnmt", "sacrebleu.metrics.bleu")])
def test_ranks_preload_what_a_workload_imports_lazily(compose, workload, lazy):
    names = modules_to_import(compose(f"workload={workload}"))
    assert names[0] == f"timetrial.workloads.{workload}.workload"
    assert names[-1] == lazy
    assert all(find_spec(name) for name in names)


@pytest.mark.parametrize(
    ("overrides", "prepared"),
    [
        (["accelerator=h100"], ["prepare_triton"]),
        (["accelerator=cpu"], []),
        (["accelerator=h100", "engine.kernels=false"], []),
        (["accelerator=h100", "workload=resnet50", "engine=tensorflow"], []),
    ],
)
def test_ranks_on_an_accelerator_prepare_their_kernels(compose, overrides, prepared):
    names = modules_to_import(compose(*overrides))
    assert [resolve_name(name).__name__ for name in names if ":" in name] == prepared

"""What executed is in the record of a run, in its result and among the differences of a comparison."""

import json
import re
import shutil

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from timetrial.runner.cli.app import app
from timetrial.runner.hardware import custom_kernels
from timetrial.runner.launch.result_table import show_result
from timetrial.runner.record.run_dir import RunDir
from timetrial.workloads.common.nn.triton_support import triton_available
from timetrial.workloads.common.vision.gpu_decode import can_decode

pytestmark = pytest.mark.integration

NCF_ON_A_CPU = {"kernels": "PyTorch", "loader": "torch", "model": "not compiled", "steps": "not captured"}


@pytest.fixture(autouse=True)
def _enable_kernels():
    yield
    custom_kernels.enable(True)


def compare(first, second):
    output = CliRunner().invoke(app, ["compare", str(first), str(second)], catch_exceptions=False).stdout
    return " ".join(output.split())


def copy_with_paths(run_dir, folder, paths):
    """Copy a run directory as another run, which executed `paths`; None: as a version wrote it that kept no paths."""
    shutil.copytree(run_dir.path, folder)
    for log in folder.glob("result_*.txt"):  # another seed, because a copy is no other side
        log.write_text(re.sub(r'("key": "seed", "value": )\d+', rf"\g<1>{len(folder.name)}00", log.read_text()))
    record = json.loads((folder / "status.json").read_text())
    record["execution_paths"] = paths
    if paths is None:
        del record["execution_paths"]
    (folder / "status.json").write_text(json.dumps(record))
    return folder


def test_training_records_and_compare_names_what_executed(launch, tmp_path, capsys):
    _, run_dir = launch()
    assert run_dir.record().execution_paths == NCF_ON_A_CPU
    show_result(Console(width=200), "run", run_dir.record(), run_dir)
    assert (
        "executed      kernels PyTorch, loader torch, model not compiled, steps not captured" in capsys.readouterr().out
    )
    other = copy_with_paths(run_dir, tmp_path / "gpu", NCF_ON_A_CPU | {"kernels": "Triton", "steps": "captured"})
    old = copy_with_paths(run_dir, tmp_path / "old", None)
    assert RunDir(old, 1).record().execution_paths == {}
    output = compare(run_dir.path, other)
    assert "kernels: PyTorch vs. Triton" in output
    assert "steps: not captured vs. captured" in output
    assert "loader: " not in output
    assert "kernels: PyTorch vs. unknown" in compare(run_dir.path, old)
    assert "kernels: " not in compare(old, copy_with_paths(run_dir, tmp_path / "older", None))


def test_throughput_records_and_compare_names_what_executed(launch, tmp_path):
    _, run_dir = launch("throughput.steps=1", "throughput.blocks=2", "engine.compile=default")
    paths = run_dir.record().execution_paths
    assert paths == NCF_ON_A_CPU | {"model": "compiled"}
    other = copy_with_paths(run_dir, tmp_path / "gpu", paths | {"steps": "captured"})
    assert "executed.steps: not captured vs. captured" in compare(run_dir.path, other)
    assert "executed.steps: not captured vs. unknown" in compare(
        run_dir.path, copy_with_paths(run_dir, tmp_path / "old", None)
    )


def test_kernels_can_be_switched_off(launch, compose):
    pytest.importorskip("triton")
    elsewhere = torch.empty(0, device="meta")  # Triton compiles for any device but the CPU
    assert launch("engine.kernels=false")[1].record().execution_paths["kernels"] == "PyTorch"
    assert not triton_available(elsewhere)
    assert not can_decode(torch.device("cuda", 0))
    launch()
    assert triton_available(elsewhere)
    assert can_decode(torch.device("cuda", 0)) == (torch.version.hip is None)
    assert not compose("engine.kernels=false").engine.capture

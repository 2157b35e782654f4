"""Numbers of accelerators of published systems, against what MLPerf's results pages state."""

import json

import pytest

from timetrial.runner.results.parse import sources


def read_v05(log, tmp_path, system, *, accelerator, per_node, nodes, cleared):
    """Return the run in a log of v0.5 whose system has such a description; `cleared` nodes cleared their caches."""
    lines = log(f"v0.5/maker/{system}/resnet/result_0.txt", dialect="v0.5")
    for _ in range(cleared):
        lines = lines("run_clear_caches")
    lines("run_start").evaluate(4, 0.76).stop().write()
    folder = tmp_path / "systems/v0.5/maker"
    folder.mkdir(parents=True)
    node = {"accelerator": accelerator, "num_accelerators": per_node, "num_nodes": nodes}
    (folder / f"{system}.entry.json").write_text(json.dumps({"nodes": [node]}))
    (run,) = sources.read_runs([tmp_path / "v0.5"])
    return run


@pytest.mark.parametrize(
    ("system", "accelerator", "per_node", "nodes", "cleared", "number"),
    [
        ("cloud_v2.512", "tpuv2-512", 512, 64, 1, 512),
        ("research_v3.512", "tpuv3-512", 512, 32, 1, 512),
        ("pod.512", "TPU", 512, 64, 1, 512),
        ("cloud_v3.8", "tpuv3-8", 8, 1, 1, 8),
        ("dgx1_multi_ngc18.11_pytorch", "Tesla V100-SXM2-16GB", 8, 128, 8, 64),
        ("dgx1_multi_ngc18.11_mxnet", "Tesla V100-SXM2-16GB", 8, 128, 80, 640),
        ("dgx2h_multi_ngc18.11_mxnet", "Tesla V100-SXM3-H-32GB", 16, 36, 32, 512),
        ("dgx1_ngc18.11_pytorch", "Tesla V100-SXM2-16GB", 8, 1, 2, 8),
        ("cluster", "T4", 4, 8, 1, 32),
    ],
)
def test_accelerators_of_v05_are_checked(log, tmp_path, system, accelerator, per_node, nodes, cleared, number):
    run = read_v05(log, tmp_path, system, accelerator=accelerator, per_node=per_node, nodes=nodes, cleared=cleared)
    assert (run.accelerator, run.num_accelerators) == (accelerator, number)
    assert any("nodes" in text for text in run.inferred) == (number != per_node * nodes)


@pytest.mark.parametrize(("system", "expected"), [("a100-8", ("A100", 8)), ("gpu-v100-8", ("V100", 8)), ("r750", None)])
def test_system_without_description_is_named_after_its_accelerators(log, tmp_path, system, expected):
    log(f"v0.7/Maker/{system}/resnet/result_0.txt")("run_start").evaluate(4, 0.76).stop().write()
    (run,) = sources.read_runs([tmp_path])
    assert (run.accelerator, run.num_accelerators) == (expected or ("", None))
    assert any("name of the system" in text for text in run.inferred) == bool(expected)

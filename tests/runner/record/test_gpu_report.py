"""The block of text for a GPU without a data sheet."""

import hashlib
from dataclasses import replace

import pytest
from rich.console import Console

import timetrial
from timetrial.runner.launch import finalize
from timetrial.runner.record import gpu_report
from timetrial.runner.record.environment import describe

MI300X = {
    "name": "AMD Instinct MI300X",
    "capability": "gfx942:sramecc+:xnack-",
    "memory_bytes": 192 * 2**30,
    "driver": "6.12",
}


@pytest.fixture
def run_dir(launch):
    """A run on the CPU, as if it had run on an AMD Instinct MI300X."""
    _, run_dir = launch()

    def move(record):
        config = record.config | {"accelerator": record.config["accelerator"] | {"name": "auto"}}
        return replace(record, environment=record.environment | {"gpus": [MI300X]}, config=config)

    run_dir.update(move)
    return run_dir


@pytest.mark.integration
def test_block_has_figures_hardware_software_and_digest_but_no_names(run_dir):
    record = run_dir.record()
    text = gpu_report.gpu_report(record, run_dir.path)
    rows = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert rows["run"] == "ncf/embedded, batch 2048, 1 x AMD Instinct MI300X, fp32, seed 1"
    assert list(rows) == ["run", "result", "executed", "hardware", "software", "version", "digest"]
    assert f"{record.training.epochs} epochs" in rows["result"]
    assert rows["hardware"].startswith("AMD Instinct MI300X, gfx942:sramecc+:xnack-, 192 GiB, driver 6.12")
    assert f"torch {describe()['packages']['torch']}" in rows["software"]
    assert rows["version"].split()[0] == timetrial.__version__
    digest = hashlib.sha256((run_dir.path / "status.json").read_bytes()).hexdigest()
    assert rows["digest"] == f"sha256 {digest[:16]} of status.json"
    assert record.environment["hostname"] not in text
    assert "/" not in text.replace("ncf/embedded", "").replace("samples/s", "")


@pytest.mark.integration
def test_known_gpus_and_the_cpu_have_no_block(run_dir):
    record = run_dir.record()
    known = replace(record, environment=record.environment | {"gpus": [{"name": "NVIDIA H100 80GB HBM3"}]})
    assert gpu_report.gpu_report(known, run_dir.path) is None
    on_cpu = record.config | {"accelerator": record.config["accelerator"] | {"name": "cpu"}}
    assert gpu_report.gpu_report(replace(record, config=on_cpu), run_dir.path) is None
    assert gpu_report.gpu_report(replace(record, training=None), run_dir.path) is None


@pytest.mark.integration
def test_a_run_ends_with_the_block(launch, monkeypatch):
    printed = []
    monkeypatch.setattr(finalize, "gpu_report", lambda record, path: "run a block\nof two lines")
    monkeypatch.setattr(Console, "print", lambda console, *texts, **options: printed.extend(texts))
    launch()
    assert "This GPU has no data sheet yet." in printed[-2]
    assert printed[-1] == "  run a block\n  of two lines"

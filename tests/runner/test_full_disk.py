"""A full disk: one sentence, its own exit code and nothing half-made, whatever was being written."""

import os
import shutil
import subprocess
import sys

import pytest

from timetrial.runner.core.errors import Exit
from timetrial.runner.record.record_file import read_record

pytestmark = pytest.mark.integration

SOURCE = """
title: a dataset
used_by: this test
homepage: https://example.com
license: none
license_url: https://example.com
files:
  big.bin:
    urls: [https://example.com/big.bin]
outputs:
  big.bin: null
"""


@pytest.fixture
def disk(tmp_path):
    """Mount a disk of `size`: disk("64k") -> folder. Root alone may mount."""
    mounted = []

    def mount(size):
        folder = tmp_path / f"disk_{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        if os.geteuid() or shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("may not mount a small disk")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def timetrial(tmp_path):
    """Run a command that must end with the code of a full disk and a sentence: timetrial(*arguments) -> its output."""

    def run(*arguments):
        command = [sys.executable, "-P", "-m", "timetrial", *map(str, arguments)]
        completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        output = completed.stdout + completed.stderr
        assert completed.returncode == Exit.DISK_FULL, output
        assert "Traceback" not in output
        assert "No space left on device" in output
        assert "free space there" in output
        return output

    return run


@pytest.fixture
def overrides(tiny_ncf, tmp_path):
    """Overrides of a run that misses its target in a second."""
    target = ["recipe.target.v05.hit_rate=0.999", "recipe.max_epochs=20", "recipe.global_batch_size=512"]
    return [*tiny_ncf, *target, f"data_dir={tmp_path}/data"]


def check_nothing_is_half_made(folder):
    assert not list(folder.rglob("*.tmp"))
    assert all(file.read_bytes().endswith(b"\n") for file in folder.rglob("result_*.txt") if file.stat().st_size)


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_run_directory(timetrial, disk, overrides, launcher):
    """The first disk cannot hold the log and the record, the second no checkpoint."""
    for size in ("16k", "512k"):
        folder = disk(size)
        timetrial("run", *overrides, f"launcher={launcher}", f"run_dir={folder}/run", "checkpoint.every_seconds=0")
        check_nothing_is_half_made(folder)
        record = read_record(folder / "run") if (folder / "run" / "status.json").exists() else None
        if size == "512k":
            assert (record.state, record.exit_code) == ("failed", Exit.DISK_FULL)
            assert "checkpoint.pt" in record.error


def test_data_directory(timetrial, disk, overrides, tmp_path):
    folder = disk("4k")
    assert "ratings" in timetrial("run", *overrides, f"data_dir={folder}/data", f"run_dir={tmp_path}/run")
    check_nothing_is_half_made(folder)
    assert not (tmp_path / "run").exists()


def test_datasets_and_bundles(timetrial, disk, tmp_path):
    for folder in ("sources", "raw"):
        (tmp_path / folder).mkdir()
    (tmp_path / "sources" / "big.yaml").write_text(SOURCE)
    (tmp_path / "raw" / "big.bin").write_bytes(bytes(1 << 16))
    folder, data = disk("16k"), ["big", "--sources", tmp_path / "sources"]
    timetrial("data", "fetch", *data, "--from", tmp_path / "raw", "--data-dir", folder / "data")
    fetch = [sys.executable, "-P", "-m", "timetrial", "data", "fetch", *data, "--from", tmp_path / "raw"]
    subprocess.run(fetch, cwd=tmp_path, check=True, capture_output=True, timeout=600)
    timetrial("data", "bundle", *data, "--out", folder / "big.tar")
    check_nothing_is_half_made(folder)
    assert not (folder / "big.tar").exists()


def test_reports(timetrial, disk, overrides, launch, tmp_path):
    _, run_dir = launch()
    for size, options in (("4k", ["--out"]), ("32k", ["--out"]), ("4k", ["--export-mlperf"])):
        folder = disk(size)
        timetrial("report", run_dir.path, *options, folder / "out")
        check_nothing_is_half_made(folder)
    folder = disk("4k")
    (folder / "full").write_bytes(bytes(4096))
    timetrial("report", run_dir.path, "--runs-csv", folder / "runs.csv")
    assert not (folder / "runs.csv").exists()


def test_study(timetrial, disk, overrides, tmp_path, monkeypatch):
    folder = disk("4k")
    monkeypatch.setenv("TIMETRIAL_DATA_DIR", str(tmp_path / "data"))
    overrides = [override for override in overrides if not override.startswith("data_dir=")]
    (folder / "full").write_bytes(bytes(4096))
    timetrial("batch", "plan", folder / "study", *overrides, "seed=1")
    (folder / "full").unlink()
    command = [sys.executable, "-P", "-m", "timetrial", "batch", "plan", "study", *overrides, "launcher=inline"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=600)
    timetrial("batch", "run", folder / "study", "0")


@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_sweep(timetrial, disk, overrides, launcher):
    if launcher == "joblib":
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    folder = disk("16k")
    output = timetrial(
        "run", "-m", *overrides, "launcher=inline", f"runs_dir={folder}", "seed=1,2", f"hydra/launcher={launcher}"
    )
    assert output.count("No space left on device") >= 2

"""`timetrial peaks` on this machine's CPU."""

import io
import json
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console

from timetrial.runner.benchmarks import microbenchmarks, peaks
from timetrial.runner.benchmarks.microbenchmarks import Case
from timetrial.runner.benchmarks.peak_rows import Row, find_peaks
from timetrial.runner.benchmarks.peak_tables import show_kind, show_peaks
from timetrial.runner.benchmarks.peaks import QUICK
from timetrial.runner.core.errors import ConfigurationError, DeviceError, Exit, HardwareError, LostRank, RunError
from timetrial.runner.hardware import device_description, device_timing, devices
from timetrial.runner.hardware.device_description import last_level_cache_bytes
from timetrial.runner.hardware.readings import GpuReading

CPU = torch.device("cpu")


def timetrial(folder, *arguments):
    command = [sys.executable, "-P", "-m", "timetrial", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def numpy_copy_gb_s(mib=64):
    source, target = np.random.default_rng(0).standard_normal(mib * 2**17), np.empty(mib * 2**17)
    best = np.inf
    for _ in range(5):
        started = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - started)
    return 2 * mib * 2**20 / best / 1e9


def test_copy_rate_agrees_with_numpy():
    (series,) = microbenchmarks.copy(True)
    unlimited = replace(QUICK, max_call_seconds=float("inf"))  # a busy machine makes every call slow
    row = peaks.measure_case(series[0], CPU, unlimited)
    assert row.repeats >= 3
    assert row.fastest <= row.seconds <= row.slowest
    assert row.gb_s * row.seconds * 1e9 == pytest.approx(row.moved_bytes)
    assert 0.2 < row.moved_bytes / row.fastest / 1e9 / numpy_copy_gb_s() < 5


def test_number_of_operand_sets():
    small = Case("copy", "", "fp32", "", 0.0, 8, last_level_cache_bytes(CPU) / 10, lambda _: lambda: None)
    assert peaks.measure_case(small, CPU, QUICK).sets == 40
    slow = Case("copy", "", "fp32", "", 0.0, 8, 8, lambda _: lambda: time.sleep(0.03))
    began = time.perf_counter()
    row = peaks.measure_case(slow, CPU, QUICK)
    elapsed = time.perf_counter() - began
    assert row.sets == 1
    assert 0.03 <= row.seconds <= elapsed / (row.repeats * row.calls)


def test_series_ends_after_a_slow_call_and_failures_are_outcomes():
    def case(shape, make):
        return Case("gemm", shape, "fp32", "fp32", 1.0, 1.0, 2**30, make)

    def fail(message):
        def make(_):
            raise RuntimeError(message)

        return make

    series = [case("1", lambda _: lambda: time.sleep(0.03)), case("2", fail("never reached"))]
    assert [row.shape for row in peaks._measure_series(series, CPU, QUICK, None)] == ["1"]
    (row,) = peaks._measure_series([case("1", fail("not implemented for Half"))], CPU, QUICK, None)
    assert (row.outcome, row.seconds) == ("not supported", None)
    (row,) = peaks._measure_series([case("1", fail("DefaultCPUAllocator: can't allocate"))], CPU, QUICK, None)
    assert row.outcome == "out of memory"
    tf32 = Case("gemm", "", "fp32", "tf32", 1.0, 1.0, 1.0, fail("never made"))
    assert not list(peaks._measure_series([tf32], CPU, QUICK, None))


def test_peaks_are_the_fastest_cases_with_equal_storage_and_compute():
    rows = [
        Row("gemm", "a", "fp32", "fp32", tflops=40.0), Row("gemm", "b", "fp32", "fp32", tflops=50.0),
        Row("gemm", "b", "bf16", "fp32", tflops=60.0), Row("gemm", "b", "fp32", "tf32", tflops=400.0),
        Row("gemm", "c", "bf16", "bf16", outcome="out of memory"), Row("copy", "", gb_s=4300.0),
        Row("convolution", "3²", "fp32", "fp32", tflops=99.0, is_minimal=False),
        Row("transfer", "", gb_s=9999.0), Row("lstm", "d", "bf16", "bf16", tflops=200.0),
    ]  # fmt: skip
    assert find_peaks(rows) == {
        "tflops": {"fp32": 50.0, "tf32": 400.0, "bf16": 200.0},
        "achieved_by": {"fp32": "gemm b", "tf32": "gemm b", "bf16": "lstm d"},
        "gb_s": 4300.0,
        "left_out": [{"compute": "fp32", "kind": "convolution", "shape": "3²", "tflops": 99.0}],
    }
    text = io.StringIO()
    console = Console(file=text, width=150)
    show_kind(console, "gemm", rows[:5])
    show_peaks(console, "h200", rows)
    assert "50 TFLOP/s, 75% of the data sheet's 67 (gemm b)" in text.getvalue()
    assert "4,300 GB/s, 90% of the data sheet's 4,800" in text.getvalue()
    assert "out of memory" in text.getvalue()
    assert "fewer operations than are counted: convolution (fp32 99) TFLOP/s by the count" in text.getvalue()


@pytest.mark.integration
def test_rejects_kinds_that_cannot_be_measured(monkeypatch, tmp_path):
    with pytest.raises(ConfigurationError, match="gem is no kind of micro-benchmark: choose from gemm"):
        peaks.select_kinds(["gem"], "cpu")
    monkeypatch.setattr(devices, "device_count", lambda: 1)
    with pytest.raises(DeviceError, match="all-reduce needs two GPUs and there is one"):
        peaks.select_kinds(["copy", "all-reduce"], "h200")
    assert "all-reduce" not in peaks.select_kinds([], "h200")
    monkeypatch.setattr(devices, "device_count", lambda: 2)
    assert "all-reduce" in peaks.select_kinds([], "h200")
    completed = timetrial(tmp_path, "peaks", "--accelerator", "h2000")
    assert completed.returncode == Exit.CONFIGURATION
    assert "accelerator=h2000 is unknown: choose from a100," in completed.stderr
    assert not list(tmp_path.iterdir())


def test_file_is_written_atomically(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="Cannot write"):
        peaks.make_folder(tmp_path / "file" / "below")
    peaks.make_folder(tmp_path / "new" / "folder")
    path = peaks.write_document(tmp_path / "new" / "folder", {"schema": 1})
    assert json.loads(path.read_text()) == {"schema": 1}
    with pytest.raises(TypeError):
        peaks.write_document(path.parent, {"schema": object()})
    assert json.loads(path.read_text()) == {"schema": 1}
    assert [file.name for file in path.parent.iterdir()] == ["peaks.json"]


@pytest.mark.integration
def test_rows_measured_before_a_stop_are_written(tmp_path, monkeypatch):
    measure_kinds = peaks.measure_kinds

    def stopped(*arguments, **options):
        yield next(measure_kinds(*arguments, **options))
        raise SystemExit(Exit.STOPPED)

    monkeypatch.setattr(peaks, "measure_kinds", stopped)
    text = io.StringIO()
    with pytest.raises(SystemExit):
        peaks.run(["gemm", "copy"], "cpu", tmp_path / "out", quick=True, console=Console(file=text, width=150))
    document = json.loads((tmp_path / "out" / "peaks.json").read_text())
    assert document["stopped"]
    assert [row["kind"] for row in document["rows"]] == ["gemm"]
    assert document["peaks"]["tflops"]["fp32"] == document["rows"][0]["tflops"]
    assert "Peaks of cpu" in text.getvalue()


@pytest.mark.integration
def test_measured_peaks_reach_the_roofline_of_a_report(tmp_path):
    """Measure peaks, then a throughput run that counts its operations, then write the page with both."""
    measured = timetrial(tmp_path, "peaks", "gemm", "convolution", "copy", "--quick", "--json")
    assert measured.returncode == 0, measured.stderr
    document = json.loads(measured.stdout)
    assert document["card"] == "cpu"
    assert document["peaks"]["tflops"]["fp32"] > 0
    assert document["system"]["cpu"]["usable_cores"] >= 1
    overrides = [
        "workload=resnet50",
        "scale=reference",
        "recipe.training.stages=[1,1,1,1]",
        "recipe.global_batch_size=16",
        "accelerator=cpu",
    ]
    overrides += [
        "recipe.data.image_size=64",
        "recipe.data.eval_batch_size=16",
        "launcher=inline",
        "throughput.steps=2",
    ]
    completed = timetrial(tmp_path, "throughput", *overrides, "throughput.blocks=2")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "TFLOP/s per GPU" in completed.stdout
    completed = timetrial(tmp_path, "report", "runs", "--out", "page")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    header, row = (tmp_path / "page" / "csv" / "roofline-1-workloads.csv").read_text().splitlines()
    point = dict(zip(header.split(","), row.split(","), strict=True))
    assert (point["precision"], point["num_accelerators"]) == ("fp32", "1")
    assert 0.005 < float(point["fraction_of_measured_peak"]) < 2  # on a busy machine, with quick measurements
    assert 1 < float(point["operations_per_byte_unfused"]) < float(point["operations_per_byte_at_most"])
    assert "Roofline of cpu" in (tmp_path / "page" / "report.html").read_text()


def test_tf32_is_allowed_for_tf32_only(monkeypatch):
    calls = []
    monkeypatch.setattr(devices, "allow_tf32", calls.append)
    for compute in ("fp32", "tf32", "bf16"):
        peaks.measure_case(Case("copy", "", "fp32", compute, 0.0, 8, 2**30, lambda _: lambda: None), CPU, QUICK)
    assert calls == [False, True, False]


def test_all_reduce_through_the_host_is_measured_though_peer_to_peer_fails(monkeypatch):
    calls = []

    def measure(accelerator, ranks, mib, peer_to_peer):
        calls.append((ranks, mib, peer_to_peer))
        if peer_to_peer:
            raise LostRank("no")
        return 300.0

    monkeypatch.setattr(devices, "device_count", lambda: 4)
    monkeypatch.setattr(peaks.all_reduce, "measure", measure)
    failed, through_the_host = peaks._measure_all_reduce("h200", True)
    assert calls == [(4, 256, True), (4, 256, False)]
    assert failed.outcome == "no"
    assert through_the_host.moved_bytes == 1.5 * 256 * 2**20
    assert through_the_host.seconds == pytest.approx(through_the_host.moved_bytes / 300e9)


def measure_with_timings(monkeypatch, seconds, submission):
    timings = iter(seconds)
    monkeypatch.setattr(device_timing, "time_on_device", lambda device, function: (next(timings), submission))
    monkeypatch.setattr(device_description, "last_level_cache_bytes", lambda device: 1)
    case = Case("gemm", "", "fp32", "fp32", 6.0, 12.0, 2.0**40, lambda _: lambda: None)
    return peaks.measure_case(case, torch.device("meta"), peaks.FULL)


@pytest.mark.parametrize(("submission", "host_bound"), [(0.035, False), (0.039, True)])
def test_rates_follow_from_the_median_and_host_bound_cases_are_marked(monkeypatch, submission, host_bound):
    row = measure_with_timings(monkeypatch, [0.04, 0.04, 0.04, 0.02, 0.08], submission)
    assert (row.repeats, row.seconds, row.fastest, row.slowest) == (3, 0.04, 0.02, 0.08)
    assert (row.tflops, row.gb_s) == (pytest.approx(150e-12), pytest.approx(300e-9))
    assert row.host_bound is host_bound


def test_slow_call_is_timed_once(monkeypatch):
    assert measure_with_timings(monkeypatch, [0.6] * 3, 0.0).repeats == 1


def test_averaged_power_is_not_recorded():
    for averaging_seconds, watts in ((1.0, None), (None, 300.0)):
        reading = GpuReading(core_mhz=1500.0, power_watts=300.0, power_averaging_seconds=averaging_seconds)
        case = Case("copy", "", "fp32", "", 0.0, 8, 2**30, lambda _: lambda: None)
        row = peaks.measure_case(case, CPU, QUICK, SimpleNamespace(read=lambda index, reading=reading: reading))
        assert (row.core_mhz, row.watts) == (1500.0, watts)


@pytest.mark.parametrize("message", ["no kernel image is available", "CUDA error: unspecified launch failure"])
def test_device_fault_ends_the_measurement(message):
    def fail(device):
        raise RuntimeError(message)

    case = Case("copy", "", "fp32", "", 0.0, 8, 8, fail)
    with pytest.raises((DeviceError, HardwareError)):
        list(peaks._measure_series([case], CPU, QUICK, None))


def test_cpu_has_no_transfers():
    with pytest.raises(DeviceError, match="transfer needs a GPU"):
        peaks.select_kinds(["transfer"], "cpu")

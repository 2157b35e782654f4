"""`timetrial peaks` on this machine's processor, by the command that a person uses."""

import io
import json
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console

from timetrial.runner.benchmarks import microbenchmarks, peaks
from timetrial.runner.benchmarks.microbenchmarks import Case
from timetrial.runner.benchmarks.peaks import QUICK, Row
from timetrial.runner.core.errors import ConfigurationError, DeviceError, Exit, HardwareError, LostRank, RunError
from timetrial.runner.hardware import devices
from timetrial.runner.hardware.readings import CardReading

CPU = torch.device("cpu")


def command(folder, *words):
    line = [sys.executable, "-P", "-m", "timetrial", *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=300)


def numpy_copy_gb_s(mib=64):
    source, target = np.random.default_rng(0).standard_normal(mib * 2**17), np.empty(mib * 2**17)
    best = np.inf
    for _ in range(5):
        began = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - began)
    return 2 * mib * 2**20 / best / 1e9


def test_a_copy_is_as_fast_as_numpy_says():
    (series,) = microbenchmarks.copy(True)
    row = peaks.measured(series[0], CPU, QUICK)
    assert row.repeats >= 3
    assert row.fastest <= row.seconds <= row.slowest
    assert 0.2 < row.gb_s / numpy_copy_gb_s() < 5


def test_small_operands_are_many_and_a_slow_call_gets_few():
    small = Case("copy", "", "fp32", "", 0.0, 8, devices.cache_bytes(CPU) / 10, lambda _: lambda: None)
    assert peaks.measured(small, CPU, QUICK).sets == 40
    slow = Case("copy", "", "fp32", "", 0.0, 8, 8, lambda _: lambda: time.sleep(0.03))
    row = peaks.measured(slow, CPU, QUICK)
    assert row.sets == 1
    assert row.seconds == pytest.approx(0.03, rel=0.5)


def test_growing_stops_where_a_call_takes_long_and_failures_are_values():
    def case(shape, make):
        return Case("gemm", shape, "fp32", "fp32", 1.0, 1.0, 2**30, make)

    def fail(words):
        def make(_):
            raise RuntimeError(words)

        return make

    long = [case("1", lambda _: lambda: time.sleep(0.03)), case("2", fail("never reached"))]
    assert [row.shape for row in peaks._of_series(long, CPU, QUICK, None)] == ["1"]
    (row,) = peaks._of_series([case("1", fail("not implemented for Half"))], CPU, QUICK, None)
    assert (row.outcome, row.seconds) == ("not supported", None)
    (row,) = peaks._of_series([case("1", fail("DefaultCPUAllocator: can't allocate"))], CPU, QUICK, None)
    assert row.outcome == "out of memory"
    tf32 = Case("gemm", "", "fp32", "tf32", 1.0, 1.0, 1.0, fail("never made"))
    assert not list(peaks._of_series([tf32], CPU, QUICK, None))


def test_roofs_are_the_fastest_of_what_is_computed_as_stored():
    rows = [
        Row("gemm", "a", "fp32", "fp32", tflops=40.0), Row("gemm", "b", "fp32", "fp32", tflops=50.0),
        Row("gemm", "b", "bf16", "fp32", tflops=60.0), Row("gemm", "b", "fp32", "tf32", tflops=400.0),
        Row("gemm", "c", "bf16", "bf16", outcome="out of memory"), Row("copy", "", gb_s=4300.0),
        Row("convolution", "3²", "fp32", "fp32", tflops=99.0, fewest=False),
        Row("transfer", "", gb_s=9999.0), Row("lstm", "d", "bf16", "bf16", tflops=200.0),
    ]  # fmt: skip
    assert peaks.best(rows) == {
        "tflops": {"fp32": 50.0, "tf32": 400.0, "bf16": 200.0},
        "of": {"fp32": "gemm b", "tf32": "gemm b", "bf16": "lstm d"},
        "gb_s": 4300.0,
    }
    text = io.StringIO()
    console = Console(file=text, width=150)
    peaks.show_kind(console, "gemm", rows[:5])
    peaks.show_best(console, "h200", rows)
    assert "50 TFLOP/s, 75% of the data sheet's 67 (gemm b)" in text.getvalue()
    assert "4,300 GB/s, 90% of the data sheet's 4,800" in text.getvalue()
    assert "out of memory" in text.getvalue()


def test_what_cannot_be_measured_is_refused_in_a_sentence(monkeypatch, tmp_path):
    with pytest.raises(ConfigurationError, match="gem is nothing that peaks measures: choose of gemm"):
        peaks.chosen(["gem"], "cpu")
    monkeypatch.setattr(devices, "available", lambda: 1)
    with pytest.raises(DeviceError, match="all-reduce needs two cards and there is one"):
        peaks.chosen(["copy", "all-reduce"], "h200")
    assert "all-reduce" not in peaks.chosen([], "h200")
    monkeypatch.setattr(devices, "available", lambda: 2)
    assert "all-reduce" in peaks.chosen([], "h200")
    done = command(tmp_path, "peaks", "--accelerator", "h2000")
    assert done.returncode == Exit.CONFIGURATION
    assert "accelerator=h2000 is not known: choose of a100," in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_file_is_there_whole_or_not_at_all(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="Cannot write"):
        peaks.make_folder(tmp_path / "file" / "below")
    peaks.make_folder(tmp_path / "new" / "folder")
    path = peaks.write(tmp_path / "new" / "folder", {"schema": 1})
    assert json.loads(path.read_text()) == {"schema": 1}
    with pytest.raises(TypeError):
        peaks.write(path.parent, {"schema": object()})
    assert json.loads(path.read_text()) == {"schema": 1}
    assert [one.name for one in path.parent.iterdir()] == ["peaks.json"]


def test_what_was_measured_before_a_stop_is_kept(tmp_path, monkeypatch):
    whole = peaks.measure

    def stopped(*what, **how):
        yield next(whole(*what, **how))
        raise SystemExit(Exit.STOPPED)

    monkeypatch.setattr(peaks, "measure", stopped)
    text = io.StringIO()
    with pytest.raises(SystemExit):
        peaks.run(["gemm", "copy"], "cpu", tmp_path / "kept", quick=True, console=Console(file=text, width=150))
    kept = json.loads((tmp_path / "kept" / "peaks.json").read_text())
    assert kept["stopped"]
    assert [row["kind"] for row in kept["rows"]] == ["gemm"]
    assert kept["peaks"]["tflops"]["fp32"] == kept["rows"][0]["tflops"]
    assert "cpu, at best" in text.getvalue()


def test_from_measurement_to_the_roofline_of_a_report(tmp_path):
    """The real path: peaks, a throughput run that counts itself, and the page that places it."""
    told = command(tmp_path, "peaks", "gemm", "convolution", "copy", "--quick", "--json")
    assert told.returncode == 0, told.stderr
    kept = json.loads(told.stdout)
    assert kept["card"] == "cpu"
    assert kept["peaks"]["tflops"]["fp32"] > 0
    assert kept["system"]["cpu"]["usable_cores"] >= 1
    words = ["workload=resnet50", "recipe.training.stages=[1,1,1,1]", "recipe.global_batch_size=16", "accelerator=cpu"]
    words += ["recipe.data.image_size=64", "recipe.data.eval_batch_size=16", "launcher=inline", "throughput.steps=2"]
    done = command(tmp_path, "throughput", *words, "throughput.blocks=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "TFLOP/s a card" in done.stdout
    done = command(tmp_path, "report", "runs", "--out", "page")
    assert done.returncode == 0, done.stdout + done.stderr
    header, row = (tmp_path / "page" / "csv" / "roofline-1-places.csv").read_text().splitlines()
    place = dict(zip(header.split(","), row.split(","), strict=True))
    assert (place["precision"], place["cards"]) == ("fp32", "1")
    assert 0.005 < float(place["of_measured_peak"]) < 2  # a busy machine, quick peaks
    assert 1 < float(place["operations_per_byte_unfused"]) < float(place["operations_per_byte_at_most"])
    assert "Roofline of cpu" in (tmp_path / "page" / "report.html").read_text()


def test_tensor_cores_are_for_tf32_alone(monkeypatch):
    said = []
    monkeypatch.setattr(devices, "allow_tf32", said.append)
    for compute in ("fp32", "tf32", "bf16"):
        peaks.measured(Case("copy", "", "fp32", compute, 0.0, 8, 2**30, lambda _: lambda: None), CPU, QUICK)
    assert said == [False, True, False]


def test_sums_are_asked_for_both_ways_and_the_second_though_the_first_fails(monkeypatch):
    asked = []

    def measure(name, ranks, mib, peer_to_peer):
        asked.append((ranks, mib, peer_to_peer))
        if peer_to_peer:
            raise LostRank("no")
        return 300.0

    monkeypatch.setattr(devices, "available", lambda: 4)
    monkeypatch.setattr(peaks.all_reduce, "measure", measure)
    failed, through_the_host = peaks._of_ranks("h200", True)
    assert asked == [(4, 256, True), (4, 256, False)]
    assert failed.outcome == "no"
    assert through_the_host.moved_bytes == 1.5 * 256 * 2**20
    assert through_the_host.seconds == pytest.approx(through_the_host.moved_bytes / 300e9)


def timed(monkeypatch, seconds, handed):
    spans = iter(seconds)
    monkeypatch.setattr(devices, "timed", lambda device, work: (next(spans), handed))
    monkeypatch.setattr(devices, "cache_bytes", lambda device: 1)
    case = Case("gemm", "", "fp32", "fp32", 6.0, 12.0, 2.0**40, lambda _: lambda: None)
    return peaks.measured(case, torch.device("meta"), peaks.FULL)


@pytest.mark.parametrize(("handed", "host_bound"), [(0.035, False), (0.039, True)])
def test_rates_are_of_the_median_and_the_host_is_told(monkeypatch, handed, host_bound):
    row = timed(monkeypatch, [0.04, 0.04, 0.04, 0.02, 0.08], handed)
    assert (row.repeats, row.seconds, row.fastest, row.slowest) == (3, 0.04, 0.02, 0.08)
    assert (row.tflops, row.gb_s) == (pytest.approx(150e-12), pytest.approx(300e-9))
    assert row.host_bound is host_bound


def test_a_long_call_is_timed_once(monkeypatch):
    assert timed(monkeypatch, [0.6] * 3, 0.0).repeats == 1


def test_a_mean_over_a_second_is_not_the_watts_of_a_burst():
    for over, told in ((1.0, None), (None, 300.0)):
        reading = CardReading(core_mhz=1500.0, power_watts=300.0, watts_over_seconds=over)
        case = Case("copy", "", "fp32", "", 0.0, 8, 2**30, lambda _: lambda: None)
        row = peaks.measured(case, CPU, QUICK, SimpleNamespace(read=lambda index, now=reading: now))
        assert (row.core_mhz, row.watts) == (1500.0, told)


@pytest.mark.parametrize("words", ["no kernel image is available", "CUDA error: unspecified launch failure"])
def test_a_fault_of_the_card_is_not_taken_for_a_case_that_it_lacks(words):
    def fail(device):
        raise RuntimeError(words)

    case = Case("copy", "", "fp32", "", 0.0, 8, 8, fail)
    with pytest.raises((DeviceError, HardwareError)):
        list(peaks._of_series([case], CPU, QUICK, None))


def test_a_processor_has_no_transfers():
    with pytest.raises(DeviceError, match="transfer needs a card"):
        peaks.chosen(["transfer"], "cpu")

"""Sampling during a run: the rows of telemetry.csv, also after a kill, and errors that must not stop a run."""

import csv
import signal
import subprocess
import sys
import time

import pytest

from timetrial.runner.callbacks import telemetry
from timetrial.runner.hardware.readings import GpuReading
from timetrial.runner.record import energy
from timetrial.runner.record.telemetry_samples import read_samples
from timetrial.runner.training.events import BlockStarted, EvalStarted, RunStarted, RunStopped


class OneGpu:
    source = "NVML"
    closed = False

    def __len__(self):
        return 1

    def read(self, index):
        return GpuReading(power_watts=100.0, energy_joules=time.time() * 100, throttle_reasons="power", core_mhz=1500)

    def close(self):
        self.closed = True


def read_rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_rows_have_phase_device_and_wall_time(tmp_path):
    path, gpu = tmp_path / "telemetry.csv", OneGpu()
    sampler, started = telemetry.TelemetrySampler(path, gpu, 0.02), time.time()
    time.sleep(0.1)
    for event in (RunStarted(params={}), EvalStarted(epoch=1), BlockStarted(first_epoch=2, epochs=1)):
        sampler(event)
        time.sleep(0.1)
    sampler(RunStopped(status="success"))
    sampler(BlockStarted(first_epoch=3, epochs=1))  # past the target, off the clock
    time.sleep(0.1)
    sampler.close()
    rows = read_rows(path)
    assert gpu.closed
    assert {row["device"] for row in rows} == {"0", "host"}
    phases = [row["phase"] for row in rows if row["device"] == "0"]
    assert [phase for index, phase in enumerate(phases) if index == 0 or phases[index - 1] != phase] == [
        "", "train", "eval", "train", "",
    ]  # fmt: skip
    times = [float(row["time"]) for row in rows if row["device"] == "0"]
    assert times == sorted(times)
    assert started - 1 < times[0] < times[-1] < time.time() + 1
    assert rows[0]["throttle_reasons"] == "power"
    assert float(next(row for row in rows if row["device"] == "host")["host_memory_mib"]) > 0


def test_start_and_stop_of_the_clock_are_always_sampled(tmp_path):
    sampler = telemetry.TelemetrySampler(tmp_path / "telemetry.csv", OneGpu(), 60.0)
    time.sleep(0.1)
    started = time.time()
    sampler(RunStarted(params={}))
    time.sleep(0.3)
    sampler(RunStopped(status="success"))
    elapsed = time.time() - started
    time.sleep(0.1)
    sampler.close()
    summary = energy.summarize_telemetry(
        tmp_path, train_seconds=None, data_wait_seconds=0.0, active_seconds=None, samples=30, usd_per_hour=None
    ).telemetry
    assert 0.29 < summary.seconds < elapsed + 0.01  # times are rounded
    assert summary.energy_joules == pytest.approx(100 * summary.seconds, rel=0.1)


def test_resumed_run_appends_after_an_incomplete_row(tmp_path):
    path = tmp_path / "telemetry.csv"
    for _ in range(2):
        telemetry.TelemetrySampler(path, None, 5.0).close()
        with open(path, "a") as file:
            file.write("17000.0,tra")
    complete = [row for row in read_rows(path) if row["device"] == "host"]
    assert len(complete) >= 2
    assert path.read_text().count("time,phase") == 1
    assert len(read_samples(tmp_path)["0/host"]) == len(complete)


def test_error_of_a_sensor_ends_only_the_sampling(tmp_path, capfd):
    gpu = OneGpu()
    gpu.read = lambda index: 1 / 0
    sampler = telemetry.TelemetrySampler(tmp_path / "telemetry.csv", gpu, 0.01)
    time.sleep(0.1)
    sampler(RunStarted(params={}))
    sampler.close()
    assert "Telemetry has ended (ZeroDivisionError" in capfd.readouterr().err


KILLED_AT = 20
PROGRAM = f"""
import os, signal, sys, time
from pathlib import Path
from timetrial.runner.callbacks.telemetry import TelemetrySampler
from timetrial.runner.hardware.readings import GpuReading
class KillingGpu:
    source, samples = "NVML", 0
    def __len__(self):
        return 1
    def read(self, index):
        self.samples += 1
        if self.samples == {KILLED_AT}:
            os.kill(os.getpid(), signal.SIGKILL)
        return GpuReading(power_watts=float(self.samples))
sampler = TelemetrySampler(Path(sys.argv[1]), KillingGpu(), 0.001)
time.sleep(60)
"""


@pytest.mark.integration
def test_kill_loses_at_most_the_last_row(tmp_path):
    path = tmp_path / "telemetry.csv"
    assert subprocess.run([sys.executable, "-P", "-c", PROGRAM, path], timeout=60).returncode == -signal.SIGKILL
    samples = read_samples(tmp_path)
    assert [sample.values["power_watts"] for sample in samples["0/0"]] == list(range(1, KILLED_AT))
    assert len(samples["0/host"]) == KILLED_AT - 1


@pytest.mark.integration
def test_run_is_sampled_unless_the_interval_is_zero(launch):
    _, run_dir = launch("telemetry.every_seconds=0.05", "usd_per_gpu_hour=2")
    rows = read_rows(run_dir.path / "telemetry.csv")
    assert {"", "train"} <= {row["phase"] for row in rows}
    record = run_dir.record()
    started, seconds = record.training.started_at, record.training.active_seconds
    times = [float(row["time"]) for row in rows]
    on_clock = [place for place, row in enumerate(rows) if row["phase"]]
    begin, end = times[on_clock[0]], times[on_clock[-1] + 1]
    assert begin > started - 0.01  # times are rounded
    assert end > started + seconds - 0.01
    assert record.telemetry.seconds == pytest.approx(end - begin, abs=0.002)
    assert record.cost.usd == pytest.approx(2 * seconds / 3600)
    _, run_dir = launch("telemetry.every_seconds=0")
    assert not (run_dir.path / "telemetry.csv").exists()


def test_incomplete_row_does_not_spoil_the_next(tmp_path):
    path = tmp_path / "telemetry.csv"
    telemetry.TelemetrySampler(path, None, 60.0).close()
    num_rows = len(read_samples(tmp_path)["0/host"])
    with open(path, "a") as file:
        file.write("17000.0,tra")
    telemetry.TelemetrySampler(path, None, 60.0).close()
    assert path.read_text().splitlines()[num_rows + 1] == "17000.0,tra"

"""Sampling beside a run: what stands in telemetry.csv, also after a kill, and what cannot stop a run."""

import csv
import json
import signal
import subprocess
import sys
import time

import pytest

from timetrial.runner.callbacks import telemetry
from timetrial.runner.hardware.readings import CardReading
from timetrial.runner.record import energy
from timetrial.runner.training.events import BlockStarted, EvalStarted, RunStarted, RunStopped


class OneCard:
    source = "NVML"
    closed = False

    def __len__(self):
        return 1

    def read(self, index):
        return CardReading(power_watts=100.0, energy_joules=time.time() * 100, throttle="power", core_mhz=1500)

    def close(self):
        self.closed = True


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_rows_have_phase_device_and_wall_time(tmp_path):
    path, card = tmp_path / "telemetry.csv", OneCard()
    sampler, begun = telemetry.Telemetry(path, card, 0.02), time.time()
    time.sleep(0.1)
    for event in (RunStarted(params={}), EvalStarted(epoch=1), BlockStarted(first_epoch=2, epochs=1)):
        sampler(event)
        time.sleep(0.1)
    sampler(RunStopped(status="success"))
    sampler(BlockStarted(first_epoch=3, epochs=1))  # past the target, off the clock
    time.sleep(0.1)
    sampler.close()
    found = rows(path)
    assert card.closed
    assert {row["device"] for row in found} == {"0", "host"}
    phases = [row["phase"] for row in found if row["device"] == "0"]
    assert [phase for place, phase in enumerate(phases) if place == 0 or phases[place - 1] != phase] == [
        "", "train", "eval", "train", "",
    ]  # fmt: skip
    times = [float(row["time"]) for row in found if row["device"] == "0"]
    assert times == sorted(times)
    assert begun - 1 < times[0] < times[-1] < time.time() + 1
    assert found[0]["throttle"] == "power"
    assert float(next(row for row in found if row["device"] == "host")["host_memory_mib"]) > 0


def test_the_clock_is_sampled_at_both_ends_however_short_it_is(tmp_path):
    sampler = telemetry.Telemetry(tmp_path / "telemetry.csv", OneCard(), 60.0)
    time.sleep(0.1)
    sampler(RunStarted(params={}))
    time.sleep(0.3)
    sampler(RunStopped(status="success"))
    time.sleep(0.1)
    sampler.close()
    found = energy.judge(tmp_path, {}, 30, None)["telemetry"]
    assert found["seconds"] == pytest.approx(0.3, abs=0.1)
    assert found["energy_joules"] == pytest.approx(100 * found["seconds"], rel=0.1)


def test_a_resumed_run_appends_after_a_row_that_was_cut_short(tmp_path):
    path = tmp_path / "telemetry.csv"
    for _ in range(2):
        telemetry.Telemetry(path, None, 5.0).close()
        with open(path, "a") as file:
            file.write("17000.0,tra")
    whole = [row for row in rows(path) if row["device"] == "host"]
    assert len(whole) >= 2
    assert path.read_text().count("time,phase") == 1
    assert len(energy.read(tmp_path)["0/host"]) == len(whole)


def test_a_card_that_is_lost_ends_the_sampling_and_nothing_else(tmp_path, capfd):
    card = OneCard()
    card.read = lambda index: 1 / 0
    sampler = telemetry.Telemetry(tmp_path / "telemetry.csv", card, 0.01)
    time.sleep(0.1)
    sampler(RunStarted(params={}))
    sampler.close()
    assert "telemetry has ended (ZeroDivisionError" in capfd.readouterr().err


PROGRAM = """
import sys, time
from pathlib import Path
from timetrial.runner.callbacks.telemetry import Telemetry
from timetrial.runner.training.events import RunStarted
sampler = Telemetry(Path(sys.argv[1]), None, 0.02)
sampler(RunStarted(params={}))
time.sleep(60)
"""


def test_a_kill_loses_at_most_the_last_line(tmp_path):
    path = tmp_path / "telemetry.csv"
    with subprocess.Popen([sys.executable, "-P", "-c", PROGRAM, str(path)]) as process:
        until = time.monotonic() + 60
        while not (path.exists() and path.stat().st_size > 2000) and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
        killed = time.time()
    samples = energy.read(tmp_path)["0/host"]
    assert killed - samples[-1].time < 0.5
    assert len(samples) > 10


def test_a_run_is_sampled_and_one_that_wants_none_is_not(launch):
    _, folder = launch("telemetry.every_seconds=0.05", "usd_per_gpu_hour=2")
    found = rows(folder.path / "telemetry.csv")
    assert {"", "train"} <= {row["phase"] for row in found}
    status = json.loads((folder.path / "status.json").read_text())
    seconds = status["result"]["active_seconds"]
    assert status["telemetry"]["seconds"] == pytest.approx(seconds, abs=0.2)
    assert status["cost"]["dollars"] == pytest.approx(2 * seconds / 3600)
    _, folder = launch("telemetry.every_seconds=0")
    assert not (folder.path / "telemetry.csv").exists()


def test_a_cut_row_takes_none_with_it(tmp_path):
    path = tmp_path / "telemetry.csv"
    telemetry.Telemetry(path, None, 60.0).close()
    before = len(energy.read(tmp_path)["0/host"])
    with open(path, "a") as file:
        file.write("17000.0,tra")
    telemetry.Telemetry(path, None, 60.0).close()
    assert path.read_text().splitlines()[before + 1] == "17000.0,tra"

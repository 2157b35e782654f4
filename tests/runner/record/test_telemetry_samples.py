"""The power of a run over time, as the report draws it."""

import os

import pytest

from timetrial.runner.record.telemetry_samples import read_power


def test_power_is_the_sum_over_gpus_on_the_clock(write_samples):
    for node, device in ((0, "0"), (0, "1"), (1, "0")):
        run_dir = write_samples(
            40, start=990.0, device=device, node=node, power_watts=lambda i: 100.0 if 10 <= i < 30 else 7.0
        )
    run_dir = write_samples(40, start=990.0, device="host", source="system", cpu_percent=50)
    power = read_power(run_dir, 1000.0, 1020.0, 10)
    assert power == [(2 * span + 0.5, 300.0) for span in range(10)]


def test_spans_without_samples_are_left_out(write_samples):
    run_dir = write_samples(5, interval=10.0, power_watts=80)
    assert read_power(run_dir, 1000.0, 1050.0, 50) == [(10.0 * row, 80.0) for row in range(5)]
    assert read_power(run_dir, 5000.0, 5050.0, 50) == []


def test_long_file_is_read_in_parts_over_all_of_its_time(write_samples):
    """Watts are the seconds since the start, so each point must lie on a line."""
    run_dir = write_samples(20_000, power_watts=lambda index: index)
    assert (run_dir / "telemetry.csv").stat().st_size > 2 * 64 * 4096
    power = read_power(run_dir, 1000.0, 21_000.0, 60)
    assert len(power) == 60
    for seconds, watts in power:
        assert watts == pytest.approx(seconds, abs=1e-6)
    assert power[0][0] < 400
    assert power[-1][0] > 19_500


def test_damaged_rows_and_files_are_passed_over(write_samples):
    run_dir = write_samples(3, power_watts=80)
    with open(run_dir / "telemetry.csv", "a") as file:
        file.write("1001.5,train,0,NVML\n\x00,,\nnan" + "," * 27 + "\n")
    os.mkfifo(run_dir / "telemetry_1.csv")  # a pipe would block
    (run_dir / "telemetry_2.csv").write_text("time,other\n1001,3\n")
    assert read_power(run_dir, 1000.0, 1003.0, 3) == [(0.0, 80.0), (1.0, 80.0), (2.0, 80.0)]

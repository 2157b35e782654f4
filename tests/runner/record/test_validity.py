"""Validity flags: each is raised by its cause and by nothing else."""

import io
import re

import pytest
from rich.console import Console

from timetrial.runner.launch.result_table import show_result
from timetrial.runner.record import energy
from timetrial.runner.record.disturbance import disturbed_share
from timetrial.runner.record.run_dir import RunDir
from timetrial.runner.record.run_record import HostLoad, RunRecord
from timetrial.runner.record.telemetry_samples import TelemetrySample

NORMAL = {
    "core_mhz": 1500,
    "utilization_percent": 99,
    "power_watts": 200,
    "throttle_reasons": "power",
    "other_processes": 0,
}


def summarize(run_dir, train_seconds=None, data_wait_seconds=0.0, num_gpus_expected=0):
    return energy.summarize_telemetry(
        run_dir,
        train_seconds=train_seconds,
        data_wait_seconds=data_wait_seconds,
        active_seconds=100.0,
        samples=5000,
        usd_per_hour=3.6,
        num_gpus_expected=num_gpus_expected,
    )


def find_flags(run_dir, **seconds):
    return summarize(run_dir, **seconds).flags


@pytest.mark.parametrize(
    ("change", "flag", "sentence"),
    [
        (
            {"throttle_reasons": lambda index: "thermal" if index < 12 else ""},
            "throttled",
            r"\(thermal\) in 12% of a GPU's",
        ),
        ({"throttle_reasons": "power+hardware"}, "throttled", r"\(hardware\) in 100%"),
        ({"core_mhz": lambda index: 1500 if index < 80 else 1100}, "clock spread", "from 1100 to 1500 MHz"),
        (
            {"utilization_percent": lambda index: 27 if index > 40 else 99},
            "low utilization",
            "for only 27% of training",
        ),
        ({"other_processes": lambda index: int(index > 49)}, "other processes", "in 50% of its samples"),
        ({"ecc_corrected": lambda index: 7 + (index > 30)}, "ECC errors", "1 corrected"),
        ({"ecc_uncorrected": lambda index: int(index > 30)}, "ECC errors", "1 uncorrected"),
    ],
)
def test_each_flag_has_its_cause(write_samples, change, flag, sentence):
    flags = find_flags(write_samples(101, **NORMAL | change))
    assert list(flags) == [flag]
    assert re.search(sentence, flags[flag])


@pytest.mark.parametrize(
    "change",
    [
        {
            "core_mhz": lambda index: 300 if index < 40 else 1500,
            "utilization_percent": lambda index: 0 if index < 40 else 99,
        },
        {"throttle_reasons": lambda index: "thermal" if index == 3 else ""},
        {"ecc_corrected": 7},
        {"core_mhz": lambda index: 1500 - index % 100},
    ],
)
def test_normal_variation_raises_no_flag(write_samples, change):
    assert find_flags(write_samples(101, **NORMAL | change)) == {}


def test_one_idle_gpu_of_two_is_flagged_but_not_by_two_samples(write_samples):
    write_samples(101, **NORMAL)
    run_dir = write_samples(101, device="1", **NORMAL | {"utilization_percent": 0})
    assert list(find_flags(run_dir)) == ["low utilization"]
    (run_dir / "telemetry.csv").unlink()
    assert find_flags(write_samples(3, 50.0, **NORMAL | {"utilization_percent": 0})) == {}


def test_loader_bound_and_missing_samples_are_flagged(write_samples):
    flags = find_flags(write_samples(51, **NORMAL), train_seconds=80.0, data_wait_seconds=8.0)
    assert list(flags) == ["loader-bound", "telemetry"]
    assert "only 50% of the clock" in flags["telemetry"]


def test_loader_bound_starts_at_5_percent(write_samples):
    run_dir = write_samples(101, **NORMAL)
    assert find_flags(run_dir, train_seconds=80.0, data_wait_seconds=3.2) == {}
    flags = find_flags(run_dir, train_seconds=80.0, data_wait_seconds=4.8)
    assert "6% of training" in flags["loader-bound"]


def test_result_table_shows_energy_cost_and_flags(write_samples):
    run_dir = write_samples(101, **NORMAL | {"throttle_reasons": "thermal"}, energy_joules=lambda index: 210.0 * index)
    report = summarize(run_dir)
    record = RunRecord(telemetry=report.telemetry, cost=report.cost, flags=report.flags)
    out = io.StringIO()
    show_result(Console(file=out, width=200), "run", record, RunDir(run_dir, 1))
    for line in (
        "energy        21 kJ, 210 W on average (NVML energy counter)",
        "0.2381 samples/J",
        "cost          $0.1 at $3.6 an hour",
        "throttled     clocks were lowered (thermal) in 100% of a GPU's samples",
    ):
        assert line in out.getvalue()


@pytest.mark.parametrize(
    ("change", "flags"),
    [
        ({"core_mhz": lambda index: 1500 if index < 80 else 1320}, ["clock spread"]),  # 12%
        ({"core_mhz": lambda index: 1500 if index < 80 else 1380}, []),  # 8%
        ({"core_mhz": lambda index: 1500 if index > 3 else 300}, []),  # 5% of outliers are ignored
        (
            {
                "core_mhz": lambda index: 1500 if index < 80 else 300,
                "utilization_percent": lambda index: 99 if index < 80 else 30,
            },
            [],
        ),
        ({"core_mhz": lambda index: 1500 if index < 80 else 1100, "utilization_percent": ""}, ["clock spread"]),
        (
            {
                "core_mhz": lambda index: 1500 if index < 80 else 300,
                "phase": lambda index: "train" if index < 80 else "eval",
            },
            [],
        ),
        ({"throttle_reasons": lambda index: "thermal" if index < 2 else ""}, ["throttled"]),  # 2%
        ({"ecc_corrected": lambda index: 7 if index < 50 else 0}, []),  # a counter that was reset
    ],
)
def test_flags_start_at_their_thresholds(write_samples, change, flags):
    assert list(find_flags(write_samples(101, **NORMAL | change))) == flags


def test_worst_gpu_counts(write_samples):
    write_samples(101, **NORMAL)
    throttled = {"throttle_reasons": lambda index: "thermal" if index < 2 else ""}
    flags = find_flags(write_samples(101, device="1", **NORMAL | throttled))
    assert "in 2% of a GPU's" in flags["throttled"]


def test_gpus_that_were_not_sampled_are_flagged(write_samples):
    flags = find_flags(write_samples(101, **NORMAL), num_gpus_expected=2)
    assert flags == {"telemetry": "only 1 of 2 GPUs were sampled: energy covers these only"}


def test_ecc_error_in_the_last_sample_counts(write_samples):
    run_dir = write_samples(101, **NORMAL, ecc_corrected=lambda index: int(index == 100))
    assert "1 corrected" in find_flags(run_dir)["ECC errors"]


def test_few_samples_have_no_clock_spread(write_samples):
    run_dir = write_samples(14, 8.0, **NORMAL | {"core_mhz": lambda index: 1500 if index else 900})
    assert find_flags(run_dir) == {}


@pytest.mark.parametrize(
    ("change", "data_wait", "share"),
    [
        ({}, 0.0, 0.0),
        ({"throttle_reasons": lambda index: "thermal" if index < 12 else ""}, 0.0, 12 / 101),
        ({}, 8.0, 0.08),
        ({"throttle_reasons": lambda index: "thermal" if index < 12 else ""}, 8.0, 0.08 + 12 / 101),
    ],
)
def test_flags_say_how_much_of_the_time_they_can_have_cost(write_samples, change, data_wait, share):
    report = summarize(write_samples(101, **NORMAL | change), train_seconds=80.0, data_wait_seconds=data_wait)
    assert report.disturbed_share == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(("gpus", "share"), [({"a": 97.0, "b": 91.0}, 0.06), ({}, 1.0)])
def test_a_busy_host_costs_at_most_the_time_in_which_gpus_were_idle(gpus, share):
    """Nothing bounds what it costs a run on the processors themselves."""
    samples = {
        name: [TelemetrySample(float(time), "train", "", {"utilization_percent": percent}, "") for time in range(9)]
        for name, percent in gpus.items()
    }
    load = HostLoad(processors=2.0, run=0.6, other_processes=0.4, other_processes_before=None)
    found = disturbed_share({"busy host"}, samples, load, data_wait_seconds=0.0, active_seconds=9.0)
    assert found == pytest.approx(share)
    assert disturbed_share(set(), samples, load, data_wait_seconds=0.0, active_seconds=9.0) == 0

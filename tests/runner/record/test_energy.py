"""Energy, power and cost from samples written by hand."""

import pytest

from timetrial.runner.record import energy

NORMAL = {
    "core_mhz": 1500,
    "utilization_percent": 99,
    "power_watts": 200,
    "throttle_reasons": "power",
    "other_processes": 0,
}


def summarize(run_dir, samples=5000, active_seconds=100.0, usd_per_hour=3.6):
    return energy.summarize_telemetry(
        run_dir,
        train_seconds=None,
        data_wait_seconds=0.0,
        active_seconds=active_seconds,
        samples=samples,
        usd_per_hour=usd_per_hour,
    )


def test_energy_comes_from_the_counter_if_there_is_one(write_samples):
    report = summarize(write_samples(101, **NORMAL, energy_joules=lambda index: 7e6 + 210 * index))
    assert report.flags == {}
    telemetry = report.telemetry
    assert (telemetry.energy_joules, telemetry.energy_source) == (pytest.approx(21000), "NVML energy counter")
    assert telemetry.integral_joules == pytest.approx(20000)
    assert telemetry.mean_watts == pytest.approx(210)
    assert telemetry.samples_per_joule == pytest.approx(5000 / 21000)
    assert report.cost.usd == pytest.approx(0.1)


def test_energy_without_counter_is_the_integral_of_the_power(write_samples):
    """A ramp of 2 W per second, which trapezoids integrate exactly, on two GPUs."""
    for device in ("0", "1"):
        run_dir = write_samples(201, 0.5, device=device, power_watts=lambda index: index * 1.0)
    telemetry = summarize(run_dir).telemetry
    assert telemetry.energy_joules == pytest.approx(2 * 100 * 100)
    assert telemetry.energy_source == "integral of NVML power at 2 Hz"


def test_averaged_power_counts_for_the_time_before_the_sample(write_samples):
    """A GPU that is idle until the clock starts, and then draws 600 W."""
    run_dir = write_samples(11, power_averaging_seconds=1.0, power_watts=lambda index: 600 if index else 100)
    assert summarize(run_dir).telemetry.integral_joules == pytest.approx(6000)


def test_without_training_samples_there_are_no_samples_per_joule(write_samples):
    run_dir = write_samples(11, **NORMAL)
    telemetry = summarize(run_dir, samples=0, active_seconds=None, usd_per_hour=None).telemetry
    assert (telemetry.energy_joules, telemetry.samples_per_joule) == (pytest.approx(2000), None)


def test_energy_is_summed_over_nodes(write_samples):
    write_samples(101, **NORMAL)
    telemetry = summarize(write_samples(101, node=1, **NORMAL)).telemetry
    assert (telemetry.gpus, telemetry.energy_joules) == (2, pytest.approx(40000))


def test_time_between_two_attempts_is_left_out(write_samples):
    """Each attempt begins and ends off the clock or in a kill; an hour lies between them."""
    write_samples(51, **NORMAL)
    telemetry = summarize(write_samples(51, start=4600.0, **NORMAL)).telemetry
    assert (telemetry.seconds, telemetry.energy_joules) == (pytest.approx(100), pytest.approx(20000))


def test_reset_of_a_counter_loses_nothing(write_samples):
    run_dir = write_samples(101, energy_joules=lambda index: 200.0 * (index % 50), **NORMAL)
    assert summarize(run_dir).telemetry.energy_joules == pytest.approx(20000)


def test_one_missing_value_is_bridged_and_many_are_not(write_samples):
    run_dir = write_samples(101, power_watts=lambda index: 200 if index != 40 else "")
    assert summarize(run_dir).telemetry.energy_joules == pytest.approx(20000)
    run_dir = write_samples(101, device="1", power_watts=lambda index: 200 if index < 90 else "")
    assert summarize(run_dir).telemetry.energy_joules is None


def test_host_energy_is_reported_separately(write_samples):
    write_samples(101, **NORMAL)
    run_dir = write_samples(101, device="host", source="system", host_energy_joules=lambda index: 50.0 * index)
    telemetry = summarize(run_dir).telemetry
    assert telemetry.host_energy_joules == pytest.approx(5000)
    assert telemetry.host_energy_source == "RAPL energy counter"
    assert telemetry.energy_joules == pytest.approx(20000)


def test_host_energy_is_not_taken_for_gpu_energy(write_samples):
    write_samples(101, **NORMAL | {"power_watts": ""})
    run_dir = write_samples(101, device="host", source="system", host_energy_joules=lambda index: 50.0 * index)
    telemetry = summarize(run_dir).telemetry
    assert (telemetry.mean_watts, telemetry.samples_per_joule) == (None, None)
    assert telemetry.host_energy_joules == pytest.approx(5000)


def test_without_any_energy_source_energy_is_none(write_samples):
    report = summarize(write_samples(101, device="host", source="system", cpu_percent=80))
    assert report.telemetry.energy_joules is None
    assert report.telemetry.mean_watts is None
    assert report.flags == {}


def test_without_samples_there_is_a_cost_and_no_telemetry(tmp_path):
    report = summarize(tmp_path)
    assert (report.telemetry, report.flags) == (None, {})
    assert (report.cost.usd, report.cost.usd_per_hour) == (pytest.approx(0.1), 3.6)
    assert summarize(tmp_path, active_seconds=None).cost is None
    assert summarize(tmp_path, usd_per_hour=None).cost is None


def test_integral_is_used_unless_every_gpu_has_a_counter(write_samples):
    write_samples(101, **NORMAL, energy_joules=lambda index: 210.0 * index)
    run_dir = write_samples(101, device="1", **NORMAL)
    telemetry = summarize(run_dir).telemetry
    assert telemetry.energy_joules == pytest.approx(40000)
    assert telemetry.energy_source.startswith("integral")


def test_core_clock_and_time_at_power_cap(write_samples):
    run_dir = write_samples(101, **NORMAL | {"core_mhz": lambda index: 1500 - index % 3})
    telemetry = summarize(run_dir).telemetry
    assert telemetry.core_mhz == (1498, 1499, 1500)
    assert telemetry.at_power_cap == 1


def test_long_sampling_interval_leaves_no_gaps(write_samples):
    assert summarize(write_samples(11, 10.0, **NORMAL)).telemetry.seconds == pytest.approx(100)


def test_short_run_on_a_cpu(write_samples):
    run_dir = write_samples(2, 1.0, device="host", source="system", host_energy_joules=lambda index: 50.0 * index)
    report = summarize(run_dir, active_seconds=4.0)
    assert report.flags == {}  # too short to flag missing samples
    assert report.telemetry.mean_watts == pytest.approx(50)


def test_mean_power_of_training_and_of_evaluation(write_samples):
    write_samples(51, **NORMAL)
    run_dir = write_samples(51, start=1050.5, phase="eval", **NORMAL | {"power_watts": 100})
    telemetry = summarize(run_dir).telemetry
    assert (telemetry.train_watts, telemetry.eval_watts) == (pytest.approx(200), pytest.approx(100))

"""Faults of sensors: the energy is within 2% of the truth, or there is none and a flag says why."""

import math

import pytest

from timetrial.runner.record import energy

SECONDS, WATTS = 100, 300.0
TRUE_JOULES = SECONDS * WATTS
BAD = 40  # index of the faulty sample


def reading(index):
    """The energy counter without a fault: driver loaded long ago, load that varies by 10%."""
    return 7_000_123.0 + WATTS * index + 30 * math.sin(index)


def power(index):
    return WATTS + 30 * math.cos(index)


def at_one_sample(change):
    return lambda index: change(reading(index)) if index == BAD else reading(index)


COUNTER_FAULTS = {
    "zero": at_one_sample(lambda joules: 0.0),
    "lost digit": at_one_sample(lambda joules: joules // 10),
    "flipped high bit": at_one_sample(lambda joules: float(int(joules) ^ 1 << 22)),
    "flipped low bit": at_one_sample(lambda joules: float(int(joules) ^ 1 << 9)),
    "negative": at_one_sample(lambda joules: -joules),
    "spike": at_one_sample(lambda joules: joules * 1e6),
    "missing": at_one_sample(lambda joules: ""),
    "reset": lambda index: reading(index) - (reading(BAD) if index >= BAD else 0.0),
    "32-bit wrap": lambda index: (reading(index) + 2**32 / 1e3 - reading(BAD)) % (2**32 / 1e3),
    "stuck for a while": lambda index: reading(BAD if BAD <= index < BAD + 15 else index),
    "stuck": lambda index: reading(min(index, BAD)),
    "first sample": lambda index: reading(index) if index else 0.0,
    "last sample": lambda index: reading(index) if index < SECONDS else 0.0,
}
POWER_FAULTS = {
    "zero": lambda watts: 0.0,
    "lost digit": lambda watts: watts // 10,
    "flipped bit": lambda watts: float(int(watts) ^ 1 << 14),
    "negative": lambda watts: -watts,
    "spike": lambda watts: 1e6,
    "missing": lambda watts: "",
}


def summarize(run_dir, **changes):
    arguments = {"train_seconds": None, "data_wait_seconds": 0.0, "active_seconds": float(SECONDS), "samples": 1}
    return energy.summarize_telemetry(run_dir, **arguments | {"usd_per_hour": None} | changes)


def is_true_or_flagged(report, tolerance=0.02):
    joules = report.telemetry.energy_joules
    if joules is None:
        return bool(report.flags.keys() & {"energy", "telemetry"})
    return joules == pytest.approx(TRUE_JOULES, rel=tolerance)


@pytest.mark.parametrize("cap", ["", 350])
@pytest.mark.parametrize("fault", COUNTER_FAULTS)
def test_faulty_counter(write_samples, fault, cap):
    run_dir = write_samples(
        SECONDS + 1, power_watts=power, power_cap_watts=cap, energy_joules=COUNTER_FAULTS[fault], source="amdsmi"
    )
    report = summarize(run_dir)
    assert report.telemetry.energy_joules is not None  # the integral is at hand
    assert is_true_or_flagged(report), report
    is_harmless = fault in ("missing", "stuck for a while")
    assert ("energy" in report.flags) == (not is_harmless)
    assert (report.telemetry.implausible_samples > 0) == (not is_harmless)


@pytest.mark.parametrize("fault", COUNTER_FAULTS)
def test_faulty_counter_of_a_device_without_power(write_samples, fault):
    """As the host's, and that of some GPUs."""
    column = {"device": "host", "source": "system", "host_energy_joules": COUNTER_FAULTS[fault]}
    report = summarize(write_samples(SECONDS + 1, **column))
    joules = report.telemetry.host_energy_joules
    if fault == "stuck":  # for more than half of the run: the sensor alone cannot show it
        assert joules < TRUE_JOULES
    else:
        assert joules == pytest.approx(TRUE_JOULES, rel=0.02)


@pytest.mark.parametrize("cap", ["", 350])
@pytest.mark.parametrize("fault", POWER_FAULTS)
def test_faulty_power(write_samples, fault, cap):
    change = POWER_FAULTS[fault]
    watts = {"power_watts": lambda index: change(power(index)) if index == BAD else power(index)}
    assert is_true_or_flagged(summarize(write_samples(SECONDS + 1, power_cap_watts=cap, **watts)))


@pytest.mark.parametrize("shift", [-3600.0, 3600.0, -1.5, 1.5])
@pytest.mark.parametrize("duration", [1, 3])
def test_faulty_time(write_samples, shift, duration):
    """The time of one sample, or of three, is not that of the others."""
    run_dir = write_samples(SECONDS + 1, power_watts=power, energy_joules=reading)
    lines = (run_dir / "telemetry.csv").read_text().splitlines(keepends=True)
    for place in range(BAD, BAD + duration):
        time, _, rest = lines[place].partition(",")
        lines[place] = f"{float(time) + shift},{rest}"
    (run_dir / "telemetry.csv").write_text("".join(lines))
    assert is_true_or_flagged(summarize(run_dir))


@pytest.mark.parametrize("num_missing", [1, 3, 8, 30])
def test_missing_samples(write_samples, num_missing):
    run_dir = write_samples(SECONDS + 1, power_watts=power, energy_joules=reading)
    lines = (run_dir / "telemetry.csv").read_text().splitlines(keepends=True)
    (run_dir / "telemetry.csv").write_text("".join(lines[:BAD] + lines[BAD + num_missing :]))
    report = summarize(run_dir)
    assert is_true_or_flagged(report) or "only" in report.flags["telemetry"]


def test_figures_that_contradict_each_other_give_no_energy(write_samples):
    run_dir = write_samples(SECONDS + 1, power_watts=power, energy_joules=lambda index: 0.8 * WATTS * index)
    report = summarize(run_dir)
    telemetry = report.telemetry
    figures = (telemetry.energy_joules, telemetry.mean_watts, telemetry.train_watts, telemetry.samples_per_joule)
    assert figures == (None,) * 4
    assert "so no energy is reported" in report.flags["energy"]


def test_bursts_between_two_samples_are_no_fault(write_samples):
    """A GPU that is idle whenever its power is read, and at half its cap in between."""
    run_dir = write_samples(9, power_watts=60, power_cap_watts=400, energy_joules=lambda index: 200.0 * index)
    report = summarize(run_dir, active_seconds=8.0)
    assert (report.telemetry.energy_joules, report.flags) == (pytest.approx(1600), {})


def test_cost_includes_work_that_a_kill_discarded(write_samples):
    """Two attempts of 50 s, an hour apart; the second repeated 20 s of the first."""
    write_samples(51, power_watts=200)
    report = summarize(write_samples(51, start=4600.0, power_watts=200), active_seconds=80.0, usd_per_hour=3600.0)
    assert report.cost.usd == pytest.approx(100)


@pytest.mark.parametrize("content", ["sparse", "line"])
def test_enormous_file_is_not_read(write_samples, content):
    run_dir = write_samples(SECONDS + 1, power_watts=power)
    with open(run_dir / "telemetry_1.csv", "wb") as file:
        file.truncate(1 << 40) if content == "sparse" else file.write(b"time,phase\n" + b"x" * (1 << 20))
    assert summarize(run_dir).telemetry.energy_joules == pytest.approx(TRUE_JOULES, rel=0.02)

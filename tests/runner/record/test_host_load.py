"""The load of the host: shares of the run and of other processes, and the flag that follows from them."""

import re

import pytest

from timetrial.runner.record import energy
from timetrial.runner.record.host_load import measure_host_load
from timetrial.runner.record.run_record import HostLoad
from timetrial.runner.record.telemetry_samples import read_samples


@pytest.fixture
def write_host(write_samples):
    """write_host(run, idle, processors=2, **options) writes a sample a second; run and idle are processors in use."""

    def write(run, idle, processors=2, *, count=101, **options):
        columns = {
            "usable_processors": processors,
            "run_cpu_seconds": lambda index: 5 + run * index,
            "idle_cpu_seconds": lambda index: 900 + idle * index,
        }
        return write_samples(count, **{"device": "host", "source": "system"} | columns | options)

    return write


def find_flags(run_dir):
    return energy.summarize_telemetry(
        run_dir, train_seconds=None, data_wait_seconds=0.0, active_seconds=100.0, samples=1, usd_per_hour=None
    ).flags


def measure(run_dir):
    return measure_host_load(read_samples(run_dir))


def test_time_that_is_neither_idle_nor_the_runs_is_that_of_other_processes(write_host):
    load = measure(write_host(run=1.2, idle=0.3))
    assert (load.processors, load.other_processes_before) == (2.0, None)
    assert load.run == pytest.approx(0.6)
    assert load.other_processes == pytest.approx(0.25)


def test_summary_and_flag_state_the_load(write_host):
    write_host(run=0.0, idle=0.8, start=990.0, count=11, phase="")
    run_dir = write_host(run=1.0, idle=0.0)
    summary = energy.summarize_telemetry(
        run_dir, train_seconds=None, data_wait_seconds=0.0, active_seconds=100.0, samples=1, usd_per_hour=None
    )
    load = summary.telemetry.host_load
    assert load.other_processes == pytest.approx(0.5)
    assert summary.flags == {
        "busy host": "other processes used 50% of the run's 2 processors (60% before the clock started)"
    }


@pytest.mark.parametrize(
    ("others", "before", "flags"),
    [(0.04, 0.0, []), (0.06, 0.0, ["busy host"]), (0.0, 0.2, []), (0.0, 0.3, ["busy host"]), (0.0, None, [])],
)
def test_flag_starts_at_its_thresholds(write_host, others, before, flags):
    if before is not None:
        write_host(run=0.0, idle=2 * (1 - before), start=990.0, count=11, phase="")
    run_dir = write_host(run=1.0, idle=1.0 - 2 * others)
    assert list(find_flags(run_dir)) == flags


def test_run_that_needs_all_processors_is_not_flagged(write_host):
    assert find_flags(write_host(run=1.99, idle=0.0)) == {}


@pytest.mark.parametrize(("run", "idle", "others"), [(2.0, 3.0, 0.0), (1.5, 0.0, 0.25), (0.5, 1.0, 0.25)])
def test_other_processes_count_as_far_as_they_leave_less_than_the_limit_of_the_cgroup(write_host, run, idle, others):
    """The run may use 2 processors at once, of 8 on which it may run."""
    assert measure(write_host(run=run, idle=idle)).other_processes == pytest.approx(others)


def test_host_with_the_most_other_processes_counts(write_host):
    write_host(run=1.0, idle=0.9)
    load = measure(write_host(run=1.0, idle=0.4, processors=4, node=1))
    assert (load.processors, load.other_processes) == (4.0, pytest.approx(0.65))


def test_counter_of_a_resumed_run_starts_again(write_host):
    """The attempts lie a minute apart; only time on the clock counts."""
    write_host(run=1.0, idle=0.96, count=51)
    load = measure(write_host(run=1.0, idle=0.96, start=1110.0, count=51))
    assert load == HostLoad(2.0, pytest.approx(0.5), pytest.approx(0.02), None)


@pytest.mark.parametrize("missing", ["usable_processors", "idle_cpu_seconds", "run_cpu_seconds"])
def test_unknown_load_is_no_flag(write_host, missing):
    run_dir = write_host(run=0.1, idle=0.0, **{missing: ""})
    assert measure(run_dir) is None
    assert find_flags(run_dir) == {}


def test_clock_of_a_few_counter_steps_has_no_load(write_host):
    assert measure(write_host(run=1.0, idle=0.0, count=2, interval=0.1)) is None


@pytest.mark.integration
def test_run_records_the_load_of_its_host(launch):
    _, run_dir = launch("recipe.target.v05.hit_rate=0.99", "recipe.max_epochs=30")
    record = run_dir.record()
    load = record.telemetry.host_load
    assert load.processors == pytest.approx(record.environment["cpu"]["usable_cores"])
    assert 0 < load.run <= 1
    assert 0 <= load.other_processes < 1
    assert load.run + load.other_processes <= 1.02
    busy = load.other_processes > 0.05 or (load.other_processes_before or 0) > 0.25
    assert ("busy host" in record.flags) == busy
    if busy:
        assert re.match(r"other processes used \d+% of the run's [\d.]+ processors", record.flags["busy host"])

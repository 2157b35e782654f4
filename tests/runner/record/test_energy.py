"""Energy, cost and flags out of written samples: each flag is raised by its cause and by nothing else."""

import io
import re

import pytest
from rich.console import Console

from timetrial.runner.callbacks import summary
from timetrial.runner.callbacks.telemetry import COLUMNS
from timetrial.runner.record import energy
from timetrial.runner.record.run_dir import RunDir

CLEAN = {"core_mhz": 1500, "load_percent": 99, "power_watts": 200, "throttle": "power", "neighbours": 0}


@pytest.fixture
def samples(tmp_path):
    """samples(number, every, device=..., **columns) appends rows; a column may be a function of the row's number."""

    def write(number, every=1.0, *, start=1000.0, device="0", source="NVML", phase="train", node=0, **columns):
        path = tmp_path / (f"telemetry_{node}.csv" if node else "telemetry.csv")
        new = not path.exists()
        with open(path, "a") as file:
            if new:
                file.write(",".join(COLUMNS) + "\n")
            for place in range(number):
                last = place == number - 1
                row = {"time": start + place * every, "phase": "" if last else phase, "device": device}
                row |= {"source": source}
                row |= {name: value(place) if callable(value) else value for name, value in columns.items()}
                file.write(",".join(str(row.get(name, "")) for name in COLUMNS) + "\n")
        return tmp_path

    return write


def judged(folder, **result):
    return energy.judge(folder, {"active_seconds": 100.0} | result, 5000, 3.6)


def test_energy_is_the_counters_where_there_is_one(samples):
    folder = samples(101, **CLEAN, energy_joules=lambda place: 7e6 + 210 * place)
    found = judged(folder)
    assert found["flags"] == {}
    told = found["telemetry"]
    assert (told["energy_joules"], told["energy_source"]) == (pytest.approx(21000), "NVML's counter")
    assert told["integral_joules"] == pytest.approx(20000)
    assert told["mean_watts"] == pytest.approx(210)
    assert told["samples_per_joule"] == pytest.approx(5000 / 21000)
    assert found["cost"]["dollars"] == pytest.approx(0.1)


def test_energy_is_the_integral_elsewhere_and_says_at_what_rate(samples):
    """A ramp of 2 W a second, which trapezoids integrate exactly, on two cards."""
    for device in ("0", "1"):
        folder = samples(201, 0.5, device=device, power_watts=lambda place: place * 1.0)
    told = judged(folder)["telemetry"]
    assert told["energy_joules"] == pytest.approx(2 * 100 * 100)
    assert told["energy_source"] == "integral of NVML's watts at 2 Hz"


def test_watts_that_are_a_mean_belong_to_the_time_before_them(samples):
    """A card that is idle until the clock starts, and then draws 600 W."""
    folder = samples(11, watts_over_seconds=1.0, power_watts=lambda place: 600 if place else 100)
    assert judged(folder)["telemetry"]["integral_joules"] == pytest.approx(6000)


def test_no_samples_are_no_samples_a_joule(samples):
    told = energy.judge(samples(11, **CLEAN), {}, 0, None)["telemetry"]
    assert (told["energy_joules"], told["samples_per_joule"]) == (pytest.approx(2000), None)


def test_nodes_add_up(samples):
    samples(101, **CLEAN)
    folder = samples(101, node=1, **CLEAN)
    told = judged(folder)["telemetry"]
    assert (told["cards"], told["energy_joules"]) == (2, pytest.approx(40000))


def test_the_time_between_two_attempts_is_nobodys(samples):
    """Each attempt begins and ends off the clock or in a kill; an hour lies between them."""
    samples(51, **CLEAN)
    folder = samples(51, start=4600.0, **CLEAN)
    told = judged(folder)["telemetry"]
    assert (told["seconds"], told["energy_joules"]) == (pytest.approx(100), pytest.approx(20000))


def test_a_counter_that_begins_anew_takes_nothing_back(samples):
    folder = samples(101, energy_joules=lambda place: 10.0 * (place % 50), **CLEAN)
    assert judged(folder)["telemetry"]["energy_joules"] == pytest.approx(980)


def test_a_look_that_told_nothing_is_bridged_and_many_are_not(samples):
    folder = samples(101, power_watts=lambda place: 200 if place != 40 else "")
    assert judged(folder)["telemetry"]["energy_joules"] == pytest.approx(20000)
    folder = samples(101, device="1", power_watts=lambda place: 200 if place < 90 else "")
    assert judged(folder)["telemetry"]["energy_joules"] is None


def test_the_hosts_energy_stands_apart(samples):
    samples(101, **CLEAN)
    folder = samples(101, device="host", source="system", host_energy_joules=lambda place: 50.0 * place)
    told = judged(folder)["telemetry"]
    assert (told["host_energy_joules"], told["host_energy_source"]) == (pytest.approx(5000), "RAPL's counter")
    assert told["energy_joules"] == pytest.approx(20000)


def test_without_a_source_nothing_is_claimed(samples):
    folder = samples(101, device="host", source="system", cpu_percent=80)
    found = judged(folder)
    assert found["telemetry"]["energy_joules"] is None
    assert found["telemetry"]["mean_watts"] is None
    assert found["flags"] == {}


@pytest.mark.parametrize(
    ("change", "flag", "words"),
    [
        ({"throttle": lambda place: "thermal" if place < 12 else ""}, "throttled", r"\(thermal\) in 12% of a card's"),
        ({"throttle": "power+hardware"}, "throttled", r"\(hardware\) in 100%"),
        ({"core_mhz": lambda place: 1500 if place < 80 else 1100}, "clock spread", "from 1100 to 1500 MHz"),
        ({"load_percent": lambda place: 27 if place > 40 else 99}, "low utilisation", "for only 27% of training"),
        ({"neighbours": lambda place: int(place > 49)}, "neighbours", "in 50% of its samples"),
        ({"ecc_corrected": lambda place: 7 + (place > 30)}, "ECC errors", "1 corrected"),
        ({"ecc_uncorrected": lambda place: int(place > 30)}, "ECC errors", "1 uncorrected"),
    ],
)
def test_each_flag_has_its_cause(samples, change, flag, words):
    found = judged(samples(101, **CLEAN | change))
    assert list(found["flags"]) == [flag]
    assert re.search(words, found["flags"][flag])


@pytest.mark.parametrize(
    "change",
    [
        {"core_mhz": lambda place: 300 if place < 40 else 1500, "load_percent": lambda place: 0 if place < 40 else 99},
        {"throttle": lambda place: "thermal" if place == 3 else ""},
        {"ecc_corrected": 7},
        {"core_mhz": lambda place: 1500 - place % 100},
    ],
)
def test_what_is_usual_raises_none(samples, change):
    assert judged(samples(101, **CLEAN | change))["flags"] == {}


def test_one_idle_card_of_two_is_seen_and_two_looks_tell_no_load(samples):
    samples(101, **CLEAN)
    folder = samples(101, device="1", **CLEAN | {"load_percent": 0})
    assert list(judged(folder)["flags"]) == ["low utilisation"]
    (folder / "telemetry.csv").unlink()
    assert judged(samples(3, 50.0, **CLEAN | {"load_percent": 0}))["flags"] == {}


def test_loader_bound_and_half_a_watch_are_said_too(samples):
    found = judged(samples(51, **CLEAN), train_seconds=80.0, data_wait_seconds=8.0)
    assert list(found["flags"]) == ["loader-bound", "telemetry"]
    assert "only 50% of the clock" in found["flags"]["telemetry"]


def test_the_table_says_it(samples):
    folder = samples(101, **CLEAN | {"throttle": "thermal"}, energy_joules=lambda place: 210.0 * place)
    out = io.StringIO()
    summary.show(Console(file=out, width=200), "run", judged(folder), RunDir(folder, 1))
    for words in (
        "energy        21 kJ, 210 W on average (NVML's counter)",
        "0.2381 samples/J",
        "cost          $0.1 at $3.6 an hour",
        "throttled     clocks were lowered (thermal) in 100% of a card's samples",
    ):
        assert words in out.getvalue()


@pytest.mark.parametrize(
    ("change", "flags"),
    [
        ({"core_mhz": lambda place: 1500 if place < 80 else 1320}, ["clock spread"]),  # 12%
        ({"core_mhz": lambda place: 1500 if place < 80 else 1380}, []),  # 8%
        ({"core_mhz": lambda place: 1500 if place > 3 else 300}, []),  # a twentieth is passed over
        ({"core_mhz": lambda place: 1500 if place < 80 else 300, "load_percent": lambda p: 99 if p < 80 else 30}, []),
        ({"core_mhz": lambda place: 1500 if place < 80 else 1100, "load_percent": ""}, ["clock spread"]),
        ({"core_mhz": lambda place: 1500 if place < 80 else 300, "phase": lambda p: "train" if p < 80 else "eval"}, []),
        ({"throttle": lambda place: "thermal" if place < 2 else ""}, ["throttled"]),  # 2%
        ({"ecc_corrected": lambda place: 7 if place < 50 else 0}, []),  # a counter that begins anew is no error
    ],
)
def test_flags_begin_at_their_thresholds(samples, change, flags):
    assert list(judged(samples(101, **CLEAN | change))["flags"]) == flags


def test_the_worst_card_counts_and_all_must_have_a_counter(samples):
    samples(101, **CLEAN, energy_joules=lambda place: 210.0 * place)
    folder = samples(101, device="1", **CLEAN | {"throttle": lambda place: "thermal" if place < 2 else ""})
    found = judged(folder)
    assert "throttled" in found["flags"]
    assert "in 2% of a card's" in found["flags"]["throttled"]
    assert found["telemetry"]["energy_joules"] == pytest.approx(40000)
    assert found["telemetry"]["energy_source"].startswith("integral")


def test_what_is_told_besides_energy(samples):
    told = judged(samples(101, **CLEAN | {"core_mhz": lambda place: 1500 - place % 3}))["telemetry"]
    assert told["core_mhz"] == [1498, 1499, 1500]
    assert told["at_power_cap"] == 1


def test_slow_looks_leave_no_gaps(samples):
    told = judged(samples(11, 10.0, **CLEAN))["telemetry"]
    assert told["seconds"] == pytest.approx(100)


def test_a_short_run_and_a_processor(samples):
    folder = samples(2, 1.0, device="host", source="system", host_energy_joules=lambda place: 50.0 * place)
    found = judged(folder, active_seconds=4.0)
    assert found["flags"] == {}  # too short to say that looks are missing
    assert found["telemetry"]["mean_watts"] == pytest.approx(50)


def test_loader_bound_begins_at_a_twentieth(samples):
    folder = samples(101, **CLEAN)
    assert judged(folder, train_seconds=80.0, data_wait_seconds=3.2)["flags"] == {}
    assert "6% of training" in judged(folder, train_seconds=80.0, data_wait_seconds=4.8)["flags"]["loader-bound"]


def test_cards_that_nobody_sampled_are_missed(samples):
    folder = samples(101, **CLEAN)
    told = energy.judge(folder, {"active_seconds": 100.0}, 5000, None, 2)["flags"]
    assert told == {"telemetry": "only 1 of 2 cards were sampled: energy is that of these"}


def test_an_error_that_the_last_look_sees_counts(samples):
    folder = samples(101, **CLEAN, ecc_corrected=lambda place: int(place == 100))
    assert "1 corrected" in judged(folder)["flags"]["ECC errors"]


def test_watts_of_training_and_of_evaluation(samples):
    samples(51, **CLEAN)
    folder = samples(51, start=1050.5, phase="eval", **CLEAN | {"power_watts": 100})
    told = judged(folder)["telemetry"]
    assert (told["train_watts"], told["eval_watts"]) == (pytest.approx(200), pytest.approx(100))


def test_processors_energy_is_not_a_cards(samples):
    samples(101, **CLEAN | {"power_watts": ""})
    folder = samples(101, device="host", source="system", host_energy_joules=lambda place: 50.0 * place)
    told = judged(folder)["telemetry"]
    assert (told["mean_watts"], told["samples_per_joule"]) == (None, None)
    assert told["host_energy_joules"] == pytest.approx(5000)


def test_few_clocks_have_no_spread(samples):
    assert judged(samples(14, 8.0, **CLEAN | {"core_mhz": lambda place: 1500 if place else 900}))["flags"] == {}

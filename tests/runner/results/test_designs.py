"""The designs that people really run, on the command line: pods, shared seeds, blocks, drift, a busy host.

Each case is two folders of run records and logs of equal or unequal GPUs, judged by `timetrial compare`.
"""

import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from timetrial.runner.cli.app import app
from timetrial.runner.record.attempt import Attempt
from timetrial.runner.record.record_file import encode_record
from timetrial.runner.record.run_record import RunRecord, RunState

CONFIG = {
    "round": {"name": "v07"},
    "submission": {"org": "unofficial"},
    "system": "box",
    "accelerator": {"name": "h100"},
    "gpus": 1,
    "precision": {"name": "bf16"},
    "recipe": {"scale": "mini"},
    "workload": {"benchmark": "gnmt"},
    "peer_to_peer": True,
}


@pytest.fixture
def compare(log, tmp_path):
    """Return compare(a, b), which writes a folder of runs for each side and returns the JSON and the printed text.

    A side is a list of runs: epochs, seconds per epoch, and what else is not as usual.
    """

    def write(side, runs):
        for number, run in enumerate(runs):
            folder = tmp_path / side / f"run_{number}"
            writer = log(f"{side}/run_{number}/result_0.txt", benchmark="gnmt")
            writer.seconds += 1e5 * run.get("position", number)
            started = writer.seconds
            writer("seed", run.get("seed", number))("global_batch_size", 2048)("opt_base_learning_rate", 0.002)
            writer("train_samples", run.get("samples", 3_000_000))
            writer("run_start")
            for epoch in range(1, run["epochs"] + 1):
                writer("block_start", first_epoch_num=epoch, epoch_count=1)
                quality = 0.245 if epoch == run["epochs"] else 0.2
                writer.evaluate(epoch, quality, after=run["pace"])
            writer.stop(after=0.0).write()
            record = RunRecord(
                state=RunState.TARGET_REACHED,
                exit_code=0,
                config=CONFIG,
                attempts=(Attempt(started, run.get("host", f"{side}.example"), 1, boot=run.get("boot", "")),),
                environment={"gpus": [{"name": "H100", "id": run["gpu"]}] if "gpu" in run else []},
                flags=run.get("flags", {}),
                disturbed_share=run.get("share"),
                data_digest=run.get("data"),
            )
            (folder / "status.json").write_text(encode_record(record))

    def run(a, b):
        sides = [str(tmp_path / side) for side in "ab"]
        write("a", a)
        write("b", b)
        printed = CliRunner().invoke(app, ["compare", *sides], catch_exceptions=False).stdout
        (found,) = json.loads(CliRunner().invoke(app, ["compare", *sides, "--json"], catch_exceptions=False).stdout)
        return found, " ".join(printed.split())

    return run


def runs(n, pace, deviation=0.002, first_seed=0, **options):
    """Return n runs with seeds of their own whose paces vary; every option is a value or a function of the number."""
    noise = np.random.default_rng(first_seed).standard_normal(n)
    made = []
    for number in range(n):
        values = {key: value(number) if callable(value) else value for key, value in options.items()}
        pace_of_run = pace * (1 + deviation * noise[number])
        made.append({"epochs": 20, "pace": pace_of_run, "seed": first_seed + number, **values})
    return made


def test_pods_with_a_host_name_a_run_are_one_machine(compare):
    """Without GPUs that tell machines apart, a verdict is about these machines and not about GPUs."""
    sides = (runs(4, 60.0, host=lambda number: f"pod-a-{number}"), runs(4, 40.0, first_seed=9, host="pod-b"))
    found, _ = compare(*sides)
    assert (found["verdict"], found["machines"]) == ("faster", "between these two machines")


def test_two_pods_a_side_with_their_gpus_are_two_machines(compare):
    sides = (
        runs(6, 60.0, host=lambda number: f"pod-{number}", gpu=lambda number: f"GPU a{number % 2}"),
        runs(6, 40.0, first_seed=9, host=lambda number: f"pod-{number + 9}", gpu=lambda number: f"GPU b{number % 2}"),
    )
    found, _ = compare(*sides)
    assert (found["verdict"], found["machines"]) == ("faster", "")


def test_equal_seeds_on_three_machines_a_side(compare):
    """The luck of three seeds, 6% of the epochs, is on all machines: three machines do not average it away."""
    epochs = {"a": (190, 200, 212), "b": (200, 214, 222)}
    sides = [
        [
            {
                "epochs": epochs[side][seed],
                "pace": 3.0,
                "seed": first + seed,
                "gpu": f"{side}{machine}",
                "host": f"{machine}",
            }
            for machine in range(3)
            for seed in range(3)
        ]
        for side, first in (("a", 0), ("b", 9))
    ]
    found, _ = compare(*sides)
    assert (found["verdict"], found["machines"]) == ("cannot tell", "")


def test_blocks_on_a_machine_that_drifts(compare):
    """Each run is 1% slower than the last, so b is 5% slower than a, which ran before it, for nothing."""
    sides = [
        runs(
            5,
            60.0,
            first_seed=9 * (side == "b"),
            host="box.example",
            position=lambda number, after=after: number + after,
        )
        for side, after in (("a", 0), ("b", 5))
    ]
    for number, run in enumerate([*sides[0], *sides[1]]):
        run["pace"] *= 1.01**number
    found, printed = compare(*sides)
    assert found["verdict"] == "cannot tell"
    assert found["distorted_by"].startswith("drift: the time per epoch changes by +1.0")
    assert "cannot tell which is faster by time-to-train, on one machine: drift" in printed
    assert "repeat these runs, the sides in turn" in printed


def test_drift_in_turn_hardly_counts(compare):
    sides = [
        runs(6, pace, first_seed=9 * after, host="box.example", position=lambda number, after=after: 2 * number + after)
        for pace, after in ((60.0, 0), (50.0, 1))
    ]
    for run in (*sides[0], *sides[1]):
        run["pace"] *= 1.01 ** run["position"]
    found, _ = compare(*sides)
    assert (found["verdict"], found["machines"], found["distorted_by"]) == ("faster", "on one machine", None)


def test_more_epochs_and_less_time_each(compare):
    """4% more epochs at 4% less time each: the interval contains 1 / (1.04 * 0.96) and the verdict is on the whole."""
    found, _ = compare(runs(5, 60.0, epochs=100), runs(5, 57.6, epochs=104, first_seed=9))
    assert found["low"] <= 1 / (1.04 * 0.96) <= found["high"]
    assert found["verdict"] == "equal"


@pytest.mark.parametrize(
    ("share", "verdict", "reason"),
    [
        (1.0, "cannot tell", "nothing bounds what that costs, so repeat these runs undisturbed"),
        (0.6, "cannot tell", "without it the ratio may be off by -60.0% to +0.0%, so repeat these runs"),
        (0.3, "faster", None),
    ],
)
def test_a_busy_host_bears_no_plain_verdict(compare, share, verdict, reason):
    """Twice as fast as a side whose runs may have lost this share of their time to other work."""
    busy = runs(3, 60.0, flags={"busy host": "other processes used 40%"}, share=share)
    found, printed = compare(busy, runs(3, 30.0, first_seed=9))
    assert found["verdict"] == verdict
    assert (found["distorted_by"] == "disturbed runs (busy host)") == bool(reason)
    assert "validity flags of" in printed
    if reason:
        assert f"disturbed runs (busy host): {reason}" in printed


def test_records_that_do_not_say_what_a_flag_cost_bear_none_either(compare):
    found, _ = compare(runs(3, 60.0, flags={"throttled": "thermal"}), runs(3, 30.0, first_seed=9))
    assert found["verdict"] == "cannot tell"


def test_pairs_of_five_equal_seeds_decide(compare):
    """The epochs vary by 10% with the seed, and alike on both sides, of which one is 4% faster."""
    epochs = (180, 200, 224, 190, 210)
    sides = [runs(5, pace, epochs=lambda number: epochs[number]) for pace in (3.0, 2.8)]
    found, printed = compare(*sides)
    assert (found["verdict"], found["basis"]) == ("faster", "time-to-train of equal seeds")
    assert "times faster" in printed
    assert "their pairs decide" in printed
    for number, run in enumerate(sides[1]):
        run["seed"] = 9 + number
    found, _ = compare(*sides)
    assert (found["verdict"], found["basis"]) == ("cannot tell", "time-to-train")


def test_two_runs_a_side_bear_no_verdict(compare):
    found, printed = compare(runs(2, 60.0), runs(2, 30.0, first_seed=9))
    assert found["verdict"] == "cannot tell"
    assert "fewer than three converged runs with seeds of their own on a side" in printed


def test_repeats_of_one_undisturbed_seed_do_not_dilute_what_was_lost(compare):
    """Four of five seeds may have lost half of their time, however often the fifth was repeated."""
    flags = {"busy host": "other processes used 40%"}
    busy = [*runs(4, 60.0, flags=flags, share=0.5), *(run | {"seed": 4} for run in runs(20, 60.0, deviation=0.02))]
    found, _ = compare(busy, runs(5, 36.0, first_seed=9))
    assert (found["verdict"], found["distorted_by"]) == ("cannot tell", "disturbed runs (busy host)")


def test_pods_of_one_boot_are_one_machine(compare):
    """Each run has a host name and a GPU of its own, but the id of a boot is that of one kernel."""
    sides = []
    for side, pace, first in (("a", 60.0, 0), ("b", 40.0, 9)):
        made = runs(6, pace, first_seed=first, boot=f"boot {side}")
        sides.append([run | {"host": f"{side}-{number}", "gpu": f"{side}{number}"} for number, run in enumerate(made)])
    found, _ = compare(*sides)
    assert (found["verdict"], found["machines"]) == ("faster", "between these two machines")


def test_machines_decide_before_pairs_of_equal_seeds(compare):
    """Pairs over several machines are not independent: neither the verdict nor a row is theirs."""
    sides = [
        runs(
            8,
            pace,
            gpu=lambda number, side=side: f"{side}{number % 2}",
            host=lambda number, side=side: f"{side}{number % 2}",
        )
        for side, pace in (("a", 60.0), ("b", 40.0))
    ]
    found, printed = compare(*sides)
    assert (found["machines"], found["basis"], found["paired"]["ratio"]) == ("", "time-to-train", None)
    assert "paired" not in printed


def test_other_training_data_are_another_task(compare):
    """Half of the data take half of the time: no GPU is faster for that."""
    half = runs(5, 30.0, first_seed=9, data="b" * 64, samples=1_500_000)
    found, printed = compare(runs(5, 60.0, data="a" * 64), half)
    assert found["verdict"] == "not comparable"
    assert "their training sets differ (3000000 samples and 1500000 samples)" in printed


def test_data_in_another_form_are_the_same_task(compare):
    """A later version may prepare the same samples in another form."""
    found, _ = compare(runs(5, 60.0, data="a" * 64), runs(5, 30.0, first_seed=9, data="b" * 64))
    assert found["verdict"] == "faster"


def test_time_per_epoch_holds_for_machines_as_the_verdict_does(compare):
    """Machines 2% apart whose runs vary by 0.2%: the interval of the time per epoch is that of the machines."""
    sides = []
    for side, factors in (("a", (1.0, 1.02)), ("b", (1.01, 1.03))):
        made = runs(6, 60.0, first_seed=9 * (side == "b"), gpu=lambda number, side=side: f"{side}{number % 2}")
        sides.append([run | {"pace": run["pace"] * factors[index % 2]} for index, run in enumerate(made)])
    found, _ = compare(*sides)
    pace = found["seconds_per_epoch"]
    assert pace["low"] < 0.96 < 1.02 < pace["high"]


def test_what_is_not_compared_is_named(compare, log, tmp_path):
    log("a/open/result_0.txt", benchmark="gnmt")("run_start").write()
    (tmp_path / "a/open/status.json").write_text(encode_record(RunRecord(state=RunState.RUNNING, config=CONFIG)))
    log("b/other/result_0.txt", benchmark="ssd")("run_start").evaluate(4, 0.24).stop().write()
    _, printed = compare(runs(3, 60.0), runs(3, 40.0, first_seed=9))
    assert "1 of 4 runs have not finished and are not compared." in printed
    assert "Not compared, because the other side has nothing like it: (ssd" in printed


def test_a_copy_is_no_other_side(compare, tmp_path):
    compare(runs(3, 60.0), runs(3, 40.0, first_seed=9))
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    result = CliRunner().invoke(app, ["compare", str(tmp_path / "a"), str(tmp_path / "copy")])
    assert "hold the same runs" in str(result.exception)

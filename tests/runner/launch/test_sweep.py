"""The summary of a sweep: its best runs, its exit code and sweep.json."""

import json

from timetrial.runner.core.errors import Exit
from timetrial.runner.launch.sweep import JobResult, best_runs, summarize_sweep


def sweep(*runs):
    """Return overrides and results of a throughput sweep; each run is (overrides, rate or exit code)."""
    jobs = [
        JobResult(Exit.TARGET_REACHED, numbers={"samples_per_second": rate, "train_ms": 1.0, "eval_ms": 1.0})
        if isinstance(rate, float)
        else JobResult(rate, "out of memory")
        for _, rate in runs
    ]
    return [overrides.split() for overrides, _ in runs], jobs


def test_each_choice_of_groups_has_a_best_run():
    best = best_runs(
        *sweep(
            ("model=a recipe.global_batch_size=16", 10.0),
            ("model=a recipe.global_batch_size=32", 19.0),
            ("model=a recipe.global_batch_size=64", Exit.OUT_OF_MEMORY),
            ("model=b recipe.global_batch_size=16", 8.0),
            ("model=b recipe.global_batch_size=32", 7.0),
            ("model=b recipe.global_batch_size=64", Exit.OUT_OF_MEMORY),
        )
    )
    assert [(overrides[1][-2:], rate) for overrides, rate in best] == [("32", 19.0), ("16", 8.0)]


def test_no_best_run_without_several_values_or_a_measurement():
    assert best_runs(*sweep(("model=a", 1.0), ("model=b", 2.0))) == []
    out_of_memory = [(f"tuning.micro_batch_size={size}", Exit.OUT_OF_MEMORY) for size in (1, 2)]
    assert best_runs(*sweep(*out_of_memory)) == []


def test_seeds_are_not_choices():
    best = best_runs(*sweep(*((f"seed={n} recipe.global_batch_size=16", 10.0 + n) for n in range(3))))
    assert [rate for _, rate in best] == [12.0]


def test_stopped_sweep_writes_the_measured_runs(tmp_path, capsys):
    sizes = [("recipe.global_batch_size=16", 10.0), ("recipe.global_batch_size=32", 11.0)]
    stopped = ("recipe.global_batch_size=64", Exit.STOPPED)
    assert summarize_sweep(tmp_path / "sweep", [], *sweep(*sizes, stopped)) == Exit.STOPPED
    assert "sweep of 3 runs" in capsys.readouterr().out
    summary = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert [run["exit_code"] for run in summary["runs"]] == [0, 0, 12]
    assert summary["best"][0]["samples_per_second"] == 11.0


def test_out_of_memory_does_not_fail_a_throughput_sweep(tmp_path):
    fits, too_large = ("recipe.global_batch_size=16", 10.0), ("recipe.global_batch_size=32", Exit.OUT_OF_MEMORY)
    assert summarize_sweep(tmp_path, [], *sweep(fits, too_large)) == Exit.TARGET_REACHED
    assert summarize_sweep(tmp_path, [], *sweep(fits, ("seed=x", Exit.CONFIGURATION))) == Exit.CONFIGURATION

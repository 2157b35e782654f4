"""What a sweep of speeds says at its end."""

import json

from timetrial.runner.launch.sweep import best, summarise


def entry(job, *overrides, rate=None, exit_code=0):
    result = {"samples_per_second": rate} if rate else None
    return {"job": job, "overrides": list(overrides), "exit_code": exit_code, "result": result}


def test_each_choice_of_groups_has_a_best_of_its_values():
    entries = [
        entry(0, "model=a", "recipe.global_batch_size=16", rate=10.0),
        entry(1, "model=a", "recipe.global_batch_size=32", rate=19.0),
        entry(2, "model=a", "recipe.global_batch_size=64", exit_code=30),
        entry(3, "model=b", "recipe.global_batch_size=16", rate=8.0),
        entry(4, "model=b", "recipe.global_batch_size=32", rate=7.0),
        entry(5, "model=b", "recipe.global_batch_size=64", exit_code=30),
    ]
    assert [(line["job"], line["samples_per_second"]) for line in best(entries)] == [(1, 19.0), (3, 8.0)]


def test_nothing_is_best_where_nothing_was_to_choose_or_nothing_fits():
    assert best([entry(0, "model=a", rate=1.0), entry(1, "model=b", rate=2.0)]) == []
    assert (
        best([entry(0, "tuning.micro_batch_size=1", exit_code=30), entry(1, "tuning.micro_batch_size=2", exit_code=30)])
        == []
    )


def test_seeds_are_no_choice():
    entries = [entry(job, f"seed={job}", "recipe.global_batch_size=16", rate=10.0 + job) for job in range(3)]
    assert [line["job"] for line in best(entries)] == [2]


def test_a_stopped_sweep_tells_what_was_measured(tmp_path, capsys):
    for job in range(2):
        told = entry(job, f"recipe.global_batch_size={16 << job}", rate=10.0 + job)
        (tmp_path / f"job_{job:05d}.json").write_text(json.dumps(told))
    (tmp_path / "job_00002.json").write_text(json.dumps(entry(2, "recipe.global_batch_size=64", exit_code=12)))
    summarise(tmp_path, True)
    said = capsys.readouterr().out
    assert "sweep of 3 runs" in said
    assert "stopped" in said
    assert json.loads((tmp_path / "best.json").read_text())["best"][0]["job"] == 1

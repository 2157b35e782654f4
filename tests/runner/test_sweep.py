"""What a sweep of speeds says at its end."""

from timetrial.runner.sweep import best


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
    assert best([entry(0, "tuning.batch_size=1", exit_code=30), entry(1, "tuning.batch_size=2", exit_code=30)]) == []

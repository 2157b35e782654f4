"""Every row of recipes.csv belongs to an existing recipe and names its source."""

from timetrial.runner.results.analysis import expectations


def test_every_row_has_a_recipe_and_a_source(root):
    for entry in expectations.read_all():
        assert (root / "conf" / "recipe" / f"{entry.recipe}.yaml").exists(), entry.recipe
        assert entry.source
        assert entry.by in ("timetrial", "others")
        assert list(entry.epochs) == sorted(entry.epochs)
        assert not entry.runs or entry.is_range or len(entry.epochs) <= entry.runs


def test_parses_counts_and_ranges():
    ncf = expectations.find_expectation("ncf/reference", "v05")
    assert (len(ncf.epochs), ncf.runs, ncf.epoch_range) == (249, 300, "13 to 20")
    assert expectations.find_expectation("gnmt/embedded", "v07").epochs == (3, 3, 5)
    assert expectations.find_expectation("ncf/mini", "v05").seconds_range == (0.254, 0.629)
    assert expectations.find_expectation("gnmt/embedded", "v07").seconds_range is None
    assert expectations.find_expectation("gnmt/reference", "v05") is None  # published for another target
    assert expectations.find_expectation("gnmt/mini", "v05").accelerator == "h100"

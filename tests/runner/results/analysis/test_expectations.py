"""What is known of recipes: every row is of a recipe that is there, and says where it is from."""

from timetrial.runner.results.analysis import expectations


def test_every_row_is_of_a_recipe_and_has_a_source(root):
    for found in expectations._all():
        assert (root / "conf" / "recipe" / f"{found.recipe}.yaml").exists(), found.recipe
        assert found.source
        assert list(found.epochs) == sorted(found.epochs)
        assert not found.runs or found.span or len(found.epochs) <= found.runs


def test_counts_and_spans():
    ncf = expectations.of_recipe("ncf/reference", "v05")
    assert (len(ncf.epochs), ncf.runs, ncf.reached) == (249, 300, "13 to 20")
    assert expectations.of_recipe("ssd/mini", "v07").epochs == (30, 35)
    assert expectations.of_recipe("gnmt/reference", "v05") is None  # published for another target
    assert expectations.of_recipe("gnmt/mini", "v05").card == "h200"

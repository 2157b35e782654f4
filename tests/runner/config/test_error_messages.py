"""Sentences for Hydra's errors: the remedy they name composes."""

import pytest

from timetrial.runner.cli.run import run_hydra
from timetrial.runner.config.error_messages import format_error
from timetrial.runner.launch.rank_pool import RankPool


def compose(override):
    return run_hydra("timetrial run", ["accelerator=cpu", override, "--cfg", "job"], RankPool())


@pytest.mark.parametrize(
    ("override", "problem", "remedy"),
    [
        ("hydra=launcher/basic", "There is no group hydra", "hydra/launcher=basic"),
        ("recipe/ncf=mini", "There is no group recipe/ncf", "recipe=ncf/mini"),
    ],
)
def test_remedy_for_a_misplaced_group_composes(override, problem, remedy, capsys):
    with pytest.raises(Exception) as caught:  # noqa: PT011 (an exception of Hydra)
        compose(override)
    assert format_error(caught.value) == f"{problem}: write {remedy}."
    compose(remedy)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("hydra=basic", "There is no group hydra: timetrial run --help lists groups and keys."),
        ("nothing/at=all", "There is no key nothing/at: timetrial run --help lists groups and keys."),
        ("seed=", "seed= has no value: write seed=VALUE, or leave it out."),
        ("gpus=null", "gpus needs a value, not null: leave it out for its default."),
    ],
)
def test_error_of_hydra_becomes_one_sentence(override, sentence):
    with pytest.raises(Exception) as caught:  # noqa: PT011 (an exception of Hydra)
        compose(override)
    assert format_error(caught.value) == sentence

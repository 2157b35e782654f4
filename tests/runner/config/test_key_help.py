"""The keys and groups that `timetrial run --help` lists."""

from dataclasses import dataclass, fields, is_dataclass
from typing import get_type_hints

import pytest

from timetrial.runner.config.key_help import attribute_docs, describe_groups, describe_keys
from timetrial.runner.config.schema import Config
from timetrial.runner.core.suggestions import closest_keys


@dataclass
class Base:
    """Settings that others extend."""

    width: int = 1
    """Channels of the first
    layer."""
    hidden: int = 2


@dataclass
class Extended(Base):
    """Settings with one more."""

    depth: int = 3
    """Layers."""
    width: int = 4
    """Channels of every layer."""


def listed(columns=200):
    """Return the description of each key."""
    return dict(line.split(maxsplit=1) for line in describe_keys(columns).splitlines())


def test_docs_of_fields_include_those_of_bases_unless_they_are_redefined():
    assert attribute_docs(Base) == {"width": "Channels of the first layer."}
    assert attribute_docs(Extended) == {"width": "Channels of every layer.", "depth": "Layers."}


def test_every_field_of_the_schema_has_a_description():
    owners = [Config, *(hint for hint in get_type_hints(Config).values() if is_dataclass(hint))]
    undocumented = {
        f"{owner.__name__}.{field.name}"
        for owner in owners
        for field in fields(owner)
        if field.name not in attribute_docs(owner) and not is_dataclass(get_type_hints(owner)[field.name])
    }
    assert len(owners) > 5
    assert not undocumented


@pytest.mark.parametrize(
    ("typo", "key"),
    [
        ("gpu", "gpus"),
        ("sede", "seed"),
        ("recipe.max_epoch", "recipe.max_epochs"),
        ("epochs", "recipe.max_epochs"),
        ("micro_batch", "tuning.micro_batch_size"),
        ("time_limit", "time_limit_seconds"),
    ],
)
def test_keys_that_help_lists_are_found_from_a_typo(typo, key):
    assert key in closest_keys(typo, list(listed()))


def test_keys_have_the_first_clause_of_their_description():
    described = listed()
    assert described["gpus"] == "GPUs, or CPU processes with accelerator=cpu"
    assert (
        described["recipe.max_grad_norm"] == "Norm that gradients are clipped to"
    )  # "; null: no clipping" is left out
    assert not [key for key in described if key.startswith(("workload.", "precision.", "accelerator."))]
    assert list(described).index("seed") < list(described).index("recipe.scale")  # keys of no group come first


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_keys_fit_the_terminal(columns):
    lines = describe_keys(columns).splitlines()
    assert max(map(len, lines)) <= columns
    assert any(line.endswith("...") for line in lines)


def test_keys_are_no_wider_than_a_page():
    assert describe_keys(500) == describe_keys(120)


def test_groups_are_listed_by_folder_and_wrapped():
    choices = {"scale": ["embedded", "mini"], "recipe/ncf": ["mini", "reference"], "recipe/ssd": ["mini"]}
    assert describe_groups(choices, 80).splitlines() == [
        "scale: embedded, mini",
        "recipe/ncf: mini, reference",
        "recipe/ssd: mini",
    ]
    assert describe_groups({"model": ["resnet50", "resnet152", "vgg16"]}, 26).splitlines() == [
        "model: resnet50,",
        "  resnet152, vgg16",
    ]

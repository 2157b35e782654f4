"""Guesses for the typos that people make."""

import pytest

from timetrial.runner.core.suggestions import choose_one_of, closest, closest_keys

KEYS = [
    "gpus",
    "precision",
    "precision.name",
    "recipe.max_epochs",
    "recipe.global_batch_size",
    "recipe.training.learning_rate",
    "recipe.training.lr_milestones",
    "tuning.micro_batch_size",
    "launcher.name",
    "workload.name",
]


@pytest.mark.parametrize(
    ("name", "known", "matches"),
    [
        ("minni", ["embedded", "mini", "reference"], ["mini"]),
        ("resnet", ["ncf", "resnet50", "ssd"], ["resnet50"]),
        ("BF61", ["BF16", "FP32"], ["BF16"]),
        ("multi30", ["ml-1m", "multi30k", "wmt16"], ["multi30k"]),
        ("h20", ["a100", "h100", "h200"], ["h200"]),
        ("fp8", ["bf16", "fp16", "fp32"], []),
        ("", ["mini"], []),
    ],
)
def test_closest_names(name, known, matches):
    assert closest(name, known)[: len(matches) or None] == matches


def test_closest_names_are_three_at_most_and_keep_their_case():
    assert closest("RESNET5", ["ResNet50", "ResNet51", "ResNet52", "ResNet53"]) == closest(
        "resnet5", ["ResNet50", "ResNet51", "ResNet52", "ResNet53"]
    )
    assert len(closest("resnet5", [f"ResNet5{digit}" for digit in range(9)])) == 3


@pytest.mark.parametrize(
    ("key", "matches"),
    [
        ("gpu", ["gpus"]),
        ("GPUS", ["gpus"]),
        ("precison", ["precision"]),
        ("lr", ["recipe.training.learning_rate"]),  # initials, not the first letters of lr_milestones
        ("epochs", ["recipe.max_epochs"]),
        ("batch_size", ["recipe.global_batch_size", "tuning.micro_batch_size"]),
        ("recipe.max_epoch", ["recipe.max_epochs"]),
        ("training.learning_rate", ["recipe.training.learning_rate"]),  # the same last part
        ("name", ["precision.name", "launcher.name", "workload.name"]),
        ("max", []),  # too short to stand for max_epochs
        ("nonsense", []),
    ],
)
def test_closest_keys(key, matches):
    assert closest_keys(key, KEYS) == matches


def test_a_key_is_guessed_by_the_first_rule_that_finds_one():
    """`size` is the last part of one key, similar to that of another, and a word of the third."""
    known = ["model.sizes", "tuning.micro_batch_size", "image.size"]
    assert closest_keys("size", known) == ["image.size"]
    assert closest_keys("size", known[:2]) == ["model.sizes"]
    assert closest_keys("size", known[1:2]) == ["tuning.micro_batch_size"]


def test_remedy_names_the_guess_and_all_choices():
    scales = ["embedded", "mini", "reference"]
    assert (
        choose_one_of("minni", scales, "scale=") == "did you mean scale=mini? Choose one of embedded, mini, reference"
    )
    assert choose_one_of("huge", scales, "scale=") == "choose one of embedded, mini, reference"

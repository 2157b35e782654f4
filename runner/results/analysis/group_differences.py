"""What differs between two run groups apart from the accelerator."""

from collections.abc import Callable

from ..parse.runs import Run
from .groups import RunGroup

# Hyperparameters that do not describe the recipe.
_IGNORED = ("seed", "opt_learning_rate_decay_steps")
_NO_EFFECT = ("gradient_accumulation_steps",)  # on the gradient, so that recipes that differ in it are the same
_SETTINGS: tuple[tuple[str, Callable[[RunGroup], object]], ...] = (
    ("model", lambda group: group.model),
    ("round", lambda group: group.round),
    ("scale", lambda group: group.runs[0].scale),
    ("target", lambda group: format_target(group.runs[0].target)),
    ("division", lambda group: group.runs[0].division),
    ("number of accelerators", lambda group: group.runs[0].num_accelerators),
    ("global batch size", lambda group: _format_batch(group.runs[0])),
    ("precision", lambda group: group.runs[0].precision),
    ("peer-to-peer", lambda group: "off" if group.runs[0].execution.get("peer_to_peer") is False else "default"),
    ("software", lambda group: group.runs[0].software),
)
# These can change how a model converges; that they do not must be shown.
_RECIPE_SETTINGS = ("number of accelerators", "global batch size", "precision", "software")


def list_differences(first: RunGroup, second: RunGroup) -> list[str]:
    """Return in what two groups differ apart from the accelerator, the most important first."""
    texts = []
    for name, value_of in _SETTINGS:
        values = value_of(first), value_of(second)
        if values[0] != values[1]:
            texts.append(_format_difference(name, *values))
    texts += [_format_difference(*difference) for difference in _hyperparameter_differences(first, second)]
    flags = [sorted({flag for run in group.runs for flag in run.flags}) for group in (first, second)]
    if flags[0] != flags[1]:
        texts.append(f"validity flags: {', '.join(flags[0]) or 'none'} vs. {', '.join(flags[1]) or 'none'}")
    return texts


def list_recipe_differences(first: RunGroup, second: RunGroup) -> list[str]:
    """Return the names of the settings that may change the convergence and differ, or are not stated."""
    names = [name for name, value_of in _SETTINGS if name in _RECIPE_SETTINGS and value_of(first) != value_of(second)]
    runs = first.runs[0], second.runs[0]
    if any(run.global_batch_size is None or not run.hyperparameters for run in runs):
        names.append("a recipe is not stated in full")
    execution = [{key: run.execution.get(key) for key in run.execution if key != "peer_to_peer"} for run in runs]
    if execution[0] != execution[1]:
        keys = sorted(key for key in {**execution[0], **execution[1]} if execution[0].get(key) != execution[1].get(key))
        names += [key.removeprefix("timetrial_") for key in keys]
    return names + [name for name, *_ in _hyperparameter_differences(first, second) if name not in _NO_EFFECT]


def describe_workload_difference(first: RunGroup, second: RunGroup) -> str:
    """Return why the groups do not train the same thing; empty if they do."""
    if first.model != second.model:
        return f"{first.model} and {second.model} are different models"
    scales = [group.runs[0].scale or "reference" for group in (first, second)]  # published logs state none
    if scales[0] != scales[1]:
        return f"their scales differ ({scales[0]} and {scales[1]})"
    targets = format_target(first.runs[0].target), format_target(second.runs[0].target)
    if targets[0] != targets[1]:
        return f"their targets differ ({targets[0]} and {targets[1]})"
    return ""


def format_target(target: object) -> str:
    """Return the numbers of a target."""
    return ", ".join(f"{value:g}" for value in target.values()) if isinstance(target, dict) else str(target)


def _hyperparameter_differences(first: RunGroup, second: RunGroup) -> list[tuple[str, object, object]]:
    values = first.runs[0].hyperparameters, second.runs[0].hyperparameters
    keys = sorted(key for key in values[0].keys() | values[1].keys() if key not in _IGNORED)
    return [(key, values[0].get(key), values[1].get(key)) for key in keys if values[0].get(key) != values[1].get(key)]


def _format_difference(name: str, first: object, second: object) -> str:
    texts = ["not stated" if value in (None, "") else value for value in (first, second)]
    return f"{name}: {texts[0]} vs. {texts[1]}"


def _format_batch(run: Run) -> str:
    return f"{run.global_batch_size} {run.batch_unit}" if run.global_batch_size else ""

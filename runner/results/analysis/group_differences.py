"""What differs between two run groups apart from the accelerator."""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from ...core.execution_paths import UNKNOWN, merge_paths
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
    ("data", lambda group: group.runs[0].execution.get("data")),
    ("division", lambda group: group.runs[0].division),
    ("number of accelerators", lambda group: group.runs[0].num_accelerators),
    ("global batch size", lambda group: _format_batch(group.runs[0])),
    ("precision", lambda group: group.runs[0].precision),
    ("peer-to-peer", lambda group: "off" if group.runs[0].execution.get("peer_to_peer") is False else "default"),
    ("software", lambda group: group.runs[0].software),
)
# These can change how a model converges; that they do not must be shown.
_RECIPE_SETTINGS = ("number of accelerators", "global batch size", "precision", "software")


class Difference(NamedTuple):
    """A setting and its values in two groups; None and "" stand for values that are not stated."""

    name: str
    first: object
    second: object


class WorkloadPart(StrEnum):
    """A part of what is trained."""

    MODEL = "model"
    SCALE = "scale"
    TARGET = "target"
    DATA = "training set"


def list_differences(first: RunGroup, second: RunGroup) -> list[Difference]:
    """Return in what two groups differ apart from the accelerator, the most important first."""
    values = [(name, value_of(first), value_of(second)) for name, value_of in _SETTINGS]
    differences = [Difference(*entry) for entry in values if entry[1] != entry[2]]
    differences += _path_differences(first, second)
    differences += _hyperparameter_differences(first, second)
    flags = [sorted({flag for run in group.runs for flag in run.flags}) for group in (first, second)]
    if flags[0] != flags[1]:
        texts = [", ".join(names) or "none" for names in flags]
        differences.append(Difference("validity flags", *texts))
    return differences


def list_recipe_differences(first: RunGroup, second: RunGroup) -> list[str]:
    """Return the names of the settings that may change the convergence and differ, or are not stated."""
    names = [name for name, value_of in _SETTINGS if name in _RECIPE_SETTINGS and value_of(first) != value_of(second)]
    runs = first.runs[0], second.runs[0]
    if any(run.run_record is None for run in runs) and "software" in names:
        names.remove("software")  # in published logs, free text of the submitter
    if any(run.global_batch_size is None or not run.hyperparameters for run in runs):
        names.append("a recipe is not stated in full")
    execution = [{key: run.execution.get(key) for key in run.execution if key != "peer_to_peer"} for run in runs]
    if execution[0] != execution[1]:
        keys = sorted(key for key in {**execution[0], **execution[1]} if execution[0].get(key) != execution[1].get(key))
        names += [key.removeprefix("timetrial_") for key in keys]
    return names + [name for name, *_ in _hyperparameter_differences(first, second) if name not in _NO_EFFECT]


def workload_difference(first: RunGroup, second: RunGroup) -> tuple[WorkloadPart, str, str] | None:
    """Return in what the groups do not train the same thing; None if they do."""
    scales = [group.runs[0].scale or "reference" for group in (first, second)]  # published logs state none
    targets = [format_target(group.runs[0].target) for group in (first, second)]
    parts = {WorkloadPart.MODEL: [first.model, second.model], WorkloadPart.SCALE: scales, WorkloadPart.TARGET: targets}
    # Another digest alone may be that of a version that prepares the same data in another form; another size alone that
    # of another batch, where samples that fill none are dropped.
    digests = [group.runs[0].execution.get("data") for group in (first, second)]
    if all(digests) and digests[0] != digests[1]:
        parts[WorkloadPart.DATA] = [f"{group.train_samples} samples" for group in (first, second)]
    return next(((part, a, b) for part, (a, b) in parts.items() if a != b), None)


def format_target(target: object) -> str:
    """Return the numbers of a target."""
    return ", ".join(f"{value:g}" for value in target.values()) if isinstance(target, dict) else str(target)


def _path_differences(first: RunGroup, second: RunGroup) -> list[Difference]:
    """Return what was executed differently, or is unknown of one group, if both are of timetrial."""
    if any(run.run_record is None for group in (first, second) for run in group.runs):
        return []
    paths = [merge_paths([run.execution_paths for run in group.runs]) for group in (first, second)]
    values = [(part, paths[0].get(part, UNKNOWN), paths[1].get(part, UNKNOWN)) for part in {**paths[0], **paths[1]}]
    return [Difference(part.replace("_", " "), a, b) for part, a, b in values if a != b]


def _hyperparameter_differences(first: RunGroup, second: RunGroup) -> list[Difference]:
    values = first.runs[0].hyperparameters, second.runs[0].hyperparameters
    keys = sorted(key for key in values[0].keys() | values[1].keys() if key not in _IGNORED)
    differences = [Difference(key, values[0].get(key), values[1].get(key)) for key in keys]
    return [difference for difference in differences if difference.first != difference.second]


def _format_batch(run: Run) -> str:
    return f"{run.global_batch_size} {run.batch_unit}" if run.global_batch_size else ""

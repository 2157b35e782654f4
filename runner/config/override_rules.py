"""Rules for overrides: what one implies, and which of them the rest of the composed configuration masks."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_origin, get_type_hints

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from ..core.errors import ConfigurationError
from ..core.suggestions import choose_one_of


@dataclass(frozen=True)
class Mask:
    """Keys whose values have no effect under a condition.

    `key` is the pattern of the whole key. `find(key, keys, node)` returns why `key` has no effect and what would, as
    the end of a sentence about it, or None where it has one; `keys` are all that the overrides set.
    """

    key: str
    find: Callable[[str, Collection[str], Any], str | None]


def complete(overrides: Sequence[str]) -> list[str]:
    """Return the overrides with the workload of a recipe, and with `target.METRIC=VALUE` in the form that Hydra takes.

    `recipe=NAME/mini` selects `workload=NAME`; `target` has no keys until one is set.
    """
    completed = [re.sub(r"^\+*(?=target\.[^=]+=)", "++", override) for override in overrides]
    if any(override.startswith("workload=") for override in completed):
        return completed
    recipes = ",".join(override.removeprefix("recipe=") for override in completed if override.startswith("recipe="))
    owners = {recipe.split("/")[0] for recipe in recipes.split(",") if "/" in recipe}
    return [f"workload={owner}" for owner in owners if len(owners) == 1] + completed


def apply(node: DictConfig, overrides: Sequence[str], choices: Mapping[str, str]) -> None:
    """Generate no data where the overrides name data; raise `ConfigurationError` for an override without effect."""
    recipe, workload = choices.get("recipe", ""), choices.get("workload", "")
    if "/" in recipe and recipe.split("/")[0] != workload:
        raise ConfigurationError(
            f"recipe={recipe} is not a recipe of workload={workload}: write workload={recipe.split('/')[0]}."
        )
    keys = list(_keys(overrides))
    _check_target(node)
    for key in keys:
        for mask in MASKS:
            if re.fullmatch(mask.key, key) and (reason := mask.find(key, keys, node)):
                raise ConfigurationError(f"{key} has no effect {reason}.")
    _use_named_data(node, keys)
    _make_lists(node, keys)


def _keys(overrides: Sequence[str]) -> Iterator[str]:
    """Yield the dotted keys of the values that the overrides set, those within mappings too."""
    words = [override for override in overrides if not override.startswith(("~", "hydra"))]
    for override in OverridesParser.create().parse_overrides(words):
        yield from _leaves(str(override.key_or_group), override.value())


def _leaves(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for name, entry in value.items():
            yield from _leaves(f"{key}.{name}", entry)
    else:
        yield key


def _check_target(node: Any) -> None:
    known = [str(metric) for metric in node.recipe.target.get(node.round.name) or {}]
    for metric in node.target or {}:
        if known and metric not in known:
            raise ConfigurationError(
                f"target.{metric} is no metric of {node.workload.title}: "
                f"{choose_one_of(str(metric), known, 'target.')}."
            )


def _use_named_data(node: Any, keys: Collection[str]) -> None:
    """Switch generation off if `keys` name data and do not ask for generated ones.

    Raises `ConfigurationError` if generated files would be left.
    """
    data = node.recipe.data
    if data.get("generate") is None or any(key.startswith("recipe.data.generate") for key in keys):
        return
    files = _dataset_keys(node)
    named = [name for name in files if f"recipe.data.{name}" in keys]
    if not named:
        return
    data.generate = None
    generated = f"{node.data_dir}/embedded/"
    values = {name: data.get(name) for name in files if name not in named}
    if left := [
        name for name, value in values.items() if generated in "".join([value] if type(value) is str else value)
    ]:
        listed = ", ".join(f"recipe.data.{name}" for name in left)
        raise ConfigurationError(
            f"recipe.data.{named[0]} names your data, and generated data are not mixed with them: set {listed} too."
        )


def _make_lists(node: Any, keys: Collection[str]) -> None:
    """Take one file, where the data class has a list of files, for a list of it."""
    data = node.recipe.data
    if not any(key.startswith("recipe.data.") for key in keys):
        return
    for name in _dataset_keys(node):
        if f"recipe.data.{name}" in keys and isinstance(data.get(name), str):
            types = get_type_hints(_data_class(node).Settings)
            if get_origin(types[name]) is list:
                data[name] = [data[name]]


def _dataset_keys(node: Any) -> tuple[str, ...]:
    """Return the settings of the chosen data class that name its dataset."""
    return getattr(_data_class(node), "dataset_keys", ())


def _data_class(node: Any) -> Any:
    """Return the class of the chosen loader; None if the workload has no such loader."""
    path = OmegaConf.select(node, "workload.loaders").get(node.data.loader)
    return get_class(path) if path else None


def _other_round(key: str, keys: Collection[str], node: Any) -> str | None:
    _, _, round_name, *metric = key.split(".")
    if node.round.name not in node.recipe.target:
        return None
    in_use = ".".join(["recipe.target", node.round.name, *metric])
    if any(name in (node.target or {}) for name in metric):
        return f"beside target.{metric[0]}: leave it out"
    if round_name == node.round.name or any(other.startswith(in_use) for other in keys):
        return None
    return f"in round {node.round.name}: write target.{metric[0] if metric else 'METRIC'}=VALUE"


def _synthetic(key: str, _: Collection[str], node: Any) -> str | None:
    is_named = key.removeprefix("recipe.data.") in _dataset_keys(node)
    return "with data=synthetic, which reads nothing: add data=torch" if is_named else None


def _when(condition: Callable[[Any], bool], reason: str) -> Callable[[str, Collection[str], Any], str | None]:
    return lambda key, keys, node: reason if condition(node) else None


MASKS = (
    Mask(r"recipe\.target\.v\d+(\.\w+)?", _other_round),
    Mask(r"recipe\.data\.\w+", lambda key, keys, node: _synthetic(key, keys, node) if _is_synthetic(node) else None),
    Mask(
        r"engine\.(capture|cudnn_benchmark|deterministic|kernels)",
        _when(lambda node: node.engine.name != "torch", "with engine=tensorflow: leave it out, or add engine=torch"),
    ),
    Mask(
        r"launcher\.interface",
        _when(
            lambda node: node.launcher.nodes == 1,
            "on one node: add launcher=slurm or launcher=torchrun, and launcher.nodes=NUMBER",
        ),
    ),
    Mask(
        r"workload\.compiled",
        _when(
            lambda node: node.recipe.scale != "reference",
            "below the scale reference: write engine.compile=default or engine.compile=null",
        ),
    ),
    Mask(
        r"workload\.max_micro_batch",
        _when(
            lambda node: node.recipe.scale != "reference",
            "below the scale reference: write tuning.micro_batch_size=NUMBER",
        ),
    ),
    Mask(
        r"throughput\.blocks",
        _when(lambda node: not node.throughput.steps, "on a run to the target: use timetrial throughput"),
    ),
    Mask(
        r"accelerator\.usd_per_gpu_hour",
        lambda key, keys, node: "beside usd_per_gpu_hour: leave it out" if "usd_per_gpu_hour" in keys else None,
    ),
)
"""Every rule for keys that another choice masks."""


def _is_synthetic(node: Any) -> bool:
    return bool(node.data.loader == "synthetic")

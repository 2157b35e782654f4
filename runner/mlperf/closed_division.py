"""Refuse what breaks the rules of the closed division, before a run starts (docs/mlperf_rules.md, "Closed runs").

`closed_v07/<benchmark>.yaml` holds what the rules leave free and the size of the reference's data. All other values are
those of the reference recipe, `conf/recipe/<workload>/reference.yaml`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ...datasets.download import manifest
from ...datasets.registry import catalog
from ..config.diff import flatten
from ..config.schema import Config, RecipeConfig
from ..config.validation import build_settings, gradient_accumulation_steps, resolve_classes
from ..core.errors import ConfigurationError
from . import official_checker

ROUND = "v07"
_CONF = Path(__file__).resolve().parents[2] / "conf"
_OTHERWISE = "or use division=open."
# Keys of every recipe that decide how long and how fast a run trains, and not what it learns.
_FREE_EVERYWHERE = dict.fromkeys(("max_epochs", "data.eval_batch_size", "data.workers", "data.decoder"), "any")


@dataclass(frozen=True)
class ClosedRules:
    """What the closed division fixes and frees for one benchmark; keys of recipes are without `recipe.`."""

    datasets: dict[str, dict[str, int]]
    """Number of files in subfolders of each dataset."""
    free: dict[str, Any]
    """Constraint of each free key."""
    free_by_optimizer: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Constraints that `training.optimizer` decides."""
    train_samples: int | None = None
    eval_samples: int | None = None
    batch_norm_span: int | None = None
    """Samples that share the statistics of a batch norm."""


def load_rules(benchmark: str) -> ClosedRules:
    """Return the rules of a benchmark; raise `ConfigurationError` if it has none."""
    path = Path(__file__).with_name(f"closed_{ROUND}") / f"{benchmark}.yaml"
    if not path.exists() or not official_checker.has_closed_rules(benchmark):
        raise ConfigurationError(
            f"The official checker has no rules of the closed division for {benchmark}: use division=open."
        )
    return ClosedRules(**OmegaConf.to_container(OmegaConf.load(path)))  # type: ignore[arg-type]


def check_config(config: Config) -> None:
    """Raise `ConfigurationError` with one sentence for the first setting that breaks the rules."""
    rules = load_rules(config.workload.benchmark)
    for check in (_check_settings, _check_target, _check_classes, _check_generated, _check_recipe, _check_span):
        for problem in check(config, rules):
            raise ConfigurationError(problem)


def check_datasets(config: Config) -> None:
    """Raise `ConfigurationError` unless the manifests list the reference's raw files and numbers of files."""
    sources = catalog.read()
    for name, counts in load_rules(config.workload.benchmark).datasets.items():
        folder = Path(config.data_dir) / name
        if not (folder / manifest.FILE_NAME).exists():
            raise ConfigurationError(
                f"{folder} has no manifest, which division=closed compares with the reference's dataset: "
                f"build it with timetrial data fetch {name}, {_OTHERWISE}"
            )
        for problem in _dataset_problems(manifest.read(folder), sources[name], counts):
            raise ConfigurationError(
                f"{folder} is not the reference's dataset ({problem}): fetch it anew, {_OTHERWISE}"
            )


def check_sizes(config: Config, *, train_size: int, eval_size: int) -> None:
    """Raise `ConfigurationError` unless the data have as many samples as the reference's."""
    rules = load_rules(config.workload.benchmark)
    for split, size, expected in (
        ("training", train_size, rules.train_samples),
        ("evaluation", eval_size, rules.eval_samples),
    ):
        if expected is not None and size != expected:
            raise ConfigurationError(
                f"The data have {size:,} {split} samples and the reference's have {expected:,}: "
                f"fetch the dataset anew, {_OTHERWISE}"
            )


def _check_settings(config: Config, _: ClosedRules) -> Iterator[str]:
    if config.round.name != ROUND:
        yield f"division=closed has the rules of {ROUND}, not of {config.round.name}: leave round out, {_OTHERWISE}"
    if config.recipe.scale != "reference":
        yield f"division=closed needs the reference scale, not {config.recipe.scale}: add scale=reference, {_OTHERWISE}"
    for key, seed in {"seed": config.seed, **{f"seeds.{k}": v for k, v in asdict(config.seeds).items()}}.items():
        if seed is not None:
            yield f"division=closed draws its seeds from the system: leave {key} out, {_OTHERWISE}"
    if not config.clear_caches:
        yield f"division=closed needs cleared caches: leave clear_caches out, {_OTHERWISE}"


def _check_target(config: Config, _: ClosedRules) -> Iterator[str]:
    target = {**config.recipe.target[ROUND], **config.target}
    official = official_checker.official_target(config.workload.benchmark, "closed")
    if sorted(target.values()) != official:
        key = "target" if config.target else f"recipe.target.{ROUND}"
        yield (
            f"{key} is {_format(target)} and that of the official rule file {_format(official)}: "
            f"leave it out, {_OTHERWISE}"
        )


def _check_classes(config: Config, _: ClosedRules) -> Iterator[str]:
    """Yield a problem for a workload, loader or engine that is not the one of conf/workload/."""
    path = _CONF / "workload" / f"{config.workload.name}.yaml"
    schema = OmegaConf.structured(type(config.workload))
    reference = OmegaConf.to_container(OmegaConf.merge(schema, OmegaConf.load(path)) if path.exists() else schema)
    own, shipped = dict(flatten(asdict(config.workload))), dict(flatten(reference))
    for key in sorted(own.keys() | shipped.keys()):
        if own.get(key) != shipped.get(key):
            yield f"workload.{key} is not that of the reference: leave it out, {_OTHERWISE}"


def _check_generated(config: Config, _: ClosedRules) -> Iterator[str]:
    cause = "data=synthetic" if config.data.loader == "synthetic" else "recipe.data.generate"
    if config.data.loader == "synthetic" or config.recipe.data.get("generate") is not None:
        yield f"division=closed needs the reference's dataset, not generated data: leave {cause} out, {_OTHERWISE}"


def _check_recipe(config: Config, rules: ClosedRules) -> Iterator[str]:
    """Yield a problem for each value that is neither the reference recipe's nor one that the rules allow."""
    own, reference = _flat_recipe(config, config.recipe), _flat_recipe(config, _reference_recipe(config))
    free = _FREE_EVERYWHERE | rules.free | rules.free_by_optimizer.get(str(own.get("training.optimizer")), {})
    for key in sorted(own.keys() | reference.keys()):
        value = own.get(key)
        if key not in free and value != reference.get(key):
            yield (
                f"recipe.{key} is {_format(value)}, the reference's is {_format(reference.get(key))}, and the rules do "
                f"not leave it free: leave it out, {_OTHERWISE}"
            )
        if key in free and not is_allowed(value, free[key]):
            yield (
                f"recipe.{key} is {_format(value)}, but the rules demand {describe(free[key])}: change it, {_OTHERWISE}"
            )


def _check_span(config: Config, rules: ClosedRules) -> Iterator[str]:
    parts = config.gpus * gradient_accumulation_steps(config)
    span = math.ceil(config.recipe.global_batch_size / parts)
    if rules.batch_norm_span not in (None, span):
        yield (
            f"The reference's batch norms span {rules.batch_norm_span} samples, not {span}: add "
            f"tuning.micro_batch_size={rules.batch_norm_span}, with gpus that divide the global batch into such parts, "
            f"{_OTHERWISE}"
        )


def _reference_recipe(config: Config) -> RecipeConfig:
    """Return the reference recipe, its references to other keys resolved as in the run's configuration."""
    recipe = OmegaConf.load(_CONF / "recipe" / config.workload.name / "reference.yaml")
    node = OmegaConf.structured(config)
    node.recipe = OmegaConf.merge(OmegaConf.structured(RecipeConfig), recipe)
    reference = OmegaConf.to_object(node.recipe)
    assert isinstance(reference, RecipeConfig)
    return reference


def _flat_recipe(config: Config, recipe: RecipeConfig) -> dict[str, Any]:
    """Return the dotted keys of a recipe without its target, with the defaults of workload and data class."""
    workload_class, data_class = resolve_classes(config)
    values = asdict(recipe) | {
        "training": asdict(build_settings(workload_class, recipe.training, "recipe.training")),
        "data": asdict(build_settings(data_class, recipe.data, "recipe.data")),
    }
    del values["target"]
    return dict(flatten(values))


def _dataset_problems(listed: manifest.Manifest, source: catalog.Source, counts: dict[str, int]) -> Iterator[str]:
    """Yield a problem for each raw file and each subfolder that differs from the reference's."""
    raw_files = listed.metadata.get("raw_files", {})
    for file in source.files:
        if file.sha256 and not file.optional and raw_files.get(file.name) != file.sha256:
            yield f"{file.name} does not have the published SHA-256"
    for subfolder, expected in counts.items():
        count = sum(entry.path.startswith(f"{subfolder}/") for entry in listed.entries)
        if count != expected:
            yield f"{subfolder} has {count:,} files, not {expected:,}"


def is_allowed(value: Any, constraint: Any) -> bool:
    """Return whether `value` meets a constraint of a rule table."""
    if constraint == "any":
        return True
    ((kind, operand),) = constraint.items()
    match kind:
        case "choices":
            return value in operand
        case "multiple_of":
            return round(value / operand) >= 1 and math.isclose(value / operand, round(value / operand))
        case "power_of_two_times":
            exponent = math.log2(value / operand) if value > 0 else math.nan
            return math.isfinite(exponent) and math.isclose(exponent, round(exponent), abs_tol=1e-9)
        case "stretched":
            factors = [own / base for own, base in zip(value, operand, strict=False)]
            tenths = 10 * factors[0] if factors else math.nan
            is_tenth = math.isclose(tenths, round(tenths)) if factors else False
            return len(value) == len(operand) and is_tenth and all(math.isclose(f, factors[0]) for f in factors)
    raise ValueError(f"{kind} is no constraint.")


def describe(constraint: Any) -> str:
    """Return a constraint in words."""
    if constraint == "any":
        return "any value"
    ((kind, operand),) = constraint.items()
    words = {
        "choices": "one of {}",
        "multiple_of": "a multiple of {}",
        "power_of_two_times": "{} times a power of 2",
        "stretched": "{} times 1 + k/10 for an integer k",
    }
    return words[kind].format(_format(operand))


def _format(value: Any) -> str:
    """Return a value as YAML writes it, without brackets around lists and mappings."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return ", ".join(f"{key} {_format(entry)}" for key, entry in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_format, value))
    return f"{value:g}" if isinstance(value, float) else str(value)

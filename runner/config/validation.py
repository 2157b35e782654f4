"""Check a composed configuration, and derive from it what spans several groups."""

import math
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..core.errors import ConfigurationError
from .diff import flatten
from .error_messages import format_error
from .schema import Config

_SCALES = ("embedded", "mini", "reference")
_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
_LAUNCHERS = ("inline", "local", "slurm", "torchrun")
_NODE_LAUNCHERS = ("slurm", "torchrun")
_DIVISIONS = ("open", "closed")
_COMPILE_MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "tuned")

SEED_LIMIT = 2**63


def validate(node: DictConfig) -> Config:
    """Return the composed `node` as a typed Config; raise `ConfigurationError` with one sentence for what is wrong."""
    try:
        config = OmegaConf.to_object(node)
    except OmegaConfBaseException as error:
        raise ConfigurationError(format_error(error)) from error
    assert isinstance(config, Config)
    checks = (
        _check_target,
        _check_choices,
        _check_numbers,
        _check_precision,
        _check_engine,
        _check_launcher,
        _check_finite,
    )
    for check in checks:
        for problem in check(config):
            raise ConfigurationError(problem)
    gradient_accumulation_steps(config)
    profiled_steps(config)
    workload_class, data_class = resolve_classes(config)
    build_settings(workload_class, config.recipe.training, "recipe.training")
    build_settings(data_class, config.recipe.data, "recipe.data")
    return config


def build_settings(owner: type, node: Any, key: str) -> Any:
    """Return `node` as the dataclass `owner.Settings`, every key known and of its type; `key` is its place."""
    try:
        schema = OmegaConf.structured(owner.Settings)  # type: ignore[attr-defined]
        return OmegaConf.to_object(OmegaConf.merge(schema, OmegaConf.create(node)))
    except OmegaConfBaseException as error:
        raise ConfigurationError(f"{key}: {format_error(error)}") from error
    except ValueError as error:  # raised by the dataclass itself
        raise ConfigurationError(f"{key}: {error}") from error


def resolve_classes(config: Config) -> tuple[type, type[Any]]:
    """Return the workload class and the class of the chosen loader, a `training.workload.Data`."""
    loaders = config.workload.loaders
    if config.data.loader not in loaders:
        raise ConfigurationError(
            f"{config.workload.title} has no loader data={config.data.loader}: choose data={'|'.join(loaders)}."
        )
    return get_class(config.workload.workload), get_class(loaders[config.data.loader])


def quality_target(config: Config) -> dict[str, float]:
    """Return the run's target by metric: the recipe's for the round, except where `target` states another."""
    return {**config.recipe.target[config.round.name], **config.target}


def run_seed(config: Config) -> int:
    """Return the seed of a run that was started: the launcher has drawn it if the configuration left it open."""
    assert config.seed is not None
    return config.seed


def num_ranks(config: Config) -> int:
    """Return the number of processes: one per device, or one in all for a framework that drives all devices itself."""
    return config.gpus if config.engine.name == "torch" else 1


def gradient_accumulation_steps(config: Config) -> int:
    """Return the micro-batches that a device trains per update."""
    if config.gpus > config.recipe.global_batch_size:
        raise ConfigurationError(
            f"recipe.global_batch_size={config.recipe.global_batch_size} is less than one sample per rank: "
            "use fewer gpus."
        )
    return math.ceil(_samples_per_device(config) / micro_batch_size(config))


def micro_batch_size(config: Config, halvings: int = 0) -> int:
    """Return the samples of one forward pass on one device, halved `halvings` times; 0 when none are left."""
    samples = _samples_per_device(config)
    return min(samples, config.tuning.micro_batch_size or samples) >> halvings


def _samples_per_device(config: Config) -> int:
    return math.ceil(config.recipe.global_batch_size / config.gpus)


def _check_target(config: Config) -> Iterator[str]:
    targets, round_name = config.recipe.target, config.round.name
    if round_name not in targets:
        rounds = " or ".join(f"round={name}" for name in targets)
        yield f"{config.workload.title} was not part of MLPerf round {round_name}: use {rounds}."
        return
    if not targets[round_name]:
        yield f"recipe.target.{round_name} names no metric: a run needs a target."
    for metric, target in quality_target(config).items():
        key = "target" if metric in config.target else f"recipe.target.{round_name}"
        if config.recipe.lower_is_better and not 0 < target < math.inf:
            yield f"{key}.{metric} must be a finite number above 0, not {target}."
        elif not config.recipe.lower_is_better and not 0 < target <= 1:
            yield f"{key}.{metric} must be a fraction above 0, not {target}."


def _check_choices(config: Config) -> Iterator[str]:
    for key, value, choices in (
        ("recipe.scale", config.recipe.scale, _SCALES),
        ("division", config.division, _DIVISIONS),
        ("precision", config.precision.name, _PRECISIONS),
        ("launcher", config.launcher.name, _LAUNCHERS),
        ("engine.compile", config.engine.compile, _COMPILE_MODES),
    ):
        if value not in choices:
            yield f"{key} must be one of {', '.join(map(str, choices))}, not {value}."


def profiled_steps(config: Config) -> tuple[int, int] | None:
    """Return the first and the last step of `profile.steps`, None without; raise `ConfigurationError` if malformed."""
    steps = config.profile.steps
    if steps is None:
        return None
    match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", steps)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ConfigurationError(f"profile.steps={steps} is no range of steps: write profile.steps=10-12.")
    if config.engine.name != "torch":
        raise ConfigurationError("profile.steps needs engine=torch.")
    return int(match[1]), int(match[2])


def _check_finite(config: Config) -> Iterator[str]:
    for key, value in flatten(asdict(config)):
        numbers = value if isinstance(value, list) else [value]
        if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
            yield f"{key} must be a finite number, not {value}: where it is a limit, null means none."


def _check_numbers(config: Config) -> Iterator[str]:
    recipe = config.recipe
    for key, number in (
        ("recipe.max_grad_norm", recipe.max_grad_norm),
        ("time_limit_seconds", config.time_limit_seconds),
        ("accelerator.threads", config.accelerator.threads),
        ("launcher.hang_timeout_seconds", config.launcher.hang_timeout_seconds),
    ):
        if number is not None and not number > 0:  # NaN is refused too
            yield f"{key} must be above 0, not {number}."
    for stream, seed in {**vars(config.seeds), "seed": config.seed}.items():
        if seed is not None and not 0 <= seed < SEED_LIMIT:
            key = "seed" if stream == "seed" else f"seeds.{stream}"
            yield f"{key} must be from 0 to 2**63 - 1, not {seed}."
    for key, count in (
        *((f"recipe.{name}", getattr(recipe, name)) for name in ("global_batch_size", "first_eval_epoch")),
        *((f"recipe.{name}", getattr(recipe, name)) for name in ("eval_every_epochs", "max_epochs")),
        ("gpus", config.gpus),
        ("launcher.nodes", config.launcher.nodes),
        ("throughput.blocks", config.throughput.blocks),
        ("tuning.micro_batch_size", config.tuning.micro_batch_size),
    ):
        if count is not None and count < 1:
            yield f"{key} must be 1 or more, not {count}."
    for key, number in (
        ("throughput.steps", config.throughput.steps),
        ("telemetry.every_seconds", config.telemetry.every_seconds),
        ("epochs_past_target", config.epochs_past_target),
        ("usd_per_gpu_hour", config.usd_per_gpu_hour or 0),
        ("accelerator.usd_per_gpu", config.accelerator.usd_per_gpu or 0),
    ):
        if not 0 <= number < math.inf:
            yield f"{key} must be 0 or more, not {number:g}."


def _check_precision(config: Config) -> Iterator[str]:
    """Yield a sentence if the data sheet says that this accelerator does not have the number format."""
    accelerator, precision = config.accelerator, config.precision.name
    if accelerator.tflops.get(precision, math.inf) is None:
        usable = [name for name in ("fp16", "fp32") if accelerator.tflops.get(name) is not None]
        yield f"{accelerator.name.upper()} has no {precision}: use {' or '.join(f'precision={n}' for n in usable)}."


def _check_engine(config: Config) -> Iterator[str]:
    engine, title = config.engine.name, config.workload.title
    if engine != "torch" and engine not in config.workload.engines:
        yield f"{title} has no engine={engine}: use engine=torch."
    if engine == "tensorflow" and config.data.loader != "tfdata":
        yield f"engine=tensorflow reads with data=tfdata, not data={config.data.loader}."
    if engine != "torch" and config.recipe.max_grad_norm is not None:
        yield f"engine={engine} does not clip gradients: use engine=torch."


def _check_launcher(config: Config) -> Iterator[str]:
    ranks, nodes, launcher = num_ranks(config), config.launcher.nodes, config.launcher.name
    if launcher == "inline" and ranks > 1:
        yield "launcher=inline runs one rank: use launcher=local for gpus above 1."
    if nodes > 1 and (launcher not in _NODE_LAUNCHERS or ranks % nodes):
        yield (
            f"{ranks} ranks cannot be divided evenly over {nodes} nodes with launcher={launcher}: "
            "use launcher=slurm or launcher=torchrun, and gpus that the nodes divide."
        )
    if nodes > 1 and not config.run_dir:
        yield "A run over several nodes needs a run directory that all of them see: add run_dir=FOLDER."
    if config.resume and not config.run_dir:
        yield "resume=true needs the directory of the run: add run_dir=FOLDER."

"""The schema of conf/ and the checks that span groups."""

import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.utils import get_class
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..core.error_messages import format_error
from ..core.errors import ConfigurationError
from ..launch import staging

_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
_LAUNCHERS = ("inline", "local", "slurm")
_COMPILE_MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "tuned")


@dataclass
class WorkloadChoice:
    """conf/workload: what is trained; `loaders` names a data class a loader, `engines` one a framework but torch."""

    name: str = MISSING
    title: str = MISSING
    benchmark: str = MISSING
    workload: str = MISSING
    loaders: dict[str, str] = field(default_factory=dict)
    engines: dict[str, str] = field(default_factory=dict)


@dataclass
class Recipe:
    """conf/recipe: how it is trained. `target` is quality per round; `training` and `data` are the workload's own."""

    global_batch_size: int = MISSING
    first_eval_epoch: int = 1
    eval_every_epochs: int = 1
    max_epochs: int = MISSING
    max_grad_norm: float | None = None
    target: dict[str, dict[str, float]] = MISSING
    training: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)


@dataclass
class Scale:
    """conf/scale: embedded, mini or reference; only the reference scale may claim the closed division."""

    name: str = MISSING
    division: str = MISSING


@dataclass
class Round:
    """conf/round: the MLPerf round whose targets count."""

    name: str = MISSING


@dataclass
class EngineChoice:
    """conf/engine: the framework, and how it compiles and warms up.

    `compile` is a mode of torch.compile, or `tuned`: each generated kernel's tiles are searched too, which takes
    minutes once a machine; null compiles nothing.
    """

    name: str = MISSING
    compile: str | None = None
    warm_up: bool = True


@dataclass
class PrecisionChoice:
    """conf/precision: the number format."""

    name: str = MISSING


@dataclass
class DataChoice:
    """conf/data: which loader feeds the workload."""

    loader: str = MISSING


@dataclass
class Accelerator:
    """conf/accelerator: published facts of a card, for the report, null where unknown; host `threads` of a rank.

    `usd_per_gpu_hour` is dollars an hour for one card, `usd_per_gpu` dollars for buying one, null until you name yours.
    """

    name: str = MISSING
    threads: int | None = None
    vendor: str | None = None
    memory_gib: float | None = None
    bandwidth_gb_s: float | None = None
    tflops: dict[str, float | None] = field(default_factory=dict)
    power_watts: float | None = None
    usd_per_gpu_hour: float | None = None
    usd_per_gpu: float | None = None


@dataclass
class Tuning:
    """conf/tuning: what differs on a card. `micro_batch_size` is that of one rank; null takes all of its share."""

    micro_batch_size: int | None = None


@dataclass
class LauncherChoice:
    """conf/launcher: `inline` trains in this process, `local` starts one process a rank, `slurm` does so on every node.

    `nodes` share the run's `gpus` evenly; with `slurm`, those of the `srun` that starts timetrial once on each.
    """

    name: str = MISSING
    nodes: int = 1
    hang_timeout_seconds: float = 45.0


@dataclass
class SeedChoices:
    """Seeds set apart from the one that derives them all; null derives."""

    initialization: int | None = None
    data_order: int | None = None
    dropout: int | None = None
    sampling: int | None = None


@dataclass
class Submission:
    """Header of the MLPerf log."""

    org: str = "unofficial"
    platform: str = "${system}"
    status: str = "research"
    poc_name: str = "none"


@dataclass
class Checkpoint:
    """Saved at the end of a block when `every_seconds` have passed since the last one, and always on a stop signal.

    With `at_end` also when the run is over, for whoever goes on from its weights.
    """

    every_seconds: float = 600.0
    at_end: bool = False


@dataclass
class Throughput:
    """Set by `timetrial throughput`: `blocks` of `steps` training steps and evaluation batches; 0 trains normally."""

    steps: int = 0
    blocks: int = 5


@dataclass
class TelemetryChoice:
    """How often each node's cards and host are looked at; 0 leaves it."""

    every_seconds: float = 1.0


@dataclass
class Config:
    """All of a run. Without `peer_to_peer` the cards of a node reach one another through the host alone."""

    workload: WorkloadChoice = field(default_factory=WorkloadChoice)
    recipe: Recipe = field(default_factory=Recipe)
    scale: Scale = field(default_factory=Scale)
    round: Round = field(default_factory=Round)
    engine: EngineChoice = field(default_factory=EngineChoice)
    precision: PrecisionChoice = field(default_factory=PrecisionChoice)
    data: DataChoice = field(default_factory=DataChoice)
    accelerator: Accelerator = field(default_factory=Accelerator)
    tuning: Tuning = field(default_factory=Tuning)
    launcher: LauncherChoice = field(default_factory=LauncherChoice)
    submission: Submission = field(default_factory=Submission)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    throughput: Throughput = field(default_factory=Throughput)
    telemetry: TelemetryChoice = field(default_factory=TelemetryChoice)
    usd_per_gpu_hour: float | None = None
    gpus: int = 1
    peer_to_peer: bool = True
    seed: int = 1
    seeds: SeedChoices = field(default_factory=SeedChoices)
    epochs_past_target: int = 0
    time_limit_seconds: float | None = None
    data_dir: str = "data"
    staging_dir: str | None = None
    runs: str = "runs"
    run_dir: str | None = None
    resume: bool = False
    system: str = MISSING


def register() -> None:
    """Makes the schema, the first entry of conf/config.yaml's defaults list, and our resolvers known to Hydra."""
    OmegaConf.register_new_resolver("hostname", platform.node, replace=True)
    OmegaConf.register_new_resolver("unless", lambda flag: str(flag) != "1", replace=True)
    ConfigStore.instance().store(name="schema", node=Config)


def settings_of(owner: type, node: Any, where: str) -> Any:
    """`node` as the dataclass `owner.Settings`, every key known and of its type; `where` is its place in the config."""
    try:
        schema = OmegaConf.structured(owner.Settings)  # type: ignore[attr-defined]
        return OmegaConf.to_object(OmegaConf.merge(schema, OmegaConf.create(node)))
    except OmegaConfBaseException as error:
        raise ConfigurationError(f"{where}: {format_error(error)}") from error
    except ValueError as error:  # what the dataclass itself refuses
        raise ConfigurationError(f"{where}: {error}") from error


def ranks(config: Config) -> int:
    """Processes of the run: one a device, but for a framework that drives all devices from one."""
    return config.gpus if config.engine.name == "torch" else 1


def data_settings(config: Config, owner: type) -> Any:
    """The recipe's data as the data class `owner` wants them, read from the staged copies where there are some."""
    data = config.recipe.data
    if config.staging_dir is not None:
        data = staging.staged(data, Path(config.data_dir), Path(config.staging_dir))
    return settings_of(owner, data, "recipe.data")


def classes(config: Config) -> tuple[type, type]:
    """The workload's class and the data class of the chosen loader."""
    paths = config.workload.loaders
    if config.data.loader not in paths:
        raise ConfigurationError(
            f"{config.workload.title} has no loader data={config.data.loader}: choose data={'|'.join(paths)}."
        )
    return get_class(config.workload.workload), get_class(paths[config.data.loader])


def check(node: DictConfig) -> Config:
    """The composed `node` as a typed Config; raises `ConfigurationError` with one sentence for what cannot be."""
    try:
        config = OmegaConf.to_object(node)
    except OmegaConfBaseException as error:
        raise ConfigurationError(format_error(error)) from error
    assert isinstance(config, Config)
    recipe, title = config.recipe, config.workload.title
    if config.round.name not in recipe.target:
        rounds = " or ".join(f"round={name}" for name in recipe.target)
        raise ConfigurationError(f"{title} was not part of MLPerf round {config.round.name}: use {rounds}.")
    if not config.recipe.target[config.round.name]:
        raise ConfigurationError(f"recipe.target.{config.round.name} names no metric: a run needs a target.")
    for metric, least in recipe.target[config.round.name].items():
        if not 0 < least <= 1:
            raise ConfigurationError(
                f"recipe.target.{config.round.name}.{metric} must be a fraction above 0, not {least}."
            )
    for key, value, known in (
        ("precision", config.precision.name, _PRECISIONS),
        ("launcher", config.launcher.name, _LAUNCHERS),
        ("engine.compile", config.engine.compile, _COMPILE_MODES),
    ):
        if value not in known:
            raise ConfigurationError(f"{key} must be one of {', '.join(map(str, known))}, not {value}.")
    positive = {
        "recipe.max_grad_norm": recipe.max_grad_norm,
        "time_limit_seconds": config.time_limit_seconds,
        "accelerator.threads": config.accelerator.threads,
        "launcher.hang_timeout_seconds": config.launcher.hang_timeout_seconds,
    }
    for key, number in positive.items():
        if number is not None and not number > 0:  # nor no number at all
            raise ConfigurationError(f"{key} must be above 0, not {number}.")
    for stream, seed in {**vars(config.seeds), "seed": config.seed}.items():
        if seed is not None and not 0 <= seed < 2**63:
            raise ConfigurationError(f"The seed of {stream} must be from 0 to 2**63 - 1, not {seed}.")
    for name in ("global_batch_size", "first_eval_epoch", "eval_every_epochs", "max_epochs"):
        _at_least_one(f"recipe.{name}", getattr(recipe, name))
    _at_least_one("gpus", config.gpus)
    _at_least_one("launcher.nodes", config.launcher.nodes)
    _at_least_one("throughput.blocks", config.throughput.blocks)
    for key, number in (
        ("throughput.steps", config.throughput.steps),
        ("telemetry.every_seconds", config.telemetry.every_seconds),
        ("epochs_past_target", config.epochs_past_target),
        ("usd_per_gpu_hour", config.usd_per_gpu_hour or 0),
        ("accelerator.usd_per_gpu", config.accelerator.usd_per_gpu or 0),
    ):
        if not 0 <= number < math.inf:
            raise ConfigurationError(f"{key} must be 0 or more, not {number:g}.")
    if config.engine.name != "torch" and config.engine.name not in config.workload.engines:
        raise ConfigurationError(f"{title} has no engine={config.engine.name}: use engine=torch.")
    if config.engine.name == "tensorflow" and config.data.loader != "tfdata":
        raise ConfigurationError(f"engine=tensorflow reads with data=tfdata, not data={config.data.loader}.")
    if config.engine.name != "torch" and recipe.max_grad_norm is not None:
        raise ConfigurationError(f"engine={config.engine.name} does not clip gradients: use engine=torch.")
    if config.launcher.name == "inline" and ranks(config) > 1:
        raise ConfigurationError("launcher=inline runs one rank: use launcher=local for gpus above 1.")
    if (nodes := config.launcher.nodes) > 1 and (config.launcher.name != "slurm" or ranks(config) % nodes):
        raise ConfigurationError(
            f"{ranks(config)} ranks do not fill {nodes} nodes evenly with launcher={config.launcher.name}: "
            "use launcher=slurm, and gpus that the nodes divide."
        )
    if nodes > 1 and not config.run_dir:
        raise ConfigurationError("A run over several nodes needs a folder that all of them name: add run_dir=FOLDER.")
    if config.resume and not config.run_dir:
        raise ConfigurationError("resume=true needs the folder of the run: add run_dir=FOLDER.")
    accumulation(config)
    workload, data = classes(config)
    settings_of(workload, recipe.training, "recipe.training")
    settings_of(data, recipe.data, "recipe.data")
    return config


def accumulation(config: Config) -> int:
    """Micro-batches a device trains per update: from the global batch, the devices and the micro-batch that fits."""
    if config.gpus > config.recipe.global_batch_size:
        raise ConfigurationError(
            f"recipe.global_batch_size={config.recipe.global_batch_size} is less than a sample a rank: use fewer gpus."
        )
    _at_least_one(
        "tuning.micro_batch_size", 1 if config.tuning.micro_batch_size is None else config.tuning.micro_batch_size
    )
    return -(-_share(config) // micro_batch(config))


def micro_batch(config: Config, halvings: int = 0) -> int:
    """The most samples that a device trains at a time, halved so often; 0 where nothing is left to halve."""
    return min(_share(config), config.tuning.micro_batch_size or _share(config)) >> halvings


def _share(config: Config) -> int:
    """A device's samples of the global batch."""
    return -(-config.recipe.global_batch_size // config.gpus)


def compose(overrides: Sequence[str]) -> DictConfig:
    """What `timetrial run` would run with these overrides."""
    register()
    with hydra.initialize_config_module("timetrial.conf", version_base="1.3"):
        return hydra.compose("config", overrides=list(overrides))


def as_yaml(config: DictConfig) -> str:
    """The resolved configuration as YAML text, for config.yaml."""
    return OmegaConf.to_yaml(config, resolve=True)


def load(path: Path) -> Config:
    """The typed Config of a run folder's config.yaml."""
    return check(OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.load(path)))  # type: ignore[arg-type]


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ConfigurationError(f"{name} must be 1 or more, not {value}.")

"""Compose configurations: Hydra overrides in, one typed `Config` out."""

import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from ..core.errors import ConfigurationError
from ..core.found_files import UnreadableFile, read_config
from . import override_rules
from .error_messages import choices_of_groups, format_error
from .key_help import describe_groups, describe_keys
from .schema import Config
from .step_execution import default_capture, default_compile_mode
from .validation import validate

CONFIG_MODULE = "timetrial.conf"
CONFIG_NAME = "config"


@dataclass(frozen=True)
class Composition:
    """A composed configuration, and what was chosen in each group (`{"precision": "fp32", ...}`)."""

    node: DictConfig
    choices: dict[str, str]

    @classmethod
    def of_hydra(cls, node: DictConfig, hydra_node: Any) -> "Composition":
        """Return what Hydra has composed: our `node`, and its own part, which holds choices and overrides.

        Raises `ConfigurationError` if the overrides choose a scale that is not the recipe's, or have no effect.
        """
        choices = {str(group): str(choice) for group, choice in hydra_node.runtime.choices.items()}
        is_chosen = any(override.startswith("scale=") for override in hydra_node.overrides.task)
        if is_chosen and choices["scale"] != node.recipe.scale:
            raise ConfigurationError(
                f"recipe={choices['recipe']} has the scale {node.recipe.scale}, which contradicts "
                f"scale={choices['scale']}: leave one of the two out."
            )
        override_rules.apply(node, hydra_node.overrides.task, choices)
        return cls(node, choices)


def register_schema() -> None:
    """Register the schema and our resolvers with Hydra."""
    OmegaConf.register_new_resolver("hostname", platform.node, replace=True)
    OmegaConf.register_new_resolver("unless", lambda flag: str(flag) != "1", replace=True)
    OmegaConf.register_new_resolver("is_closed", lambda division: division == "closed", replace=True)
    OmegaConf.register_new_resolver("open_only", _open_only, replace=True)
    OmegaConf.register_new_resolver("latest", max, replace=True)
    OmegaConf.register_new_resolver("compile_mode", default_compile_mode, replace=True)
    OmegaConf.register_new_resolver("capture_steps", default_capture, replace=True)
    OmegaConf.register_new_resolver("is_reference", lambda scale: scale == "reference", replace=True)
    OmegaConf.register_new_resolver("micro_batch", _micro_batch, replace=True)
    OmegaConf.register_new_resolver("help_on", _help_on, replace=True)
    ConfigStore.instance().store(name="schema", node=Config)


def _open_only(division: str, value: Any) -> Any:
    return None if division == "closed" else value


def _micro_batch(largest: int | None, scale: str) -> int | None:
    """Return the default of `tuning.micro_batch_size`: the other scales fit into the memory of any GPU."""
    return largest if scale == "reference" else None


def _help_on(part: str) -> str:
    """Return the groups or the keys for the template of `--help` in conf/config.yaml."""
    columns = shutil.get_terminal_size().columns
    return describe_groups(choices_of_groups(), columns) if part == "groups" else describe_keys(columns)


def compose(overrides: Sequence[str]) -> Composition:
    """Compose the configuration that `timetrial run` runs with these overrides.

    In `timetrial run`, Hydra's entry point composes for its sweepers and launchers; both end in `Composition.of_hydra`.
    """
    register_schema()
    with hydra.initialize_config_module(CONFIG_MODULE, version_base="1.3"):
        completed = override_rules.complete(overrides)
        node = hydra.compose(CONFIG_NAME, overrides=completed, return_hydra_config=True)
    composition = Composition.of_hydra(node, node.hydra)
    with open_dict(node):
        del node["hydra"]
    return composition


def compose_recipes(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Compose recipes by themselves, such as `<workload>/mini`, with references to other keys left as `${...}`."""
    register_schema()
    with hydra.initialize_config_module(CONFIG_MODULE, version_base="1.3"):
        nodes = {name: hydra.compose(overrides=[f"+recipe={name}"]).recipe for name in names}
    return {name: OmegaConf.to_container(node, resolve=False) for name, node in nodes.items()}  # type: ignore[misc]


def seed_first(overrides: Sequence[str]) -> list[str]:
    """Return the overrides with the seed before all others that have several values: a sweep varies it last.

    The runs of its other settings are then made in turn. Settings that ran in blocks differ by the drift of their
    machine too.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    swept = [override.is_sweep_override() for override in OverridesParser.create().parse_overrides(list(overrides))]
    first = swept.index(True) if any(swept) else 0
    seeds = [word for word in overrides[first:] if word.split("=")[0].lstrip("+") == "seed"]
    return [*overrides[:first], *seeds, *(word for word in overrides[first:] if word not in seeds)]


def expand_sweep(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each run of a sweep, in the order of Hydra's own sweeper, by seed first."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    register_schema()
    with hydra.initialize_config_module(CONFIG_MODULE, version_base="1.3"):
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        parsed = parser.parse_overrides(seed_first(overrides))
    return [list(run) for run in BasicSweeper.split_arguments(parsed, None)[0]]


def to_yaml(config: Config) -> str:
    """Return the configuration as YAML text."""
    return OmegaConf.to_yaml(config)


def load_config(path: Path) -> Config:
    """Return the typed configuration of a run directory's config.yaml, in which nothing is resolved."""
    try:
        node = OmegaConf.merge(OmegaConf.structured(Config), read_config(path))
    except (OmegaConfBaseException, AssertionError) as error:
        raise UnreadableFile(path, format_error(error).rstrip(".")) from error
    return validate(node)  # type: ignore[arg-type]

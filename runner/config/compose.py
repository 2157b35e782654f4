"""Compose configurations: Hydra overrides in, one typed `Config` out."""

import itertools
import platform
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from .search_path import register_search_path
from .step_execution import default_capture, default_compile_mode
from .validation import validate

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

CONFIG_MODULE = "timetrial.conf"
CONFIG_NAME = "config"
VERSION_BASE = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}
"""Arguments that select Hydra's present behavior: 1.3 wants them, and 1.4 has no other."""
# Of configurations of older runs: steps in fp16 were not captured, and cuDNN timed 4 plans below the scale reference.
_RETIRED_KEYS = (("workload", "faster_captured"), ("engine", "full_search"))
# OmegaConf 2.4, which Hydra 1.4 needs, gives the name without "new" to the same function.
_register_resolver = OmegaConf.register_new_resolver if VERSION_BASE else OmegaConf.register_resolver


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
        choices = dict(_split_choice(group, str(choice)) for group, choice in hydra_node.runtime.choices.items())
        is_chosen = any(override.startswith("scale=") for override in hydra_node.overrides.task)
        if is_chosen and choices["scale"] != node.recipe.scale:
            raise ConfigurationError(
                f"recipe={choices['recipe']} has the scale {node.recipe.scale}, which contradicts "
                f"scale={choices['scale']}: leave one of the two out."
            )
        override_rules.apply(node, hydra_node.overrides.task, choices)
        return cls(node, choices)


def _split_choice(group: str, choice: str) -> tuple[str, str]:
    """Return our group and its choice; Hydra 1.4 has `recipe/NAME: mini` for what is `recipe: NAME/mini` in 1.3."""
    owner, _, folder = group.partition("/")
    return (group, choice) if owner == "hydra" or not folder else (owner, f"{folder}/{choice}")


def register_schema() -> None:
    """Register the schema and our resolvers with Hydra, once in a process."""
    resolvers: dict[str, Callable[..., Any]] = {
        "hostname": platform.node,
        "unless": lambda flag: str(flag) != "1",
        "is_closed": lambda division: division == "closed",
        "open_only": _open_only,
        "latest": lambda rounds: max(rounds),
        "compile_mode": lambda *values: default_compile_mode(*values),  # of which one is a node, not its dataclass
        "capture_steps": default_capture,
        "is_reference": lambda scale: scale == "reference",
        "micro_batch": _micro_batch,
        "help_on": _help_on,
    }
    for name, resolver in resolvers.items():
        if not OmegaConf.has_resolver(name):
            _register_resolver(name, resolver)
    register_search_path()
    store = ConfigStore.instance()
    if "schema.yaml" not in store.repo:
        store.store(name="schema", node=Config)


def initialize() -> AbstractContextManager[None]:
    """Return a context in which Hydra composes our configuration; `register_schema()` comes before."""
    return hydra.initialize_config_module(CONFIG_MODULE, **VERSION_BASE)


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
    with initialize():
        completed = override_rules.complete(overrides)
        node = hydra.compose(CONFIG_NAME, overrides=completed, return_hydra_config=True)
    composition = Composition.of_hydra(node, node.hydra)
    with open_dict(node):
        del node["hydra"]
    return composition


def compose_recipes(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Compose recipes by themselves, such as `<workload>/mini`, with references to other keys left as `${...}`."""
    register_schema()
    with initialize():
        nodes = {name: hydra.compose(overrides=[f"+recipe={name}"]).recipe for name in names}
    return {name: OmegaConf.to_container(node, resolve=False) for name, node in nodes.items()}  # type: ignore[misc]


def as_sweep(overrides: Sequence[str]) -> list[str]:
    """Return the overrides as Hydra's sweeper shall take them.

    The seed comes before all others that have several values, so that it varies last: the runs of the other settings
    are then made in turn. Settings that ran in blocks differ by the drift of their machine too. Of several ranges, such
    as `seed=range(1,6),range(101,106)`, the values are written out, since the sweeper takes one only.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(list(overrides))
    for word, override in zip(overrides, parsed, strict=True):
        if any(next(iter(part.range()), None) is None for part in _ranges(override)):
            raise ConfigurationError(
                f"{word} has no values: the second number of a range is left out and must be larger."
            )
    words = [_write_out_ranges(word, override) for word, override in zip(overrides, parsed, strict=True)]
    swept = [override.is_sweep_override() for override in parsed]
    first = swept.index(True) if any(swept) else 0
    seeds = [word for word in words[first:] if word.split("=")[0].lstrip("+") == "seed"]
    return [*words[:first], *seeds, *(word for word in words[first:] if word not in seeds)]


def _ranges(override: "Override") -> list[Any]:
    """Return the ranges among the values of an override."""
    from hydra.core.override_parser.types import ChoiceSweep, RangeSweep

    value = override.value()
    parts = value.list if isinstance(value, ChoiceSweep) else [value]
    return [part for part in parts if isinstance(part, RangeSweep)]


def _write_out_ranges(word: str, override: "Override") -> str:
    from hydra.core.override_parser.types import ChoiceSweep

    ranges = _ranges(override) if isinstance(override.value(), ChoiceSweep) else []
    ranges = [",".join(map(str, part.range())) for part in ranges]
    texts = re.split(r"\brange\([^()]*\)", word)
    if not ranges or len(texts) != len(ranges) + 1:
        return word
    return "".join(itertools.chain(*zip(texts, [*ranges, ""], strict=True)))


def expand_sweep(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each run of a sweep, in the order of Hydra's own sweeper, by seed first."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    register_schema()
    with initialize():
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        parsed = parser.parse_overrides(as_sweep(overrides))
    return [list(run) for run in BasicSweeper.split_arguments(parsed, None)[0]]


def to_yaml(config: Config) -> str:
    """Return the configuration as YAML text."""
    return OmegaConf.to_yaml(config)


def load_config(path: Path) -> Config:
    """Return the typed configuration of a run directory's config.yaml, in which nothing is resolved."""
    values = read_config(path)
    for group, key in _RETIRED_KEYS:
        if isinstance(settings := values.get(group), dict):
            settings.pop(key, None)
    try:
        node = OmegaConf.merge(OmegaConf.structured(Config), values)
    except (OmegaConfBaseException, AssertionError) as error:
        raise UnreadableFile(path, format_error(error).rstrip(".")) from error
    return validate(node)  # type: ignore[arg-type]

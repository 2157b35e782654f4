"""Compose the configurations of many runs: the tasks of a study, the jobs of a sweep."""

import copy
from collections.abc import Sequence

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from . import override_rules
from .compose import Composition, compose, initialize, register_schema


class SweepConfigLoader(ConfigLoaderImpl):
    """Hydra's loader of configurations, for which each job of a sweep has the workload of its own recipe."""

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """Compose one job, as Hydra does, with completed overrides."""
        return super().load_sweep_config(master_config, override_rules.complete(sweep_overrides))


class Composer:
    """Composes runs that differ in few choices of groups: each as `compose()` does, in a tenth of the time.

    Hydra composes in two steps: it merges the files that the choices of groups select, then sets single values. The
    first step takes most of the time and is done once per combination of choices.
    """

    def __init__(self) -> None:
        register_schema()
        with initialize():
            self._loader = GlobalHydra.instance().config_loader()
        self._parser = OverridesParser.create(config_loader=self._loader)
        self._of_choices: dict[tuple[str, ...], Composition] = {}

    def compose(self, overrides: Sequence[str]) -> Composition:
        """Return what `compose(overrides)` returns; raise what it raises."""
        overrides = override_rules.complete(overrides)
        parsed = self._parser.parse_overrides(overrides)
        values = [override for override in parsed if self._sets_value(override)]
        choices = tuple(str(override.input_line) for override in parsed if not self._sets_value(override))
        if choices not in self._of_choices:
            self._of_choices[choices] = compose(choices)
        composition = self._of_choices[choices]
        node = copy.deepcopy(composition.node)
        ConfigLoaderImpl._apply_overrides_to_config(values, node)
        override_rules.apply(node, overrides, composition.choices)
        return Composition(node, composition.choices)

    def _sets_value(self, override: Override) -> bool:
        """Return whether Hydra applies the override after merging files, and to our part of the configuration."""
        if override.is_hydra_override() or override.is_sweep_override():
            return False
        is_group = self._loader.repository.group_exists(override.key_or_group)  # type: ignore[attr-defined]
        return not is_group or isinstance(override.value(), dict)
